# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Without data mwatch reports `blind` and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.detect import stalled
from mwatch.detect.blind import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.job import Job, Layout, SourceStatus, Stream
from mwatch.model.observation import SignSource, SignState, Source
from mwatch.model.phase import JobPhase
from support.builders.job import START, add_sign, found, job, rank, step, steps


def test_no_source_at_all_is_blind() -> None:
    built = job(sights=[], now=START + 100)
    (finding,) = found(DETECTOR, built)
    assert finding.cause is Cause.BLIND
    assert finding.severity is Severity.WARNING
    assert finding.since_time == START


def test_a_process_that_has_just_started_needs_not_have_spoken() -> None:
    assert found(DETECTOR, job(sights=[], now=START + 30)) == []


def test_nothing_seen_ever_is_blind() -> None:
    assert found(DETECTOR, Job("run", {}))[0].since_time is None


def test_sources_that_went_away_are_named_at_once() -> None:
    built = job(steps([2.0] * 3))
    built.sources[Source.LOG] = SourceStatus(False, built.now, "the file is gone")
    (finding,) = found(DETECTOR, built)
    assert "the file is gone" in finding.summary
    assert finding.since_time == built.now


def test_one_source_that_shows_progress_is_enough() -> None:
    built = job(steps([2.0] * 3), sights=[Source.PROBE])
    built.sources[Source.LOG] = SourceStatus(False, built.now, "the file is gone")
    assert found(DETECTOR, built) == []
    assert len(found(DETECTOR, job(sights=[Source.GPU], now=START + 100))) == 1


@pytest.mark.parametrize("phase", [JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.ENDED])
def test_where_nothing_runs_there_is_nothing_to_see(phase: JobPhase) -> None:
    assert found(DETECTOR, job(phase=phase, sights=[], now=START + 1e5)) == []


def silent(seconds: float) -> Job:
    """All probes and the log stop at once."""
    built = job(steps([2.0] * 30), sights=[Source.LOG, Source.PROBE])
    built.streams["pod-0"] = Stream("pod-0", prints_iterations=True)
    built.attempt.ranks = {i: rank(i, 30, at=built.now) for i in range(8)}
    built.now += seconds
    return built


def test_probes_and_log_silent_at_once_is_blind_and_not_hung() -> None:
    built = silent(61.0)
    (finding,) = found(DETECTOR, built)
    assert finding.since_time == built.now - 61
    assert found(stalled.DETECTOR, built) == []


def test_a_short_silence_of_all_is_not_yet_blind() -> None:
    assert found(DETECTOR, silent(30.0)) == []


def test_a_log_that_goes_on_sees_enough() -> None:
    built = silent(61.0)
    built.attempt.progress_at = built.attempt.line_at = built.now - 1
    assert found(DETECTOR, built) == []


def test_a_witness_that_sees_the_process_is_not_blind() -> None:
    built = silent(61.0)
    add_sign(built, SignSource.CPU_TIME, SignState.FLAT)
    assert found(DETECTOR, built) == []
    assert len(found(stalled.DETECTOR, built)) == 1


def test_a_witness_that_fell_silent_with_the_rest_sees_nothing() -> None:
    built = silent(61.0)
    add_sign(built, SignSource.CPU_TIME, SignState.MOVING, at=built.now - 60)
    assert len(found(DETECTOR, built)) == 1
    assert found(stalled.DETECTOR, built) == []


def test_silent_probes_without_a_log_are_blind() -> None:
    built = silent(61.0)
    built.sources.pop(Source.LOG)
    assert len(found(DETECTOR, built)) == 1


def running(phase: JobPhase, seconds: float, layout: Layout | None = None, **more: Any) -> Job:
    built = job(phase=phase, layout=layout, now=START + seconds, **more)
    built.streams["pod-0"] = Stream("pod-0")
    return built


def test_a_trainer_without_a_single_understood_iteration_is_blind() -> None:
    assert len(found(DETECTOR, running(JobPhase.TRAINING, 1801.0, iteration=400))) == 1
    assert len(found(DETECTOR, running(JobPhase.STARTING, 1801.0, Layout()))) == 1


def test_before_the_first_step_should_be_done_it_is_not() -> None:
    assert found(DETECTOR, running(JobPhase.TRAINING, 1799.0, iteration=400)) == []


@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP])
def test_a_known_phase_that_takes_too_long_is_a_stall_and_not_blind(phase: JobPhase) -> None:
    assert found(DETECTOR, running(phase, 1e5)) == []


def test_a_job_whose_lines_were_once_understood_is_not_blind() -> None:
    built = running(JobPhase.TRAINING, 1e5, iteration=400)
    built.streams["pod-0"].prints_iterations = True
    assert found(DETECTOR, built) == []


def test_a_probe_that_counts_is_enough() -> None:
    built = running(JobPhase.TRAINING, 1e5, iteration=400)
    built.attempt.ranks = {0: rank(0, 400, at=built.now)}
    assert found(DETECTOR, built) == []


def test_lines_that_never_had_a_loss_are_of_an_unknown_format() -> None:
    (finding,) = found(DETECTOR, job(steps([None] * 3)))
    assert finding.since_iteration == 1
    assert finding.evidence[0].line == 1


def test_two_lines_are_too_few_to_say_so() -> None:
    assert found(DETECTOR, job(steps([None] * 2))) == []


def test_a_loss_that_was_there_and_is_gone_is_not_blindness() -> None:
    assert found(DETECTOR, job(steps([2.0] + [None] * 9))) == []
    built = job(steps([None] * 9, first=11))
    built.earlier_steps = {10: step(10)}
    assert found(DETECTOR, built) == []


def test_a_history_that_was_cut_says_nothing_of_its_beginning() -> None:
    assert found(DETECTOR, job(steps([None] * 9, first=11), first_iteration=1)) == []


def test_the_warm_down_of_fp16_skips_every_step_and_prints_no_loss() -> None:
    assert found(DETECTOR, job(steps([None] * 18, skipped=1))) == []


def test_a_healthy_job_is_seen() -> None:
    assert found(DETECTOR, job(steps([2.0] * 30))) == []
