# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The world as it really is at a moment: what every rank does, what was printed, what is true.

Only the trainer and its faults change it. Watchers get their view of it from `probe`,
`witnesses` and `delivery`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from mwatch.model.phase import JobPhase
from mwatch.stats import median
from sim.faults import Fault
from sim.folder import Folder
from sim.shape import Shape


class Posture(NamedTuple):
    """What one rank's process is up to."""

    place: str
    """As the probe calls it: a phase, or collective, data, compute."""
    moves: bool = True
    """Its stack changes."""
    writes: bool = True
    """Its probe still writes: neither stopped, nor dead, nor holding the GIL."""
    is_alive: bool = True
    is_stopped: bool = False
    burns_cpu: bool = True
    """A rank that waits for its GPU spins; one that waits for storage sleeps."""
    uses_gpu: bool = True
    is_traced: bool = False
    """A debugger holds it."""
    collective: str = "in"
    """Where it stands in the current collective: in, absent (has not come), other, none."""


STARTING = Posture("starting")


class Printed(NamedTuple):
    at: float
    text: str


class Ended(NamedTuple):
    """How the command of one pod ended."""

    pod: int
    at: float
    code: int | None
    signal: str | None
    reason: str | None


@dataclass(slots=True)
class Incident:
    """A fault that has struck: the truth that verdicts are held against."""

    fault: Fault
    at: float
    attempt: int
    phase: JobPhase
    iteration: int
    """That was being worked on."""
    healed_at: float | None = None


_NEIGHBOURS = 8


@dataclass(slots=True)
class Done:
    """What was really achieved, for the truth about goodput."""

    best: int = 0
    good_seconds: float = 0.0
    """Sound iterations that were done for the first time, at their usual speed."""
    doubtful_seconds: float = 0.0
    """Of these: the usual part of first steps, and what single steps of a heavy tail took above
    the others. Whether that is good time is a matter of reading."""
    unprinted_good: float = 0.0
    """Of good time, and of steps that trained nothing: since the last line. A mean that is NaN
    hides the good steps before it, and an attempt that dies before its line hides the bad ones."""
    unprinted_bad: float = 0.0
    paused_seconds: float = 0.0
    """Pauses too short to be told from a long step, and bad steps that no line shows."""
    steps: list[float] = field(default_factory=list)
    """Usual seconds of each step, without stalls."""
    first_steps: list[tuple[int, float]] = field(default_factory=list)
    """Of each process whose first step was good time: how many `steps` there were before it, and
    its usual part."""

    def add(self, iteration: int, seconds: float, *, is_sound: bool, doubtful: float) -> None:
        if not is_sound:
            self.unprinted_bad += seconds
        elif iteration > self.best:
            self.best = iteration
            self.good_seconds += seconds
            self.doubtful_seconds += doubtful
            self.unprinted_good += seconds - doubtful

    def printed(self, loss: float | None) -> None:
        if loss is not None and not math.isfinite(loss):
            self.doubtful_seconds += self.unprinted_good
        self.unprinted_good = self.unprinted_bad = 0.0

    def start_attempt(self) -> None:
        self.paused_seconds += self.unprinted_bad
        self.unprinted_good = self.unprinted_bad = 0.0

    @property
    def like_their_neighbours(self) -> float:
        """By how much first steps would have taken longer, had they taken as long as the steps
        after them: nobody prints what of a first step was usual, so that is as true."""
        typical = ((median(self.steps[at : at + _NEIGHBOURS] or [own]), own)
                   for at, own in self.first_steps)  # fmt: skip
        return sum(max(0.0, theirs - own) for theirs, own in typical)


@dataclass(slots=True)
class Stage:
    shape: Shape
    now: float
    folder: Folder = field(default_factory=Folder)
    phase: JobPhase = JobPhase.STARTING
    iteration: int | None = None
    """Finished iterations, as args.curr_iteration says; None before training begins."""
    crowd: Posture = STARTING
    odd: dict[int, Posture] = field(default_factory=dict)
    """Ranks that do something else than the crowd."""
    printed: dict[int, list[Printed]] = field(default_factory=dict)
    """By pod, since it was last read."""
    ended: list[Ended] = field(default_factory=list)
    """Since it was last read."""
    lost_pods: set[int] = field(default_factory=set)
    done: Done = field(default_factory=Done)
    is_over: bool = False
    """Nothing of this attempt runs any more."""
    has_finished: bool = False
    """The whole training is done, or ended as its user asked."""
    attempt: int = 0
    clock_ahead: float = 0.0
    """By which the clock of the trainers was set forward."""
    blinded: dict[str, float] = field(default_factory=dict)
    """What watchers no longer see, and since when: all, quiet, probe."""
    incidents: list[Incident] = field(default_factory=list)

    def posture(self, rank: int) -> Posture:
        return self.odd.get(rank, self.crowd)

    @property
    def shown(self) -> float:
        """The time that the trainer prints."""
        return self.now + self.clock_ahead + 3600.0 * self.shape.hours_ahead

    def say_step(self, rank: int, *lines: str) -> None:
        """A line of another trainer."""
        self._print(self.shape.pod_of(rank), lines, 0.0)

    def say(self, rank: int, *lines: str, later: float = 0.0) -> None:
        """A line of a rank's own process; other trainers print nothing of what Megatron does."""
        if self.shape.flavour:
            return
        pod = self.shape.pod_of(rank)
        prefix = f"[default{rank % self.shape.pod_ranks}]:" if self.shape.has_tee else ""
        self._print(pod, [prefix + line for line in lines], later)

    def launcher(self, pod: int, *lines: str, later: float = 0.0) -> None:
        """A line of the pod's torchrun, or of its kernel."""
        self._print(pod, lines, later)

    def _print(self, pod: int, lines: list[str] | tuple[str, ...], later: float) -> None:
        if pod in self.lost_pods:
            return
        queue = self.printed.setdefault(pod, [])
        queue.extend(Printed(self.now + later, line) for line in lines)

    def end_pod(
        self,
        pod: int,
        code: int | None,
        *,
        signal: str | None = None,
        reason: str | None = None,
        later: float = 0.0,
    ) -> None:
        self.ended.append(Ended(pod, self.now + later, code, signal, reason))

    def host(self, rank: int) -> str:
        return f"worker-{self.shape.pod_of(rank)}"
