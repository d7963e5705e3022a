# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every phase has its own deadline, and a hang in each of them is found."""

from __future__ import annotations

from typing import Any

import pytest

from mwatch.detect.stalled import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.job import Job, Layout, Save, Stream
from mwatch.model.observation import SignSource, SignState, Source
from mwatch.model.phase import DeadlineSlot, JobPhase
from mwatch.model.settings import Settings
from support.builders.job import START, add_sign, error, fault, found, job, rank, steps

DEADLINES = Settings().deadlines
PHASES = {
    JobPhase.STARTING: DEADLINES.starting,
    JobPhase.LOADING: DEADLINES.loading,
    JobPhase.FIRST_STEP: DEADLINES.first_step,
    JobPhase.SAVING: DEADLINES.first_save,
    JobPhase.ASYNC_FINALIZE: DEADLINES.async_finalize,
    JobPhase.EVALUATING: DEADLINES.evaluating,
    JobPhase.STOPPING: DEADLINES.stopping,
}


def silent(phase: JobPhase, seconds: float, **attempt: Any) -> Job:
    """An attempt that entered the phase at START, and of which nothing was heard since."""
    return job(phase=phase, phase_since=START, now=START + seconds, **attempt)


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_that_outlasts_its_deadline_is_a_hang(phase: JobPhase) -> None:
    (finding,) = found(DETECTOR, silent(phase, PHASES[phase].default_seconds + 1))
    assert finding.cause is Cause.HANG
    assert finding.severity is Severity.CRITICAL
    assert finding.since_time == START
    assert finding.fingerprint == f"hang/{phase.value}"
    assert not finding.cannot_heal


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_is_quiet_up_to_its_deadline(phase: JobPhase) -> None:
    assert found(DETECTOR, silent(phase, PHASES[phase].default_seconds - 1)) == []


@pytest.mark.parametrize("phase", PHASES)
def test_the_deadline_of_a_phase_is_learnt(phase: JobPhase) -> None:
    slot = DeadlineSlot.FIRST_SAVE if phase is JobPhase.SAVING else DeadlineSlot(phase.value)
    built = silent(phase, PHASES[phase].floor_seconds + 1)
    built.calibration.durations[slot].extend([2.0, 3.0])
    assert len(found(DETECTOR, built)) == 1


@pytest.mark.parametrize("phase", [JobPhase.QUEUED, JobPhase.SCHEDULING, JobPhase.ENDED])
def test_nothing_is_expected_of_a_job_that_does_not_run(phase: JobPhase) -> None:
    assert found(DETECTOR, silent(phase, 1e6)) == []


def test_the_first_save_of_a_process_is_not_held_against_later_ones() -> None:
    """Seen: 18 s, then 0.7 s."""
    built = silent(JobPhase.SAVING, 310.0)
    built.calibration.durations[DeadlineSlot.SAVING].extend([0.7] * 20)
    assert found(DETECTOR, built) == []
    built.attempt.saves_done = 1
    assert len(found(DETECTOR, built)) == 1


def test_a_last_save_is_allowed_on_top_of_stopping() -> None:
    built = silent(JobPhase.STOPPING, DEADLINES.stopping.default_seconds + 1)
    built.attempt.save = Save(5, START, is_async=False)
    assert found(DETECTOR, built) == []


def test_an_attempt_that_has_ended_does_not_hang() -> None:
    assert found(DETECTOR, silent(JobPhase.TRAINING, 1e6, ended_at=START)) == []


def test_the_first_line_may_take_a_whole_log_interval() -> None:
    """Without the probe the first step is only seen when the interval is over."""
    built = silent(JobPhase.FIRST_STEP, DEADLINES.first_step.default_seconds + 1)
    built.layout = Layout(log_interval=100)
    assert found(DETECTOR, built) == []
    built.now = START + DEADLINES.first_step.ceiling_seconds + 1
    (finding,) = found(DETECTOR, built)
    assert finding.confidence < 0.5
    built.calibration.steps.extend([30.0] * 5)
    built.now = START + DEADLINES.first_step.default_seconds + 2999
    assert found(DETECTOR, built) == []


def test_a_start_of_which_nothing_is_understood_is_not_called_a_hang() -> None:
    built = silent(JobPhase.STARTING, 1e5)
    built.layout = Layout()
    assert found(DETECTOR, built) == []


def test_without_log_and_probe_there_is_no_verdict() -> None:
    built = silent(JobPhase.SAVING, 1e5)
    built.sources = {}
    assert found(DETECTOR, built) == []


def test_a_phase_that_only_a_lost_log_showed_gets_no_verdict() -> None:
    built = job(phase=JobPhase.SAVING, now=START + 1e5, sights=[Source.PROBE])
    assert found(DETECTOR, built) == []


def test_no_known_time_means_no_verdict() -> None:
    built = job(phase=JobPhase.SAVING, now=0.0, started_at=0.0, phase_since=0.0, progress_at=0.0)
    assert found(DETECTOR, built) == []


@pytest.mark.parametrize("phase", [JobPhase.SAVING, JobPhase.FIRST_STEP, JobPhase.EVALUATING])
def test_a_watchdog_that_has_given_up_ends_the_wait_in_any_phase(phase: JobPhase) -> None:
    built = silent(phase, 605.0, faults=[fault("collective-timeout", at=START + 601, rank=3)])
    (finding,) = found(DETECTOR, built)
    assert finding.cannot_heal
    assert finding.fault == "collective-timeout"
    assert finding.culprit is None, "the rank that prints a timeout is a victim"


def test_a_watchdog_of_before_the_last_progress_is_an_old_story() -> None:
    lines = steps([2.0] * 30)
    built = job(lines, faults=[fault("collective-timeout", at=lines[3].at)])
    built.now += 1
    assert found(DETECTOR, built) == []


def test_a_process_that_has_raised_gets_time_to_come_down() -> None:
    built = job(steps([2.0] * 30))
    last = built.now
    built.attempt.errors = [error(error="RuntimeError", at=last + 1)]
    built.now = last + 50
    assert found(DETECTOR, built) == []
    built.now = last + 62
    (finding,) = found(DETECTOR, built)
    assert finding.since_time == last


def test_probes_and_log_silent_at_once_is_blind_and_not_a_hang() -> None:
    built = job(steps([2.0] * 30), sights=[Source.LOG, Source.PROBE])
    built.attempt.ranks = {i: rank(i, 30, at=built.now) for i in range(8)}
    built.streams["pod-0"] = Stream("pod-0", prints_iterations=True)
    built.now += 600
    assert found(DETECTOR, built) == []
    add_sign(built, SignSource.PROCESS, SignState.STOPPED, rank=0)
    (finding,) = found(DETECTOR, built)
    assert finding.cannot_heal


def test_a_watchdog_that_barks_after_training_is_done_is_let_bark() -> None:
    barks = fault("watchdog-stuck", at=START + 700)
    built = silent(JobPhase.STOPPING, 60.0, faults=[barks], is_done=True)
    assert found(DETECTOR, built) == []
    built.attempt.save = Save(5, START, is_async=False)
    assert len(found(DETECTOR, built)) == 1
