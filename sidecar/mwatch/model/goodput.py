# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the wall time of a job went, over all its attempts. The parts add up to the whole.

`GoodputLedger` holds the time that is accounted for: up to the last iteration line, the last
change of phase, or the end of an attempt. The time since then is open. `state.goodput` reads it
at any moment as `TimeSpent`, without a change to the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from mwatch.model.phase import JobPhase
from mwatch.model.settings import SlowSettings
from mwatch.stats import MonotonicCounters


class Spent(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    LOADING = "loading"
    FIRST_STEP = "first_step"
    """What the first step of a process takes above a usual one."""
    TRAINING = "training"
    """The only good part: sound iterations, done for the first time, at usual speed."""
    SAVING = "saving"
    EVALUATING = "evaluating"
    HANG_UNDETECTED = "hang_undetected"
    DETECTING = "detecting"
    WAITING_TO_ACT = "waiting_to_act"
    RESTARTING = "restarting"
    """From the end of an attempt, or the error that ends it, to the first word of the next."""
    RECOMPUTED = "recomputed"
    """Iterations that an earlier attempt had done."""
    BAD_STEPS = "bad_steps"
    """Iterations that trained nothing: the loss was NaN or infinite, or the update was skipped."""
    SLOW = "slow"
    """What steps took above the usual."""
    IDLE = "idle"
    """Nobody can tell: a gap that nothing explains, or the time after training was done."""


Parts = dict[Spent, float]


def nothing() -> Parts:
    return dict.fromkeys(Spent, 0.0)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """All wall time of a job up to one moment."""

    seconds: Mapping[Spent, float] = field(default_factory=nothing)
    gpu_seconds: Mapping[Spent, float] = field(default_factory=nothing)
    """Weighted by the world size that was known then; 1 while none was ever known."""

    @property
    def wall_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """Share of wall time that was good; None before any time has passed."""
        wall = self.wall_seconds
        return self.seconds[Spent.TRAINING] / wall if wall > 0 else None

    def raised(self, highest: MonotonicCounters, job: str = "") -> Parts:
        """The seconds as counters: time booked anew as something else does not make one fall."""
        return {spent: highest.raised(job, spent, each) for spent, each in self.seconds.items()}


class StepShares(NamedTuple):
    """How much of a few steps was something else than good."""

    redone: float = 0.0
    """Of the sound iterations: those that had been done before."""
    bad: float = 0.0

    @property
    def good(self) -> float:
        return (1 - self.bad) * (1 - self.redone)


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
    shares: StepShares
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
    """Iteration that was reached by sound steps, as lines show or as the time allows."""
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
    unobserved_seconds: float = 0.0
    """Likely worked on between the last word of an attempt and its end, which nobody saw."""
    loss_name: str | None = None
    """Of the loss that lines print. Megatron leaves out a mean that is NaN."""
    is_bad: bool = False
    """The last line holds no sound iteration."""
    slow_lines: int = 0
    slow_iterations: float = 0
    is_slow: bool = False
    """The last line was."""
    slow_seconds: float = 0.0
    """Of lines in a row that may be the begin of a slow time, or chance."""

    def start_over(self) -> None:
        """A new attempt: what went on in the last one is over."""
        self.redone_until = self.furthest
        self.is_bad = False
        self.owed = self.first_step_seconds = 0.0
        self.spare = {}
        self.slow_lines = self.slow_iterations = 0
        self.is_slow = False
        self.slow_seconds = 0.0


@dataclass(slots=True)
class GoodputLedger:
    started_at: float | None = None
    booked: Parts = field(default_factory=nothing)
    """Time up to `booked_at`. Rarely a little of it turns out to be something else: what steps
    were first steps or slow, and lines that were late."""
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

    def begin(self, at: float) -> None:
        self.started_at = self.booked_at = at

    def weigh(self, world_size: int | None) -> None:
        """What was booked before the size was known was time of that many GPUs too."""
        if world_size is None or world_size < 1 or world_size == self.world_size:
            return
        if self.world_size is None:
            self.booked_gpu = {spent: each * world_size for spent, each in self.booked.items()}
        self.world_size = world_size

    def book(self, parts: Mapping[Spent, float], until: float) -> None:
        """`parts` is how the time from `booked_at` to `until` was spent, all of it."""
        weight = self.world_size or 1
        for spent, seconds in parts.items():
            self.booked[spent] += seconds
            self.booked_gpu[spent] += seconds * weight
        self.booked_at = until

    def move(self, source: Spent, target: Spent, seconds: float) -> None:
        """What had been booked as `source` has turned out to be `target`."""
        seconds = min(seconds, self.booked[source])
        share = seconds / self.booked[source] if self.booked[source] > 0 else 0.0
        weighed = self.booked_gpu[source] * share
        for booked, amount in ((self.booked, seconds), (self.booked_gpu, weighed)):
            booked[source] = max(0.0, booked[source] - amount)
            booked[target] += amount

    def with_open(self, parts: Mapping[Spent, float], world_size: int | None) -> TimeSpent:
        """What is booked, and the open time as `parts`; changes nothing."""
        size = world_size if world_size and world_size > 0 else self.world_size
        if self.world_size is None:
            weighed = {spent: each * (size or 1) for spent, each in self.booked.items()}
        else:
            weighed = dict(self.booked_gpu)
        seconds = dict(self.booked)
        for spent, each in parts.items():
            seconds[spent] += each
            weighed[spent] += each * (size or 1)
        return TimeSpent(seconds, weighed)
