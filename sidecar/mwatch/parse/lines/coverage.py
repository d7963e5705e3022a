# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How many iterations a line speaks for, and which line is the first of its process.

Megatron averages over the iterations since the last reset. From core_v0.16 on the first
iteration of a process is printed without a reset (NVIDIA/Megatron-LM#6237), so the next line
includes it again; a later upstream fix resets. Both are told apart by arithmetic: a mean that
includes a slow first step cannot be smaller than that step divided by the iterations.
"""

from __future__ import annotations

from typing import NamedTuple


class Cover(NamedTuple):
    covers: int | None
    first_of_process: bool


class Coverage:
    """State of one file. Iterations are fed in the order in which they were printed."""

    def __init__(self) -> None:
        self.log_interval: int | None = None
        self._starting = False
        self._base: int | None = None
        self._previous: int | None = None
        self._last = Cover(None, False)
        self._unreset: tuple[int, float | None] | None = None
        self._skipped_samples = 0

    def process_started(self, log_interval: int | None = None) -> None:
        """A line was read that only a starting process prints."""
        if not self._starting:
            self._starting, self._base = True, None
        if log_interval is not None:
            self.log_interval = log_interval if log_interval > 0 else None

    def resumes_from(self, iteration: int) -> None:
        self._starting, self._base = True, iteration

    def step(
        self,
        iteration: int,
        elapsed_ms: float | None = None,
        *,
        keeps_first: bool = False,
        skipped_samples: int = 0,
        batch_size: int | None = None,
    ) -> Cover:
        """`keeps_first`: this release prints the first iteration without a reset."""
        if iteration == self._previous and not self._starting:
            return self._last  # several ranks, or two collectors, printed the same step
        restarted = self._previous is not None and iteration < self._previous
        jumped = (skipped_samples - self._skipped_samples) // (batch_size or 1)
        if self._starting or restarted or (self._previous is None and iteration == 1):
            cover = self._first(iteration, elapsed_ms, keeps_first=keeps_first)
        elif self._unreset:
            cover = Cover(self._second(iteration, elapsed_ms, max(0, jumped)), False)
            self._unreset = None
        else:
            cover = Cover(self._later(iteration, max(0, jumped)), False)
        self._previous, self._last = iteration, cover
        self._skipped_samples = skipped_samples
        return cover

    @property
    def steady(self) -> int | None:
        """The last iteration, where the next lines simply cover what lies between them."""
        return None if self._starting or self._unreset else self._previous

    def advance(self, last: int, covers: int) -> None:
        """Several steady lines were read at once; these are the last one's values."""
        self._previous, self._last = last, Cover(covers, False)

    def _first(self, iteration: int, elapsed_ms: float | None, *, keeps_first: bool) -> Cover:
        base = 0 if iteration == 1 else self._base
        off_interval = self.log_interval is not None and iteration % self.log_interval != 0
        if keeps_first or off_interval:
            covers = 1 if base is None or iteration == base + 1 else None
            self._unreset = (iteration, elapsed_ms) if covers else None
        else:
            covers = iteration - base if base is not None and base < iteration else None
            self._unreset = None
        self._starting, self._base = False, None
        return Cover(covers, True)

    def _second(self, iteration: int, elapsed_ms: float | None, jumped: int) -> int:
        assert self._unreset is not None
        first, first_ms = self._unreset
        interval = self.log_interval
        if interval and not jumped and iteration > (first // interval + 1) * interval:
            return min(iteration - first, interval)  # the line that counted it in was lost
        including = iteration - first + 1
        if first_ms and elapsed_ms is not None and elapsed_ms * including < first_ms * 0.99:
            return including - 1  # the fixed release: the first step is not in this mean
        return including

    def _later(self, iteration: int, jumped: int) -> int | None:
        if self._previous is None:
            return None
        covers = iteration - self._previous - jumped
        if self.log_interval is not None and not jumped:
            covers = min(covers, self.log_interval)  # a line in between was lost
        return max(covers, 1)
