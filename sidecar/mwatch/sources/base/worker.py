# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A call that may never come back, in a thread of its own.

A network file system that has lost its server holds whoever touches it, and no signal or time
limit frees the thread. So one call is out at a time, whoever asks gets an answer at once, and the
thread is a daemon: it does not keep the process from ending.

A look that is taken aside every so often: whoever reads never waits for it.

What a look found is given once; in between there is nothing new. A look that failed stays the
last word until the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from mwatch.model.reading import Absent, Failed, Reading

T = TypeVar("T")


class Worker(Generic[T]):
    def __init__(
        self,
        name: str,
        call: Callable[[], Reading[T]],
        *,
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._call = call
        self._limit = limit_seconds
        self._clock = clock
        self._done = threading.Event()
        self._done.set()
        self._since = 0.0
        self._answer: Reading[T] | None = None

    @property
    def is_busy(self) -> bool:
        return not self._done.is_set()

    def start(self) -> bool:
        """False where the last call is still out."""
        if self.is_busy:
            return False
        self._done.clear()
        self._since = self._clock()
        threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return True

    def wait(self, seconds: float) -> bool:
        """Whether no call is out, or it came back in time."""
        return self._done.wait(seconds)

    def take(self) -> Reading[T] | None:
        """The answer, once; None: there is none yet, and it is not late either."""
        if self.is_busy:
            waited = self._clock() - self._since
            return Failed(f"no answer for {waited:.0f} s") if waited > self._limit else None
        answer, self._answer = self._answer, None
        return answer

    def _run(self) -> None:
        try:
            self._answer = self._call()
        except FileNotFoundError as error:
            self._answer = Absent(f"{error.filename}: no such file or folder")
        except (OSError, ValueError) as error:
            self._answer = Failed(str(error) or type(error).__name__)
        finally:
            self._done.set()


class Periodic(Generic[T]):
    def __init__(
        self,
        name: str,
        look: Callable[[], Reading[T]],
        *,
        period: Callable[[], float],
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`period` is asked at the beginning of each look for how long the next one waits."""
        self._period = period
        self._clock = clock
        self._next_at = clock()
        self._worker: Worker[T] = Worker(name, look, limit_seconds=limit_seconds, clock=clock)
        self.last: Reading[T] = Absent("not looked at yet")

    def news(self) -> Reading[T] | None:
        """What the look that has just ended found; begins the next one when it is due."""
        answer = self._worker.take()
        if answer is not None:
            self.last = answer
        if not self._worker.is_busy and self._clock() >= self._next_at:
            self._begin()
        return answer

    def news_now(self, seconds: float) -> Reading[T] | None:
        """A fresh look; waits for it, for at most so long."""
        until = self._clock() + seconds
        if self._worker.wait(seconds):
            self._begin()
            self._worker.wait(max(0.0, until - self._clock()))
        answer = self._worker.take()
        if answer is not None:
            self.last = answer
        return answer

    def _begin(self) -> None:
        self._next_at = self._clock() + self._period()
        self._worker.start()
