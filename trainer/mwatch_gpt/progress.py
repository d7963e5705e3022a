# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How far this process is, for whoever looks in from outside by the module's name.

Only the training loop writes here. `iteration` counts finished iterations, as Megatron's
`args.curr_iteration` does; it stands still while an iteration is under way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

iteration = 0
phase = "starting"


@contextlib.contextmanager
def during(name: str) -> Iterator[None]:
    """Names the phase for the length of a block; the phase before comes back after it."""
    global phase
    before, phase = phase, name
    try:
        yield
    finally:
        phase = before
