# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a job knows of its earlier life: read from beside its checkpoints, and kept there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from mwatch.model.calibration import Calibration
from mwatch.model.job import Job
from mwatch.model.phase import DeadlineSlot
from mwatch.model.timeline import Rollback, Timeline
from mwatch.sources.checkpoint_dir import to_text
from mwatch.watch.watcher import SavedState
from mwatch_trainer.checkpoint.timeline import FILE, FOLDER
from support.builders.job import step
from support.builders.run import PATIENCE
from support.hanging_fs import mounted, tell, why_not
from support.unprivileged import unprivileged

ROLLBACK = Rollback(50.0, 400, 450, "nan")


def recalled(save: Path, job: Job) -> list[Rollback] | None:
    memory = SavedState(save)
    memory.wait(PATIENCE)
    return memory.recall(job)


def write_timeline(save: Path, text: str) -> None:
    (save / FOLDER).mkdir(parents=True, exist_ok=True)
    (save / FOLDER / FILE).write_text(text, "utf-8")


def past() -> Timeline:
    timeline = Timeline(attempt=7)
    timeline.roll_back(ROLLBACK)
    return timeline


def learnt() -> Job:
    job = Job("run", {})
    job.calibration = Calibration("tp1 pp1 dp2")
    for seconds in (2.0, 2.1, 1.9):
        job.calibration.learn(DeadlineSlot.SAVING, seconds)
        job.calibration.learn_step(step(1, seconds=seconds).seconds or 0.0)
    return job


def test_a_job_learns_of_its_rollbacks_and_of_its_number(tmp_path: Path) -> None:
    write_timeline(tmp_path, to_text(past()))
    job = Job("run", {})
    assert recalled(tmp_path, job) == [ROLLBACK]
    assert job.timeline.attempt == 7
    assert job.timeline.is_abandoned(450, 40.0)


def test_what_was_recalled_is_reported_once(tmp_path: Path) -> None:
    memory, job = SavedState(tmp_path), Job("run", {})
    memory.wait(PATIENCE)
    assert memory.recall(job) == []
    assert memory.recall(job) is None


def test_a_folder_that_is_not_there_yet_is_no_problem(tmp_path: Path) -> None:
    memory, job = SavedState(tmp_path / "later"), Job("run", {})
    memory.wait(PATIENCE)
    assert not memory.recall(job)
    assert memory.problems() == []
    assert not (tmp_path / "later").exists(), "reading makes nothing"


def test_durations_go_from_one_life_to_the_next(tmp_path: Path) -> None:
    memory = SavedState(tmp_path)
    memory.keep(learnt())
    assert memory.problems() == []
    job = Job("run", {})
    recalled(tmp_path, job)
    assert list(job.calibration.durations[DeadlineSlot.SAVING]) == [2.0, 2.1, 1.9]


def test_what_this_life_has_seen_goes_before_what_is_remembered(tmp_path: Path) -> None:
    SavedState(tmp_path).keep(learnt())
    job = Job("run", {})
    job.calibration = Calibration("tp1 pp1 dp4")
    recalled(tmp_path, job)
    assert job.calibration.key == "tp1 pp1 dp4"
    assert list(job.calibration.others) == ["tp1 pp1 dp2"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "layouts": [{"key": 3}]}'])
def test_a_damaged_calibration_takes_nothing_away(tmp_path: Path, text: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "calibration.json").write_text(text)
    job = Job("run", {})
    job.calibration.learn_step(1.5)
    recalled(tmp_path, job)
    assert list(job.calibration.steps) == [1.5]


def test_a_broken_timeline_is_reported(tmp_path: Path) -> None:
    write_timeline(tmp_path, "{ half")
    memory, job = SavedState(tmp_path), Job("run", {})
    memory.wait(PATIENCE)
    assert memory.recall(job) == []
    (problem,) = memory.problems()
    assert "timeline.json" in problem


def test_a_folder_that_cannot_be_written_to_is_reported_once(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o500)
    memory = SavedState(tmp_path)
    try:
        with unprivileged():
            memory.keep(learnt())
            memory.keep(learnt())
    finally:
        os.chmod(tmp_path, 0o700)
    (problem,) = memory.problems()
    assert "cannot save" in problem


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can be mounted")
def test_storage_that_hangs_holds_nobody(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as served:
        tell(served, signal.SIGUSR1)
        memory, job = SavedState(tmp_path / "disk"), Job("run", {})
        began = time.monotonic()
        memory.wait(0.05)
        assert memory.recall(job) is None
        assert time.monotonic() - began < 40
        tell(served, signal.SIGHUP)
        memory.wait(PATIENCE)  # so that no thread of a test outlives it
        assert memory.recall(job) == []


def test_a_pipe_in_place_of_a_file_holds_nobody(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    os.mkfifo(tmp_path / FOLDER / "calibration.json")
    assert recalled(tmp_path, Job("run", {})) == []
