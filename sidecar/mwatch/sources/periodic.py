# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A look that is taken aside every so often: whoever reads never waits for it.

What a look found is given once; in between there is nothing new. A look that failed stays the
last word until the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from mwatch.model.reading import Absent, Reading
from mwatch.sources.worker import Worker

T = TypeVar("T")


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
