# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One rank that is slower than the others."""

from __future__ import annotations

import pytest

from mwatch.detect.straggler import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.event import Straggler
from mwatch.model.finding import CulpritState, Severity
from mwatch.model.job import Job, Layout
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from support.builders.job import found, job, rank, step, steps


def report(**measures: tuple[float, int]) -> Straggler:
    return Straggler(measures, None, None, "trainer.log", 40)


def reported(**measures: tuple[float, int]) -> Job:
    return job(steps([2.0] * 30), straggler=report(**measures))


def moving(*iterations: int) -> Job:
    built = job(steps([2.0] * 30), sights=[Source.PROBE])
    ranks = (rank(i, each, at=built.now) for i, each in enumerate(iterations))
    built.attempt.ranks = {each.rank: each for each in ranks}
    return built


def test_the_rank_of_the_lowest_throughput_is_named() -> None:
    (finding,) = found(DETECTOR, reported(MnEtpt=(200.0, 3), MxEtpt=(297.0, 7)))
    assert finding.cause is Cause.SLOW
    assert finding.severity is Severity.WARNING
    assert finding.culprit is not None
    assert finding.culprit.rank == 3
    assert finding.culprit.state is CulpritState.BEHIND
    assert finding.since_iteration == 30
    assert finding.evidence[0].line == 40


def test_the_rank_of_the_longest_time_is_named() -> None:
    (finding,) = found(DETECTOR, reported(MnRtt=(3000.0, 8), MxRtt=(4000.0, 5)))
    assert finding.culprit is not None
    assert finding.culprit.rank == 5


def test_ranks_that_differ_a_little_are_usual() -> None:
    """The numbers of a healthy run."""
    healthy = {"MnRtt": (3453.08, 8), "MxRtt": (3468.2, 0), "MnEtpt": (296.02, 0)}
    assert found(DETECTOR, reported(**healthy, MxEtpt=(297.32, 7))) == []


def test_milliseconds_are_noise() -> None:
    """Two ranks that share a GPU: 26 ms against 44 ms."""
    noisy = {"MnRtt": (26.34, 0), "MxRtt": (44.4, 1), "MnEtpt": (1.1, 1), "MxEtpt": (1.85, 0)}
    assert found(DETECTOR, reported(**noisy)) == []


def test_the_stages_of_a_pipeline_differ_by_design() -> None:
    built = reported(MnRtt=(3000.0, 0), MxRtt=(3700.0, 5))
    built.layout = Layout(world_size=8, pipeline=4)
    assert found(DETECTOR, built) == []


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_absurd_values_are_not_believed(value: float) -> None:
    assert found(DETECTOR, reported(MnEtpt=(value, 3), MxEtpt=(297.0, 7))) == []


def test_a_report_of_the_first_step_shows_compilation() -> None:
    built = job([step(1)], straggler=report(MnRtt=(100.0, 0), MxRtt=(900.0, 1)))
    assert found(DETECTOR, built) == []


def test_a_rank_that_stays_behind_while_all_move_is_named() -> None:
    (finding,) = found(DETECTOR, moving(30, 30, 18, 30, 30))
    assert finding.culprit is not None
    assert finding.culprit.rank == 2


def test_a_rank_one_iteration_behind_is_usual() -> None:
    assert found(DETECTOR, moving(30, 30, 29, 30, 30)) == []


def test_beats_of_different_moments_are_no_lag() -> None:
    built = moving(30, 30, 26, 30, 30)
    built.attempt.ranks[2].at -= 4
    assert found(DETECTOR, built) == []


def test_a_job_that_stands_still_has_no_straggler() -> None:
    built = moving(30, 30, 18, 30, 30)
    built.now += 30
    for each in built.attempt.ranks.values():
        each.at = built.now
    assert found(DETECTOR, built) == []


def test_without_data_or_after_the_end_there_is_no_verdict() -> None:
    built = reported(MnEtpt=(200.0, 3), MxEtpt=(297.0, 7))
    built.attempt.phase = JobPhase.ENDED
    assert found(DETECTOR, built) == []
    blind = reported(MnEtpt=(200.0, 3), MxEtpt=(297.0, 7))
    blind.sources = {}
    assert found(DETECTOR, blind) == []
