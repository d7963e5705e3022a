# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Makes a failing input small: leaves out lines, then bytes, for as long as it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

Fails = Callable[[bytes], bool]
_SECONDS = 40.0
_WINDOW_LINES = 60
_BYTES = 4000
"""Inputs above this are not tried byte by byte."""


def shrink(data: bytes, fails: Fails) -> bytes:
    """A part of `data` that fails; the best found within the time limit."""
    window = _window(data.split(b"\n"), fails)
    deadline = time.monotonic() + _SECONDS
    data = _without([line + b"\n" for line in window], fails, deadline)
    if len(data) <= _BYTES:
        data = _without([data[index : index + 1] for index in range(len(data))], fails, deadline)
    return data


def _window(lines: list[bytes], fails: Fails) -> list[bytes]:
    """A few lines in a row that fail by themselves; else all."""
    for start in range(0, len(lines), _WINDOW_LINES // 2):
        window = lines[start : start + _WINDOW_LINES]
        if fails(b"\n".join(window) + b"\n"):
            return window
    return lines


def _without(pieces: Sequence[bytes], fails: Fails, deadline: float) -> bytes:
    """Leaves out ever smaller runs of pieces."""
    kept = list(pieces)
    size = max(len(kept) // 2, 1)
    while kept:
        position, removed = 0, False
        while position < len(kept):
            if time.monotonic() > deadline:
                return b"".join(kept)
            rest = kept[:position] + kept[position + size :]
            if fails(b"".join(rest)):
                kept, removed = rest, True
            else:
                position += size
        if size == 1 and not removed:
            break
        size = max(size // 2, 1)
    return b"".join(kept)
