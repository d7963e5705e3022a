# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Many outcomes to one score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from mwatch.stats import quantile
from sim.outcome import Case, Outcome

MOST_MISSED = 0.005
MOST_GOODPUT_ERROR = 0.01


class Line(NamedTuple):
    seed: int
    text: str


class Latency(NamedTuple):
    cases: int
    median: float
    p99: float
    worst: float


@dataclass(slots=True)
class Score:
    first_seed: int = 0
    runs: int = 0
    healthy_runs: int = 0
    simulated_seconds: float = 0.0
    faults: int = 0
    restarts: int = 0
    matrix: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(truth, verdict) → cases."""
    kinds: Counter[str] = field(default_factory=Counter)
    false_kills: list[Line] = field(default_factory=list)
    missed: list[Line] = field(default_factory=list)
    wrong_causes: list[Line] = field(default_factory=list)
    wrong_culprits: list[Line] = field(default_factory=list)
    wrong_checkpoints: list[Line] = field(default_factory=list)
    wrong_actions: list[Line] = field(default_factory=list)
    alarms: list[Line] = field(default_factory=list)
    late: list[Line] = field(default_factory=list)
    crashes: list[Line] = field(default_factory=list)
    named_culprits: int = 0
    older_checkpoints: int = 0
    latencies: dict[str, list[float]] = field(default_factory=dict)
    """By true cause."""
    hangs: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By what was seen: (detected after, promised) of hangs while training."""
    could_act: int = 0
    """Hangs while training that have a second witness."""
    acted_after: list[float] = field(default_factory=list)
    """Of these: seconds until they were ended."""
    goodput: list[tuple[float, int]] = field(default_factory=list)
    """(absolute error, seed)."""
    gpu_waiting: float = 0.0
    gpu_acting: float = 0.0

    @property
    def missed_share(self) -> float:
        return len(self.missed) / self.faults if self.faults else 0.0

    def add(self, outcome: Outcome) -> None:
        self.runs += 1
        self.healthy_runs += outcome.is_healthy
        self.simulated_seconds += outcome.seconds
        self.restarts += outcome.restarts
        self.older_checkpoints += outcome.older_checkpoints
        self.gpu_waiting += outcome.gpu_waiting
        self.gpu_acting += outcome.gpu_acting
        self._add_lines(outcome)
        if not outcome.cases:
            self.matrix["healthy", _verdict_of_healthy(outcome)] += 1
        for case in outcome.cases:
            self._add_case(outcome, case)
        if outcome.goodput_error is not None:
            self.goodput.append((abs(outcome.goodput_error), outcome.seed))

    def _add_lines(self, outcome: Outcome) -> None:
        seed, name = outcome.seed, outcome.scenario
        for source, target in (
            (outcome.false_kills, self.false_kills),
            (outcome.wrong_checkpoints, self.wrong_checkpoints),
            (outcome.wrong_actions, self.wrong_actions),
            (outcome.alarms, self.alarms),
        ):
            target.extend(Line(seed, f"{name}: {text}") for text in source)
        if outcome.crash is not None:
            self.crashes.append(Line(seed, f"{name}: {outcome.crash}"))

    def _add_case(self, outcome: Outcome, case: Case) -> None:
        self.kinds[case.kind] += 1
        self.matrix[case.cause.value, case.verdict.value] += 1
        seed, what = outcome.seed, describe(outcome, case)
        self.faults += case.is_fault
        if case.is_missed:
            self.missed.append(Line(seed, what))
        elif case.is_wrong:
            self.wrong_causes.append(Line(seed, what))
        if case.blames_wrongly:
            self.wrong_culprits.append(Line(seed, what))
        self.named_culprits += case.culprit is not None and case.blamed is not None
        if case.is_fault and case.detected_after is not None:
            self.latencies.setdefault(case.cause.value, []).append(case.detected_after)
        if case.bound is not None and case.detected_after is not None:
            self.hangs.setdefault(case.sees_by, []).append((case.detected_after, case.bound))
        self.could_act += case.may_be_acted_on
        if case.may_be_acted_on and case.acted_after is not None:
            self.acted_after.append(case.acted_after)
        if case.is_late:
            self.late.append(Line(seed, what))


def _verdict_of_healthy(outcome: Outcome) -> str:
    return outcome.last_verdict.value


def describe(outcome: Outcome, case: Case) -> str:
    variant = f"/{case.variant}" if case.variant else ""
    after = "never" if case.detected_after is None else f"after {case.detected_after:.1f} s"
    bound = "" if case.bound is None else f" (bound {case.bound:.1f} s)"
    blame = "" if case.culprit is None else f", rank {case.culprit}, blamed {case.blamed}"
    return (
        f"{outcome.scenario}: {case.kind}{variant} in {case.phase}, seen by {case.sees_by}:"
        f" {case.cause} → {case.verdict}, detected {after}{bound}{blame}"
    )


def latency(values: Iterable[float]) -> Latency:
    sample = list(values)
    return Latency(len(sample), quantile(sample, 0.5), quantile(sample, 0.99), max(sample))
