# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A pod that nobody can look at: its ranks are not silent, and what is seen rarely is not slow."""

from __future__ import annotations

from mwatch.detect.shared.probe import probed_ranks
from mwatch.model.job import Job
from mwatch.model.observation import Beat, Observed, Unreachable
from mwatch.model.settings import Settings
from mwatch.state.fold import fold

START = 1000.0


def beat(rank: int, iteration: int, phase: str = "compute") -> Beat:
    return Beat(rank, 2, iteration, phase, f"{iteration:x}", 40 + rank, None)


def job_of_two(seconds: float, every: float = 1.0) -> Job:
    """Two pods of a rank each, one iteration a second, seen now and then."""
    job, at = Job("r", {}), START
    while at <= START + seconds:
        for rank in (0, 1):
            fold(job, Observed(at, f"pod-{rank}", beat(rank, int(at - START))))
        at += every
    return job


def test_the_ranks_of_an_unreachable_pod_are_neither_beating_nor_silent() -> None:
    job = job_of_two(30)
    fold(job, Observed(job.now, "pod-1", Unreachable("no answer")))
    for second in range(31, 90):
        fold(job, Observed(START + second, "pod-0", beat(0, second)))
    probe = probed_ranks(job, Settings())
    assert [rank.rank for rank in probe.beating] == [0]
    assert probe.silent == []


def test_a_pod_that_beats_again_is_seen_again() -> None:
    job = job_of_two(30)
    fold(job, Observed(job.now, "pod-1", Unreachable("no answer")))
    fold(job, Observed(job.now + 1, "pod-1", beat(1, 31)))
    assert not job.attempt.unreachable
    assert len(probed_ranks(job, Settings()).beating) == 2


def test_a_rise_of_many_iterations_between_two_polls_is_no_slow_step() -> None:
    assert job_of_two(120, every=5.0).calibration.step_p99() is None


def test_a_rise_of_one_iteration_is_a_step_however_rarely_it_is_looked_at() -> None:
    job, at = Job("r", {}), START
    while at <= START + 400:
        fold(job, Observed(at, "pod-0", beat(0, int((at - START) // 20))))
        at += 5.0
    learnt = job.calibration.step_p99()
    assert learnt is not None and 15 <= learnt <= 25
