# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch rollback`: one command back to a good checkpoint for a run that is only observed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mwatch.cli.program import program
from mwatch.errors import InputError
from mwatch_trainer.checkpoint import timeline
from mwatch_trainer.checkpoint.listing import TRACKER
from mwatch_trainer.checkpoint.save_dir import BEFORE, look, newest
from support.builders.checkpoint import torch_dist, track
from support.repository.json_schema import read_json

SHARDS = {"__0_0.distcp": 10}


@pytest.fixture
def save(tmp_path: Path) -> Path:
    """Three complete checkpoints and a newer one whose save was interrupted."""
    for iteration in (100, 200, 300, 400):
        torch_dist(tmp_path, iteration, SHARDS)
    (tmp_path / "iter_0000400" / "metadata.json").unlink()
    track(tmp_path, "400")
    return tmp_path


def call(*words: str) -> str:
    done = CliRunner().invoke(program(), ["rollback", *words])
    if isinstance(done.exception, InputError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def tracked(save: Path) -> str:
    return (save / TRACKER).read_text()


def test_without_a_number_the_newest_complete_checkpoint_is_taken(save: Path) -> None:
    assert "resumes from checkpoint 300" in call(str(save))
    assert tracked(save) == "300"
    assert json.loads((save / timeline.FOLDER / BEFORE).read_text())["value"] == "400"


def test_newer_checkpoints_are_no_longer_used_and_not_deleted(save: Path) -> None:
    printed = call(str(save), "--to", "100", "--reason", "NaN since 120")
    assert "no longer used, and not deleted: 200, 300, 400" in printed
    assert (save / "iter_0000300").is_dir()
    history = timeline.read(save.as_posix())
    assert history is not None
    chosen = newest(look(str(save), history))
    assert chosen is not None and chosen.iteration == 100
    assert history.rollbacks[-1].reason == "NaN since 120"


def test_a_dry_run_changes_nothing(save: Path) -> None:
    found = read_json(call(str(save), "--dry-run", "--json"), "rollback")
    assert (found["iteration"], found["changes"]) == (300, [])
    assert tracked(save) == "400" and not (save / timeline.FOLDER).exists()


@pytest.mark.parametrize("number", ["400", "150"])
def test_an_incomplete_or_missing_checkpoint_is_refused(save: Path, number: str) -> None:
    with pytest.raises(InputError, match=r"mwatch checkpoints"):
        call(str(save), "--to", number)
    assert tracked(save) == "400"
