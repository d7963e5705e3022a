# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Internal errors of mwatch, which are reported without stopping the training, and the CPU and
memory that mwatch uses.

Each source line is reported once; an error in every evaluation would be printed twice a second.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MAX_PLACES = 64
_MAX_WORDS = 300


class InternalErrors:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._places: set[str] = set()
        self.count = 0

    @contextmanager
    def guard(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.report(error)

    def report(self, error: Exception) -> None:
        self.count += 1
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        if place in self._places or len(self._places) >= _MAX_PLACES:
            return
        self._places.add(place)
        text = f"{type(error).__name__}: {error}"[:_MAX_WORDS]
        self._say(f"mwatch failed at {place} ({text}): please report it; the training goes on")


_PAGE = os.sysconf("SC_PAGE_SIZE")


class OwnUse:
    def __init__(self, started_at: float, statm: str = "/proc/self/statm") -> None:
        self.started_at = started_at
        self._statm = statm

    def cpu_seconds(self) -> float:
        return time.process_time()

    def resident_bytes(self) -> float | None:
        try:
            with open(self._statm, "rb") as file:
                return float(int(file.read(256).split()[1]) * _PAGE)
        except (OSError, ValueError, IndexError):
            return None


_SWITCH_SECONDS = 0.001
_OBJECTS = 50_000, 20, 50
"""Arguments of `gc.set_threshold`."""


def tune_process() -> None:
    """Tune garbage collection, thread switching and open files for thousands of pods.

    Objects of pods live for days, so the garbage collector need not scan them often. The thread
    that receives from the pods must not wait for the one that evaluates them.
    """
    gc.freeze()
    gc.set_threshold(*_OBJECTS)
    sys.setswitchinterval(_SWITCH_SECONDS)
    allow_open_files()


def allow_open_files() -> None:
    """Raise the limit of open files to the hard limit: each pod takes one connection, and the usual
    limit of a shell or of systemd is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # a container may forbid it; pods beyond the limit fail
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
