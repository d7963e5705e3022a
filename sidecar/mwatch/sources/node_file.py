# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A file of facts that the sampler in the training container replaces about once a second.

A file that is no longer replaced tells nothing of now. Its age is taken by the machine's
monotonic clock, which all containers of a pod share; a file that was left behind before a
reboot, or comes from another machine, is told by a moment that lies ahead of the clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.json_file import JsonFile

STALE_SECONDS = 45.0
"""The sampler writes once a second, but up to 30 apart where a look costs it too much."""
_AHEAD_SECONDS = 1.0


class Sample(NamedTuple):
    at: float
    """Wall time of the sample."""
    monotonic: float
    body: dict[str, Any]
    is_new: bool
    """Not the one that the last read gave."""


class NodeFile:
    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = JsonFile(path)
        self._clock = clock
        self._last = -math.inf

    def read(self) -> Reading[Sample]:
        name = self._file.name
        found = self._file.read()
        if isinstance(found, Absent):
            return Absent(f"{found.reason}: the wrapper has not written it")
        if isinstance(found, Failed):
            return found
        body = found.value
        at, monotonic = number(body.get("at")), number(body.get("monotonic"))
        if at is None or monotonic is None:
            return Failed(f"{name} does not say when it was written")
        age = self._clock() - monotonic
        if age > STALE_SECONDS:
            return Failed(f"{name} has not been written for {age:.0f} s")
        if age < -_AHEAD_SECONDS:
            return Failed(f"{name} is of another machine, or of before a reboot")
        is_new = monotonic != self._last
        self._last = monotonic
        return Ok(Sample(at, monotonic, body, is_new))


def number(value: object) -> float | None:
    """A finite number, or None: a file of another release may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: object, longest: int = 200) -> str | None:
    return value[:longest] if isinstance(value, str) else None


def objects(value: object, most: int) -> list[dict[str, Any]]:
    """The objects of a list, as many as we care to read."""
    found = value if isinstance(value, list) else []
    return [each for each in found[:most] if isinstance(each, dict)]
