# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Iteration lines as steps of an attempt: one by one, or many as columns of numbers."""

from __future__ import annotations

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter, sub
from typing import NamedTuple, SupportsIndex, cast

from mwatch.model.event import Flavour, StepLines


class Step(NamedTuple):
    """An iteration line without double counts."""

    at: float
    iteration: int
    covers: int  # iterations in the averages; at least 1
    new: int  # of these, not in an earlier line of the attempt
    seconds: float | None  # of one iteration, as printed
    losses: Mapping[str, float]
    loss_scale: float | None
    grad_norm: float | None
    learning_rate: float | None
    consumed_samples: int | None
    batch_size: int | None
    skipped: int  # of the `new` iterations
    skipped_printed: int
    nan: int
    throughput_tflops: float | None
    is_first_of_process: bool
    flavour: Flavour
    stream: str
    file: str
    line: int

    @property
    def first_covered(self) -> int:
        return self.iteration - self.covers + 1


class Pace(NamedTuple):
    """The part of a step with the duration of its iterations."""

    seconds: float | None
    batch_size: int | None
    covers: int
    new: int
    is_first_of_process: bool


_STEP: Callable[[Iterable[object]], Step] = partial(tuple.__new__, Step)
_LOSSES = Step._fields.index("losses")
_FIRST = attrgetter("first")
_PACE = attrgetter(*Pace._fields)
_read: Callable[[deque[Step], SupportsIndex], Step | int] = deque.__getitem__


@dataclass(frozen=True)
class PlacedLines:
    """Many iteration lines of one stream, with the time of each; times never decrease."""

    stream: str
    ats: Sequence[float]
    lines: StepLines

    @cached_property
    def gaps(self) -> Sequence[float]:
        """Seconds since the line before; 0 for the first."""
        return list(map(sub, self.ats, (*self.ats[:1], *self.ats)))

    def step(self, index: int) -> Step:
        values = [column[index] for column in self._columns]
        values[_LOSSES] = {name: losses[index] for name, losses in self.lines.losses.items()}
        return _STEP(values)

    def pace(self, index: int) -> Pace:
        lines = self.lines
        seconds = lines.seconds[index] if lines.seconds else None
        covers = lines.covers[index]
        return Pace(seconds, lines.steady.global_batch_size, covers, covers, False)

    @cached_property
    def _columns(self) -> Sequence[Sequence[object]]:
        """Columns by field of `Step`; no line is the first of its process or has double counts."""
        lines, steady, size = self.lines, self.lines.steady, len(self.ats)
        nothing, zeros = [None] * size, [0] * size
        skipped = lines.column("skipped") or zeros
        return (
            self.ats,
            lines.iterations,
            lines.covers,
            lines.covers,
            lines.seconds or nothing,
            nothing,  # see `step`
            lines.column("loss_scale") or nothing,
            lines.column("grad_norm") or nothing,
            lines.column("learning_rate") or nothing,
            lines.column("consumed_samples") or nothing,
            [steady.global_batch_size] * size,
            skipped,
            skipped,
            lines.column("nan") or zeros,
            lines.column("throughput_tflops") or nothing,
            [False] * size,
            [steady.flavour] * size,
            [self.stream] * size,
            [steady.file] * size,
            lines.numbers,
        )


class _LaterSteps(NamedTuple):
    """Lines whose `Step` objects are not created yet: those of `placed` from `begin` on."""

    first: int  # their numbers in the window: from here on, and below `end`
    end: int
    placed: PlacedLines
    begin: int


class StepWindow(deque[Step]):
    """The newest steps of an attempt.

    A long recording adds thousands of lines, of which only a few are ever read: such a step is
    stored as a number and created when it is first read.
    """

    def __init__(self, steps: Iterable[Step] = (), maxlen: int | None = None) -> None:
        super().__init__(steps, maxlen)
        self._later: list[_LaterSteps] = []

    def extend_later(self, placed: PlacedLines, begin: int, end: int) -> None:
        first = self._later[-1].end if self._later else 0
        added = _LaterSteps(first, first + end - begin, placed, begin)
        self.extend(cast(Iterable[Step], range(added.first, added.end)))
        oldest = added.end - len(self)
        self._later = [each for each in self._later if each.end > oldest] + [added]

    def __getitem__(self, index: SupportsIndex, /) -> Step:  # type: ignore[override]
        kept = _read(self, index)
        if isinstance(kept, Step):
            return kept
        placed, line = self._place(kept)
        made = self[index] = placed.step(line)
        return made

    def pace(self, index: int) -> Pace:
        """Return the pace of a step; much faster than `[index]` if the step was never read."""
        kept = _read(self, index)
        if isinstance(kept, Step):
            return Pace(*_PACE(kept))
        placed, line = self._place(kept)
        return placed.pace(line)

    def _place(self, number: int) -> tuple[PlacedLines, int]:
        """Return the lines and the index of the step that this number stands for."""
        later = self._later[-1]
        if number < later.first:
            later = self._later[bisect(self._later, number, key=_FIRST) - 1]
        return later.placed, later.begin + number - later.first

    def __iter__(self) -> Iterator[Step]:
        return map(self.__getitem__, range(len(self)))

    def __reversed__(self) -> Iterator[Step]:
        return map(self.__getitem__, range(len(self) - 1, -1, -1))
