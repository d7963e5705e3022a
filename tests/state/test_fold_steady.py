# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Records of a pod in which only time and iterations have passed: the same job as one by one."""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch.model.job import Job
from mwatch.model.observation import (
    AttemptStart,
    Observation,
    Observed,
    ProcessExit,
    Sign,
    SignSource,
    SignState,
    Source,
    SourceStatusChange,
    Unreachable,
)
from mwatch.model.snapshot.snapshot_wire import RankRow
from mwatch.state.fold import fold
from mwatch.state.steady import confirm_signs, fold_steady
from support.builders.fold import START

PODS, RANKS = 3, 2
OTHERS: tuple[Observation, ...] = (
    AttemptStart(2, None, None),
    ProcessExit(1, None, None),
    Unreachable("no answer"),
    SourceStatusChange(Source.PROBE, False, "lost"),
    SourceStatusChange(Source.PROBE, True, "seen"),
)


class Line(NamedTuple):
    """What a pod sends: `waited` after the last one, with a clock that is `shift` off."""

    pod: int
    iterations: list[int | None]
    phase: str
    waited: float
    shift: float
    risen_ago: float
    other: Observation | None
    state: SignState = SignState.MOVING

    def signs(self, at: float) -> list[Observed]:
        every = (Sign(SignSource.GPU_ACTIVITY, self.state, self.pod * RANKS, ""),
                 Sign(SignSource.PROCESS, self.state, None, ""))  # fmt: skip
        return [Observed(at, self.stream, each) for each in every]

    def rows(self, at: float) -> list[RankRow]:
        """Of the first rank it is known when its iteration rose."""
        first = self.pod * RANKS
        return [
            RankRow(first + n, 6, done, self.phase, f"{done}", 7, at, None if n else self.risen(at))
            for n, done in enumerate(self.iterations)
        ]

    def risen(self, at: float) -> float:
        return at - self.risen_ago

    @property
    def stream(self) -> str:
        return f"pod-{self.pod}"


LINES = st.lists(
    st.builds(
        Line,
        pod=st.integers(0, PODS - 1),
        iterations=st.lists(
            st.one_of(st.none(), st.integers(0, 4)), min_size=RANKS, max_size=RANKS
        ),
        phase=st.sampled_from(("compute", "saving", "")),
        waited=st.floats(-2, 8),
        shift=st.floats(-3, 3),
        risen_ago=st.floats(-1, 12),
        other=st.one_of(st.none(), st.none(), st.sampled_from(OTHERS)),
        state=st.sampled_from(tuple(SignState)),
    ),
    max_size=24,
)


def one_by_one(job: Job, line: Line, at: float) -> None:
    """In the order in which a whole answer is folded."""
    beats = [Observed(at, line.stream, row.beat()) for row in line.rows(at)]
    rises = [beats[0]._replace(at=line.risen(at))] if line.risen(at) < at else []
    for each in [*rises, *beats, *line.signs(at)]:
        fold(job, each._replace(at=each.at + line.shift))


@settings(max_examples=300, deadline=None)
@given(LINES)
def test_it_is_the_same_as_folding_each_record(lines: list[Line]) -> None:
    job, at = Job("run", {}), START
    for line in lines:
        at += line.waited
        if line.other is not None:
            fold(job, Observed(at, line.stream, line.other))
        if not job.has_started:
            one_by_one(job, line, at)
            continue
        apart, before = deepcopy(job), deepcopy(job)
        is_done = fold_steady(job, line.stream, line.rows(at), line.shift)
        if is_done:
            confirm_signs(job, line.stream, line.signs(at), line.shift)
        else:
            assert job == before, "it did nothing"
        one_by_one(apart, line, at)
        assert not is_done or job == apart
        job = apart


def test_ranks_that_only_follow_are_folded_at_once() -> None:
    job = Job("run", {})
    for pod in range(PODS):
        one_by_one(job, Line(pod, [3, 3], "compute", 0.0, 0.0, 0.0, None), START)
    follower = Line(1, [3, 3], "saving", 0.0, 0.0, 1.0, None)
    lead, first = follower._replace(pod=0), follower._replace(iterations=[4, 3])
    at = START + 5
    assert fold_steady(job, "pod-1", follower.rows(at), 0.0)
    assert job.attempt.ranks[2].phase == "saving" and job.streams["pod-1"].last_at == at
    assert not fold_steady(job, "pod-0", lead.rows(at), 0.0)
    assert not fold_steady(job, "pod-1", first.rows(at), 0.0)
    assert not fold_steady(job, "pod-9", follower.rows(at), 0.0)


def test_a_witness_that_is_confirmed_again_and_again_is_the_newest_report() -> None:
    job, line = Job("run", {}), Line(1, [3, 3], "compute", 0.0, 0.0, 0.0, None)
    one_by_one(job, line._replace(pod=0), START)
    one_by_one(job, line, START)
    signs, key = line.signs(START), (SignSource.PROCESS, None, "pod-1")
    for later in (5.0, 10.0):
        confirm_signs(job, "pod-1", signs, later)
    seen = job.attempt.signs[key]
    assert (seen.at, seen.since) == (START + 10, START)
    flat = Sign(SignSource.PROCESS, SignState.FLAT, None, "")
    fold(job, Observed(START + 12, "pod-1", flat))
    assert job.attempt.moved_at[key] == START + 10, "when it last moved"
    confirm_signs(job, "pod-1", signs, 15.0)
    assert job.attempt.signs[key].since == START + 15, "not the report before, which is replaced"


def test_a_witness_of_an_earlier_attempt_is_not_confirmed() -> None:
    job, line = Job("run", {}), Line(1, [3, 3], "compute", 0.0, 0.0, 0.0, None)
    one_by_one(job, line, START)
    signs = line.signs(START)
    confirm_signs(job, "pod-1", signs, 5.0)
    fold(job, Observed(START + 6, "pod-1", AttemptStart(2, None, None)))
    confirm_signs(job, "pod-1", signs, 10.0)
    assert {each.since for each in job.attempt.signs.values()} == {START + 10}
