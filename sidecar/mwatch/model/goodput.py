# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the wall time of a job went, over all its attempts. The parts add up to the whole.

`GoodputLedger` holds the booked time: up to the last iteration line, phase change or end of an
attempt. The time since then is open; `state.goodput` classifies it at any moment as `TimeSpent`.
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
    FIRST_STEP = "first_step"  # the excess of a process's first step over a usual one
    TRAINING = "training"  # the only good part: sound iterations, not repeated, at usual speed
    SAVING = "saving"
    EVALUATING = "evaluating"
    HANG_UNDETECTED = "hang_undetected"
    DETECTING = "detecting"
    WAITING_TO_ACT = "waiting_to_act"
    RESTARTING = "restarting"  # from the end of an attempt, or its error, to the next one
    RECOMPUTED = "recomputed"  # iterations that an earlier attempt had done
    BAD_STEPS = "bad_steps"  # iterations with a NaN or infinite loss, or a skipped update
    SLOW = "slow"  # the excess of slow steps over the usual step
    IDLE = "idle"  # unexplained, or after training was done


Parts = dict[Spent, float]


def nothing() -> Parts:
    return dict.fromkeys(Spent, 0.0)


@dataclass(frozen=True, slots=True)
class TimeSpent:
    seconds: Mapping[Spent, float] = field(default_factory=nothing)
    gpu_seconds: Mapping[Spent, float] = field(default_factory=nothing)
    """Weighted by the world size known at the time; 1 if none was ever known."""

    @property
    def wall_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float | None:
        """Share of wall time that was good; None before any time has passed."""
        wall = self.wall_seconds
        return self.seconds[Spent.TRAINING] / wall if wall > 0 else None

    def raised(self, highest: MonotonicCounters, job: str = "") -> Parts:
        """Return the seconds as counters, which never decrease when time is reclassified."""
        return {spent: highest.raised(job, spent, each) for spent, each in self.seconds.items()}


class StepShares(NamedTuple):
    redone: float = 0.0  # share of the sound iterations that had been done before
    bad: float = 0.0

    @property
    def good(self) -> float:
        return (1 - self.bad) * (1 - self.redone)


class BookedStall(NamedTuple):
    detected_at: float
    decided_at: float | None


class Head(NamedTuple):
    """A phase that ended because steps were done; a line at the same time includes that phase."""

    spent: Spent
    ended_at: float


class Unjudged(NamedTuple):
    """Steps that were booked before the usual step was known."""

    iterations: int
    booked_as: Spent  # FIRST_STEP or TRAINING
    above_is: Spent  # what is above the usual: FIRST_STEP or SLOW
    seconds: float
    shares: StepShares
    batch_size: int | None


class Guess(NamedTuple):
    """Steps classified by a guess after few lines; the moves are undone once the pace is known."""

    steps: list[Unjudged]
    moved: list[tuple[Spent, Spent, float]]


class UnknownReach(NamedTuple):
    """How long an attempt worked after its last line, at an unknown pace."""

    reported: float
    seconds: float


class BookedSpan(NamedTuple):
    """A save or an evaluation that has ended; of length 0 if its length is unknown."""

    spent: Spent
    begin: float
    end: float


@dataclass(slots=True)
class Open:
    """What happened since the last booked moment."""

    phase: JobPhase = JobPhase.STARTING
    phase_began: float = 0.0
    spans: list[BookedSpan] = field(default_factory=list)  # a line may be later than its save
    evaluations: int = 0
    head: Head | None = None
    stall: BookedStall | None = None


@dataclass(slots=True)
class StepPace:
    """The pace of the job, to classify time without a line."""

    step_seconds: float | None = None  # the smaller of the two newest lines
    newest_seconds: float | None = None
    interval: int | None = None  # iterations from line to line
    owed: float = 0.0
    """Printed seconds of steps in excess of the time since the line before: timestamps are cut to
    seconds, and lines wait in buffers."""
    furthest: float = 0.0  # iteration reached by sound steps, by lines or by time
    redone_until: float = 0.0  # iterations up to here were done by earlier attempts
    unjudged: list[Unjudged] = field(default_factory=list)  # bounded; the rest stays as booked
    guess: Guess | None = None
    unknown_reach: UnknownReach | None = None
    first_step_seconds: float = 0.0  # booked before the first line of this attempt
    spare: Parts = field(default_factory=dict)  # may be training: its lines may be in a buffer
    unobserved_seconds: float = 0.0  # likely worked between the last line and an unobserved end
    loss_name: str | None = None  # of the printed loss; Megatron leaves out a mean that is NaN
    is_bad: bool = False  # the last line has no sound iteration
    slow_lines: int = 0
    slow_iterations: float = 0
    is_slow: bool = False  # the last line was slow
    slow_seconds: float = 0.0  # of consecutive lines that may begin a slow period, or be chance

    def start_over(self) -> None:
        """Forget what belongs to the last attempt."""
        self.redone_until = self.furthest
        self.is_bad = self.is_slow = False
        self.owed = self.first_step_seconds = self.slow_seconds = 0.0
        self.spare = {}
        self.slow_lines = self.slow_iterations = 0


@dataclass(slots=True)
class GoodputLedger:
    started_at: float | None = None
    booked: Parts = field(default_factory=nothing)
    """Time up to `booked_at`; late lines and later reclassification move a little of it."""
    booked_gpu: Parts = field(default_factory=nothing)
    booked_at: float = 0.0
    world_size: int | None = None
    is_closed: bool = False  # the attempt is over, and the next has not begun
    is_over: bool = False  # training is done: later time counts only if another attempt starts
    open: Open = field(default_factory=Open)
    pace: StepPace = field(default_factory=StepPace)
    slow_ratio: float = SlowSettings().ratio

    @property
    def guessed_seconds(self) -> float:
        """Seconds attributed by estimate, because too few lines have shown the pace yet."""
        return sum(each.seconds for each in self.pace.guess.steps) if self.pace.guess else 0.0

    def begin(self, at: float) -> None:
        self.started_at = self.booked_at = at

    def weigh(self, world_size: int | None) -> None:
        """Set the world size, also for what was booked before it was known."""
        if world_size is None or world_size < 1 or world_size == self.world_size:
            return
        if self.world_size is None:
            self.booked_gpu = {spent: each * world_size for spent, each in self.booked.items()}
        self.world_size = world_size

    def book(self, parts: Mapping[Spent, float], until: float) -> None:
        """Book all of the time from `booked_at` to `until`."""
        weight = self.world_size or 1
        for spent, seconds in parts.items():
            self.booked[spent] += seconds
            self.booked_gpu[spent] += seconds * weight
        self.booked_at = until

    def move(self, source: Spent, target: Spent, seconds: float) -> None:
        """Reclassify booked time."""
        seconds = min(seconds, self.booked[source])
        share = seconds / self.booked[source] if self.booked[source] > 0 else 0.0
        weighed = self.booked_gpu[source] * share
        for booked, amount in ((self.booked, seconds), (self.booked_gpu, weighed)):
            booked[source] = max(0.0, booked[source] - amount)
            booked[target] += amount

    def with_open(self, parts: Mapping[Spent, float], world_size: int | None) -> TimeSpent:
        """Return what is booked plus the open time as `parts`; changes nothing."""
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
