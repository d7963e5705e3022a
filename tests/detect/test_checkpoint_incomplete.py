# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that cannot be loaded, or are incomplete."""

from __future__ import annotations

from typing import Any

from mwatch.detect.checkpoint_incomplete import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.job import Job, Save
from mwatch.model.observation import Source
from mwatch.model.phase import JobPhase
from support.builders.job import START, add_checkpoints, error, fault, found, job, steps

BOTH = (Source.LOG, Source.CHECKPOINTS)


def loading(load: str, **more: Any) -> Job:
    fields: dict[str, Any] = {"load_iteration": 40, "phase": JobPhase.LOADING, "sights": BOTH}
    return job([], load=load, **(fields | more))


def training(*complete: int, **more: Any) -> Job:
    fields: dict[str, Any] = {"sights": BOTH, "now": START + 9000}
    built = job(steps([2.0] * 60), **(fields | more))
    add_checkpoints(built, *complete, stored="complete")
    return built


def severities(built: Job) -> list[Severity]:
    return [finding.severity for finding in found(DETECTOR, built)]


def test_a_load_that_failed_is_critical() -> None:
    built = loading("failed", faults=[fault("checkpoint-file-corrupt")], phase_since=START + 7)
    (finding,) = found(DETECTOR, built)
    assert (finding.cause, finding.severity) == (Cause.CHECKPOINT, Severity.CRITICAL)
    assert (finding.since_iteration, finding.since_time) == (40, START + 7)
    assert finding.fault == "checkpoint-file-corrupt"
    assert "40" in finding.summary
    assert len(finding.evidence) == 1


def test_a_load_that_failed_is_seen_in_the_log_alone() -> None:
    assert severities(loading("failed", sights=(Source.LOG,))) == [Severity.CRITICAL]
    assert severities(loading("failed", load_iteration=None)) == [Severity.CRITICAL]


def test_settings_that_do_not_fit_are_not_the_checkpoints_fault() -> None:
    raised = error(error="AssertionError", message="class input value and checkpointvalue differ")
    assert severities(loading("failed", errors=[raised])) == []
    odd = error(error="KeyError", message="'model'")
    assert severities(loading("failed", errors=[odd])) == [Severity.CRITICAL]


def test_an_incomplete_checkpoint_that_is_being_loaded_is_critical() -> None:
    built = loading("begun")
    add_checkpoints(built, 40, stored="incomplete", stored_reason="a shard is missing")
    (finding,) = found(DETECTOR, built)
    assert finding.severity is Severity.CRITICAL
    assert "a shard is missing" in finding.summary


def test_a_load_that_goes_well_is_quiet() -> None:
    built = loading("begun")
    add_checkpoints(built, 40, stored="complete")
    assert severities(built) == []
    assert severities(loading("loaded")) == []
    assert severities(loading("random")) == []


def test_a_job_that_trains_has_loaded_something() -> None:
    assert severities(training(40, load="failed")) == []


def test_a_newest_checkpoint_that_is_not_whole_is_a_warning() -> None:
    built = training(40)
    add_checkpoints(built, 50, stored="incomplete", written_at=START + 160, is_saved=False)
    (finding,) = found(DETECTOR, built)
    assert (finding.severity, finding.since_iteration) == (Severity.WARNING, 50)
    assert finding.since_time == START + 160


def test_a_save_that_is_under_way_is_normal() -> None:
    built = training(40, save=Save(50, START + 160, False))
    add_checkpoints(built, 50, stored="incomplete", is_saved=False)
    assert severities(built) == []
    built.attempt.save = Save(None, START + 160, True)
    assert severities(built) == []
    built.attempt.save = Save(60, START + 160, True)
    assert severities(built) == [Severity.WARNING]


def test_a_save_of_an_attempt_that_ended_is_not_under_way() -> None:
    built = training(40, save=Save(50, START + 160, False), phase=JobPhase.ENDED)
    add_checkpoints(built, 50, stored="incomplete", written_at=START + 8990)
    assert severities(built) == [Severity.WARNING]


def test_a_folder_that_is_still_written_to_is_given_time() -> None:
    built = training(40)
    add_checkpoints(built, 50, stored="incomplete", written_at=START + 8990)
    assert severities(built) == []


def test_an_older_or_abandoned_half_is_nobodys_concern() -> None:
    built = training(40)
    add_checkpoints(built, 30, stored="incomplete")
    assert severities(built) == []
    add_checkpoints(built, 50, stored="incomplete", is_abandoned=True)
    assert severities(built) == []


def test_blind_means_no_verdict() -> None:
    assert found(DETECTOR, loading("failed", sights=())) == []
    built = training(40, sights=(Source.LOG,))
    add_checkpoints(built, 50, stored="incomplete")
    assert severities(built) == []
    assert severities(job([], sights=BOTH)) == []
