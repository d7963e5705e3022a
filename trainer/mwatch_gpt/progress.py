# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The progress of this process; the probe reads it from outside, by the module's name.

`iteration` counts finished iterations, as Megatron's `args.curr_iteration` does. Only the training
loop writes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

iteration = 0
phase = "starting"


@contextlib.contextmanager
def during(name: str) -> Iterator[None]:
    """Set the phase inside a block, and restore the previous one after it."""
    global phase
    before, phase = phase, name
    try:
        yield
    finally:
        phase = before
