# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the wall time of a job went, over all its attempts. The parts add up to the whole.

Time is booked for good when an iteration line, a phase or the end of an attempt tells what it
was. What is open is shown in `seconds` as it looks now, and may look different later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from mwatch.model.phase import JobPhase
from mwatch.model.settings import SlowSettings


class Spent(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    LOADING = "loading"
    FIRST_STEP = "first_step"
    """What the first step of a process takes above a usual one."""
    TRAINING = "training"
    """The only good part: iterations that were done for the first time, at usual speed."""
    SAVING = "saving"
    EVALUATING = "evaluating"
    HANG_UNDETECTED = "hang_undetected"
    DETECTING = "detecting"
    WAITING_TO_ACT = "waiting_to_act"
    RESTARTING = "restarting"
    """From the end of an attempt, or the error that ends it, to the first word of the next."""
    RECOMPUTED = "recomputed"
    """Iterations that an earlier attempt had done."""
    SLOW = "slow"
    """What steps took above the usual."""
    IDLE = "idle"
    """Nobody can tell: a gap that nothing explains, or the time after training was done."""


Parts = dict[Spent, float]


def nothing() -> Parts:
    return dict.fromkeys(Spent, 0.0)


class BookedStall(NamedTuple):
    detected_at: float
    decided_at: float | None


class Head(NamedTuple):
    """The phase that ended with the news that steps are done: a line of that very moment tells
    how much of it was steps."""

    spent: Spent
    ended_at: float


class Unjudged(NamedTuple):
    """Steps that were booked before anybody knew how long a usual step takes."""

    iterations: int
    booked_as: Spent
    """FIRST_STEP or TRAINING."""
    above_is: Spent
    """What is above the usual: FIRST_STEP or SLOW."""
    seconds: float
    redone: float
    """Share of the iterations that had been done before."""
    batch_size: int | None


class Guess(NamedTuple):
    """Steps that were told apart by a guess, for too few lines have shown the pace yet: what was
    moved is moved back when they do."""

    steps: list[Unjudged]
    moved: list[tuple[Spent, Spent, float]]


class UnknownReach(NamedTuple):
    """An attempt worked for so long after its last line, at a pace that nobody knew."""

    reported: float
    seconds: float


class BookedSpan(NamedTuple):
    """A save or an evaluation that has ended; as long as nothing: nobody said how long."""

    spent: Spent
    begin: float
    end: float


@dataclass(slots=True)
class Open:
    """What has happened since the last booked moment."""

    phase: JobPhase = JobPhase.STARTING
    phase_began: float = 0.0
    spans: list[BookedSpan] = field(default_factory=list)
    """With their times: a line may come later than the save that followed it."""
    evaluations: int = 0
    head: Head | None = None
    stall: BookedStall | None = None


@dataclass(slots=True)
class StepPace:
    """How the job gets on, to tell what time without a line was."""

    step_seconds: float | None = None
    """The smaller of the two newest lines."""
    newest_seconds: float | None = None
    interval: int | None = None
    """Iterations from line to line."""
    owed: float = 0.0
    """Training that lines have told of and that had no room in the time since the line before:
    stamps are cut to seconds, and lines wait in buffers."""
    furthest: float = 0.0
    """Iteration that was reached, by lines or by what the time allows."""
    redone_until: float = 0.0
    """Iterations up to here were done by earlier attempts."""
    unjudged: list[Unjudged] = field(default_factory=list)
    """A few; what is too much stays as it was booked."""
    guess: Guess | None = None
    unknown_reach: UnknownReach | None = None
    first_step_seconds: float = 0.0
    """Booked for the first step of this attempt, before its first line."""
    spare: Parts = field(default_factory=dict)
    """What may turn out to be training: lines that tell of it may still wait in a buffer."""
    unseen_seconds: float = 0.0
    """Likely worked on between the last word of an attempt and its end, which nobody saw."""
    slow_lines: int = 0
    slow_iterations: float = 0
    is_slow: bool = False
    """The last line was."""
    slow_seconds: float = 0.0
    """Of lines in a row that may be the begin of a slow time, or chance."""

    def start_over(self, redone_until: float) -> None:
        """A new attempt: what went on in the last one is over."""
        self.redone_until = redone_until
        self.owed = self.first_step_seconds = 0.0
        self.spare = {}
        self.slow_lines = self.slow_iterations = 0
        self.is_slow = False
        self.slow_seconds = 0.0


@dataclass(slots=True)
class GoodputLedger:
    seconds: Parts = field(default_factory=nothing)
    started_at: float | None = None
    settled_at: float | None = None
    """Time up to here is in `seconds`; later time is still open."""
    gpu_seconds: Parts = field(default_factory=nothing)
    """Weighted by the world size that was known then; 1 while none was ever known."""
    booked: Parts = field(default_factory=nothing)
    """The part of `seconds` that is known. Rarely a little of it turns out to be something else:
    what steps were first steps or slow, and lines that were late."""
    booked_gpu: Parts = field(default_factory=nothing)
    booked_at: float = 0.0
    world_size: int | None = None
    is_closed: bool = False
    """The attempt is over, and the next has not begun."""
    is_over: bool = False
    """Training is done: from here on no time passes for the job."""
    open: Open = field(default_factory=Open)
    pace: StepPace = field(default_factory=StepPace)
    slow_ratio: float = SlowSettings().ratio

    @property
    def guessed_seconds(self) -> float:
        """Of which nobody can tell yet what was steps and what the first step: the job has not
        shown its pace in more than a few lines."""
        return sum(each.seconds for each in self.pace.guess.steps) if self.pace.guess else 0.0

    @property
    def wall_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """Share of wall time that was good; None before any time has passed."""
        wall = self.wall_seconds
        return self.seconds[Spent.TRAINING] / wall if wall > 0 else None

    def begin(self, at: float) -> None:
        self.started_at = self.booked_at = self.settled_at = at

    def weigh(self, world_size: int | None) -> None:
        """What was booked before the size was known was time of that many GPUs too."""
        if world_size is None or world_size < 1 or world_size == self.world_size:
            return
        if self.world_size is None:
            for spent, seconds in self.booked.items():
                self.booked_gpu[spent] = self.gpu_seconds[spent] = seconds * world_size
        self.world_size = world_size

    def book(self, parts: Mapping[Spent, float], until: float) -> None:
        """`parts` is how the time from `booked_at` to `until` was spent, all of it."""
        self._forget_open()
        weight = self.world_size or 1
        for spent, seconds in parts.items():
            self.booked[spent] += seconds
            self.booked_gpu[spent] += seconds * weight
            self.seconds[spent] = self.booked[spent]
            self.gpu_seconds[spent] = self.booked_gpu[spent]
        self.booked_at = self.settled_at = until

    def book_all(self, spent: Spent, until: float) -> None:
        """All of the time from `booked_at` to `until` was one thing."""
        self._forget_open()
        seconds = until - self.booked_at
        booked, weighed = self.booked, self.booked_gpu
        self.seconds[spent] = booked[spent] = booked[spent] + seconds
        total = weighed[spent] + seconds * (self.world_size or 1)
        self.gpu_seconds[spent] = weighed[spent] = total
        self.booked_at = self.settled_at = until

    def carry_on(self, spent: Spent, seconds: float, gpu_seconds: float, until: float) -> None:
        """As many turns of `book_all`, which have brought what is booked to these sums."""
        self._forget_open()
        self.seconds[spent] = self.booked[spent] = seconds
        self.gpu_seconds[spent] = self.booked_gpu[spent] = gpu_seconds
        self.booked_at = self.settled_at = until

    def move(self, source: Spent, target: Spent, seconds: float) -> None:
        """What had been booked as `source` has turned out to be `target`."""
        self._forget_open()
        seconds = min(seconds, self.booked[source])
        share = seconds / self.booked[source] if self.booked[source] > 0 else 0.0
        weighed = self.booked_gpu[source] * share
        for booked, shown, amount in (
            (self.booked, self.seconds, seconds),
            (self.booked_gpu, self.gpu_seconds, weighed),
        ):
            booked[source] = max(0.0, booked[source] - amount)
            booked[target] += amount
            shown[source], shown[target] = booked[source], booked[target]

    def show(self, parts: Mapping[Spent, float], until: float) -> None:
        """As `book`, but not for good."""
        self._forget_open()
        weight = self.world_size or 1
        for spent, seconds in parts.items():
            self.seconds[spent] = self.booked[spent] + seconds
            self.gpu_seconds[spent] = self.booked_gpu[spent] + seconds * weight
        self.settled_at = until

    def _forget_open(self) -> None:
        if self.settled_at != self.booked_at:
            self.seconds.update(self.booked)
            self.gpu_seconds.update(self.booked_gpu)
            self.settled_at = self.booked_at
