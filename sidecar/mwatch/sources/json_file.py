# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads JSON files on the shared volume that other processes replace about once a second.

Writers rename a new file over the old one, so a file with the same inode, time and size has not
changed, and checking it costs one `stat`. The age of a sample is taken from the monotonic clock,
which all containers of a pod share.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch_trainer.contract import read_json


class JsonFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._last: Reading[dict[str, Any]] = Absent("not read yet")

    @property
    def name(self) -> str:
        return os.path.basename(self._path)

    def read(self) -> Reading[dict[str, Any]]:
        try:
            status = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            self._stamp = None
            return Absent(f"there is no {self.name}")
        except OSError as error:
            self._stamp = None
            return Failed(f"{self.name} cannot be read: {error.strerror or error}")
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._last = self._load()
            self._stamp = stamp if isinstance(self._last, Ok) else None
        return self._last

    def _load(self) -> Reading[dict[str, Any]]:
        body = read_json(self._path)
        return Failed(f"{self.name} cannot be read") if body is None else Ok(body)


STALE_SECONDS = 45.0
"""Age from which a sample is stale: the sampler writes once a second, and at most 30 s apart where
sampling is expensive."""
_AHEAD_SECONDS = 1.0


class FileSample(NamedTuple):
    at: float
    monotonic: float
    body: dict[str, Any]
    is_new: bool


class NodeFile:
    """A file of facts about the node; a stale one reads as Failed."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = JsonFile(path)
        self._clock = clock
        self._last = -math.inf

    def read(self) -> Reading[FileSample]:
        name = self._file.name
        found = self._file.read()
        if isinstance(found, Absent):
            return Absent(f"{found.reason}: the wrapper has not written it")
        if isinstance(found, Failed):
            return found
        body = found.value
        at, monotonic = number(body.get("at")), number(body.get("monotonic"))
        if at is None or monotonic is None:
            return Failed(f"{name} has no time of writing")
        age = self._clock() - monotonic
        if age > STALE_SECONDS:
            return Failed(f"{name} has not been written for {age:.0f} s")
        if age < -_AHEAD_SECONDS:
            return Failed(f"{name} was written on another machine or before a reboot")
        is_new = monotonic != self._last
        self._last = monotonic
        return Ok(FileSample(at, monotonic, body, is_new))


def number(value: object) -> float | None:
    """Return a finite number, or None: a file of another release may contain any value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def text(value: object, longest: int = 200) -> str | None:
    return value[:longest] if isinstance(value, str) else None


def objects(value: object, most: int) -> list[dict[str, Any]]:
    found = value if isinstance(value, list) else []
    return [each for each in found[:most] if isinstance(each, dict)]
