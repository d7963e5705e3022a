# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The progress of this process; mwatch's probe finds this module by name and reads it.

`iteration` counts finished iterations, like Megatron's `args.curr_iteration`. Only the training
loop writes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

iteration = 0
phase = "starting"


@contextlib.contextmanager
def during(name: str) -> Iterator[None]:
    """Set the phase inside a block and restore the previous one afterwards."""
    global phase
    before, phase = phase, name
    try:
        yield
    finally:
        phase = before
