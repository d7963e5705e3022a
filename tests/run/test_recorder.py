# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a watched run leaves behind: its story, and what it learnt."""

from __future__ import annotations

import os
from pathlib import Path

from mwatch.model.observation import Observed, Source, SourceStatusChange
from mwatch.report import story_json
from mwatch.report.model import EvidenceFile
from mwatch.run.assemble import RunRecord
from mwatch_trainer.checkpoint.timeline import FOLDER
from support.builders.run import STREAM, Told, gone_bad, run_folder
from support.unprivileged import unprivileged
from support.waiting import until

SECRET = "hf_abcdefghijklmnopqrstuvwxyz123456"


def record_of(told: Told, path: Path, *, is_act: bool = True) -> RunRecord:
    argv = ["train.py", "--hf-token", SECRET]
    folder = run_folder(path)
    record = RunRecord(folder, argv, told.engine, told.clock, is_act=is_act)
    unseen = SourceStatusChange(Source.CHECKPOINTS, False, "x")
    record.observe(Observed(told.clock.now(), STREAM, unseen))
    return record


def story_of(path: Path) -> Path:
    return path / "runs" / "r" / "story.json"


def test_the_story_is_there_at_the_first_look_and_new_every_few_seconds(tmp_path: Path) -> None:
    told = gone_bad()
    record = record_of(told, tmp_path)
    record.looked(told.waits(0))
    os.utime(story_of(tmp_path), ns=(1, 1))  # the clock of files may stand still for a moment
    assert not story_json.read(story_of(tmp_path)).is_over
    record.looked(told.waits(1))
    assert story_of(tmp_path).stat().st_mtime_ns == 1
    record.looked(told.waits(5))
    assert story_of(tmp_path).stat().st_mtime_ns > 1
    record.end()
    assert story_json.read(story_of(tmp_path)).is_over


def test_secrets_of_the_command_are_not_reported(tmp_path: Path) -> None:
    told = gone_bad()
    record = record_of(told, tmp_path)
    record.end()
    assert SECRET not in story_of(tmp_path).read_text("utf-8")
    assert "train.py" in story_json.read(story_of(tmp_path)).command


def test_incidents_and_what_was_done_are_in_it(tmp_path: Path) -> None:
    told = gone_bad()
    record = record_of(told, tmp_path)
    assessment = told.waits(1)
    record.looked(assessment)
    record.enacted(assessment.decision, told.clock.now())
    told.enacts(assessment.decision)
    for incident in told.engine.incidents:
        record.incident(incident, [EvidenceFile("incidents/x/trainer.log")])
    record.noted("something to know")
    record.end()
    story = story_json.read(story_of(tmp_path))
    (incident_story,) = story.incidents
    assert (incident_story.cause, incident_story.action) == ("nan", "restart")
    assert incident_story.files[0].path == "incidents/x/trainer.log"
    assert "something to know" in story.notes


def test_a_disk_that_cannot_be_written_to_is_reported_and_changes_nothing_else(
    tmp_path: Path,
) -> None:
    told = gone_bad()
    record = record_of(told, tmp_path)
    os.chmod(tmp_path / "runs" / "r", 0o500)
    try:
        with unprivileged():
            record.looked(told.waits(1))
            record.looked(told.waits(6))
            record.end()
    finally:
        os.chmod(tmp_path / "runs" / "r", 0o700)
    (problem,) = record.problems()
    assert "Permission denied" in problem
    record.end()
    assert story_json.read(story_of(tmp_path)).is_over, "when it can be written again, it is"
    assert list((tmp_path / "runs" / "r").glob(".story*")) == []


def test_when_acting_what_was_learnt_is_kept_beside_the_checkpoints(tmp_path: Path) -> None:
    told = gone_bad()
    save = tmp_path / "ckpt"
    save.mkdir()
    record = record_of(told, tmp_path)
    until(lambda: record.recall(save) is not None)
    record.attempt_ended()
    assert (save / FOLDER / "calibration.json").exists()


def test_observing_writes_nothing_there(tmp_path: Path) -> None:
    told = gone_bad()
    save = tmp_path / "ckpt"
    save.mkdir()
    record = record_of(told, tmp_path, is_act=False)
    until(lambda: record.recall(save) is not None)
    record.attempt_ended()
    record.end()
    assert list(save.iterdir()) == []
