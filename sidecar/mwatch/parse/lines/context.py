# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""State shared by the recognisers of one file: flavour, coverage of step lines, open blocks.

A recogniser reads one line. Text that spans several lines (a traceback, the argument block) is a
`Block`, opened by its first line and fed with the following lines of the same lane.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from mwatch.model.event import Error, Event, Flavour, Iteration
from mwatch.parse.lines.line import Line, stamp

MAX_TEXT = 2000  # maximum length of any text in an event


class Cover(NamedTuple):
    covers: int | None
    first_of_process: bool


class Coverage:
    """Tracks how many iterations each line covers, and which line is the first of its process.

    Megatron averages over the iterations since the last reset. From core_v0.16 on, the first
    iteration of a process is printed without a reset (NVIDIA/Megatron-LM#6237), so the next line
    includes it again; a later fix does reset. The values distinguish the two: a mean that includes
    a slow first step cannot be smaller than that step divided by the number of iterations.
    """

    def __init__(self) -> None:
        self.log_interval: int | None = None
        self._starting = False
        self._base: int | None = None
        self._previous: int | None = None
        self._last = Cover(None, False)
        self._writer = ""
        self._unreset: tuple[int, float | None] | None = None
        self._skipped_samples = 0

    def process_started(self, log_interval: int | None = None) -> None:
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
        writer: str = "",
    ) -> Cover:
        """Count one step line. `keeps_first`: this release does not reset after the first one."""
        is_other, self._writer = writer != self._writer, writer
        if iteration == self._previous and not self._starting:
            # Several ranks, two collectors, or DeepSpeed beside Megatron printed the same step.
            return self._last._replace(first_of_process=False) if is_other else self._last
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
        """The last iteration, if each next line covers the iterations since the line before it."""
        return None if self._starting or self._unreset else self._previous

    def advance(self, last: int, covers: int) -> None:
        """Record that several steady lines were read at once, with the values of the last one."""
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
            return min(iteration - first, interval)  # the line that included it was lost
        including = iteration - first + 1
        if first_ms and elapsed_ms is not None and elapsed_ms * including < first_ms * 0.99:
            return including - 1  # a release with the fix: the first step is not in this mean
        return including

    def _later(self, iteration: int, jumped: int) -> int | None:
        if self._previous is None:
            return None
        covers = iteration - self._previous - jumped
        if self.log_interval is not None and not jumped:
            covers = min(covers, self.log_interval)  # a line in between was lost
        return max(covers, 1)


class LoopState:
    """Progress of a training loop without a format of its own."""

    def __init__(self) -> None:
        self.bar: int | None = None  # count of the last progress bar without a loss
        self.total: int | None = None  # total steps, from a bar labelled as training
        self.has_steps = False
        self._by_epoch = False
        self.announced = 1  # the epoch announced by a separate line (Keras)
        self._writer: str | None = None
        self._last = 0
        self._epoch = 0
        self._before = 0  # steps of earlier epochs
        self._printed = 0

    def is_writer(self, lane: str) -> bool:
        return self._writer is None or lane == self._writer

    def accepts(self, lane: str, count: int) -> bool:
        """Whether a step is new; a writer other than the first must be ahead of it."""
        if not self.is_writer(lane) and count <= self._last:
            return False
        self._writer = lane if self._writer is None else self._writer
        self._last, self.has_steps = count, True
        return True

    def counts_epochs(self) -> bool:
        """Whether an epoch counts as a step because nothing smaller is printed."""
        self._by_epoch = self._by_epoch or not self.has_steps
        return self._by_epoch

    def next(self) -> int:
        return self.bar if self.bar is not None and self.bar > self._last else self._last + 1

    def continued(self, printed: int, epoch: int | None) -> int:
        """Return the count over all epochs where the printed one restarts with each epoch."""
        if epoch is not None and epoch != self._epoch:
            if epoch > self._epoch and printed < self._printed:
                self._before += self._printed
            self._epoch = epoch
        self._printed = printed
        return self._before + printed


class Block(ABC):
    tolerates = 0  # foreign lines in a row that do not yet close the block
    patience = 500  # lines of the file that the block waits for its next line
    survives = False
    """Whether another block may begin inside: one process writes two streams into one lane."""
    any_lane = False  # whether its next line may lack the prefix of the first one
    done = False  # the last line fed was the last of the block

    @abstractmethod
    def feed(self, line: Line) -> bool:
        """Return whether the line belongs to the block; if not, the recognisers read it."""

    @abstractmethod
    def finish(self) -> Iterable[Event]: ...


class Context:
    def __init__(self, file: str, flavour: Flavour | None) -> None:
        self.file = file
        self.forced = flavour
        self.hint: Flavour | None = None
        self.coverage = Coverage()
        self.version: str | None = None
        self.async_save: bool | None = None
        self.scheduled: set[int] = set()
        """Iterations whose asynchronous save was queued but not yet confirmed."""
        self.exit_code: int | None = None  # of the last worker that torchrun reported as failed
        self.reported_at = -math.inf  # the last line on which a launcher reported an end
        self.prints_iterations = False  # Megatron's iteration line was seen
        self.loop = LoopState()
        self.ignored_line = -9  # line of the last announcement of a harmless traceback
        self.opened: Block | None = None
        """Set by a recogniser; the reader moves it into the line's lane."""

    @property
    def flavour(self) -> Flavour | None:
        return self.forced or self.hint

    def step(
        self, line: Line, iteration: int, total: int | None, flavour: Flavour, **values: Any
    ) -> Iteration:
        """Build an iteration event of a flavour that is not printed in `key: value |` segments."""
        cover = self.coverage.step(iteration, writer=flavour)
        blank = Iteration(
            iteration, total, None, None, None, None, None, {}, None, None, None, None, None,
            None, None, cover.covers, cover.first_of_process, {}, line.rank, self.file,
            line.number, self.forced or flavour,
        )  # fmt: skip
        return blank._replace(**values)

    def error(self, line: Line, **values: Any) -> Error:
        blank = Error(
            "launcher", None, "", None, None, None, None, None, None, None, None, None, None,
            stamp(line.text), line.rank, self.file, line.number,
        )  # fmt: skip
        return blank._replace(**values)


class Recogniser(NamedTuple):
    """Reads the lines that match one of `triggers`.

    Triggers are searched in whole blocks at memory speed, so each needs a literal and must not be
    open-ended. `flavours`: those whose step lines it reads; empty: lines common to all. `inert`:
    triggers of lines that do not change how step lines are read.
    """

    triggers: tuple[str, ...]
    read: Callable[[Line, Context], Iterable[Event]]
    flavours: frozenset[str] = frozenset()
    inert: frozenset[str] = frozenset()
