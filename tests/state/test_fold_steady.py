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
    Beat,
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
from mwatch.state.fold import confirm_signs, fold, fold_steady
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

    def beats(self, at: float) -> list[Observed]:
        first = self.pod * RANKS
        return [
            Observed(at, self.stream, Beat(first + n, 6, done, self.phase, f"{done}", 7, None))
            for n, done in enumerate(self.iterations)
        ]

    def risen(self, at: float) -> dict[int, float]:
        return {self.pod * RANKS: at - self.risen_ago}

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
    beats, risen = line.beats(at), line.risen(at)
    rises = [
        each._replace(at=risen[each.what.rank])
        for each in beats
        if isinstance(each.what, Beat) and risen.get(each.what.rank, at) < at
    ]
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
        is_done = fold_steady(job, line.stream, line.beats(at), line.risen(at), line.shift)
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
    assert fold_steady(job, "pod-1", follower.beats(at), follower.risen(at), 0.0)
    assert job.attempt.ranks[2].phase == "saving" and job.streams["pod-1"].last_at == at
    assert not fold_steady(job, "pod-0", lead.beats(at), {}, 0.0)
    assert not fold_steady(job, "pod-1", first.beats(at), {}, 0.0)
    assert not fold_steady(job, "pod-9", follower.beats(at), {}, 0.0)
