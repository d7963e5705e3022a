# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report on a save folder: ages by the clock that is handed in, notes, and the exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mwatch.diagnose.checkpoints import RUNNING_SECONDS, CheckpointReport, inspect_folder
from mwatch.errors import InputError
from mwatch.model.timeline import Rollback, Timeline
from mwatch.sources.checkpoint_dir import to_text
from support.builders.checkpoint import torch_dist, torch_file, track
from support.unprivileged import unprivileged

SHARDS = {"__0_0.distcp": 10}
WRITTEN = 1_000_000.0


def report(save: Path, now: float = WRITTEN + 7200) -> CheckpointReport:
    return inspect_folder(str(save), lambda: now)


def saved(save: Path, iteration: int, *, complete: bool = True) -> Path:
    """A checkpoint whose files were all written at one time."""
    folder = torch_dist(save, iteration, SHARDS)
    if not complete:
        (folder / "metadata.json").unlink()
    for path in [*folder.rglob("*"), folder]:
        os.utime(path, (WRITTEN, WRITTEN))
    return folder


def test_a_complete_checkpoint_among_others_is_exit_0(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    saved(tmp_path, 40, complete=False)
    track(tmp_path, 20)
    found = report(tmp_path)
    assert (found.exit_code, found.notes) == (0, ())
    assert found.newest_complete is not None
    assert found.newest_complete.name == "iter_0000020"


def test_checkpoints_of_which_none_is_complete_are_exit_1(tmp_path: Path) -> None:
    saved(tmp_path, 40, complete=False)
    assert report(tmp_path).exit_code == 1
    assert report(tmp_path).newest_complete is None


def test_the_age_is_counted_from_the_clock_that_is_given(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    found = report(tmp_path, WRITTEN + 90)
    assert found.age_seconds(found.listing.checkpoints[0]) == 90
    assert found.to_json()["checkpoints"][0]["age_seconds"] == 90


def test_an_age_that_nobody_knows_is_none(tmp_path: Path) -> None:
    (tmp_path / "iter_0000020").symlink_to("nowhere")
    found = report(tmp_path)
    assert found.age_seconds(found.listing.checkpoints[0]) is None


def test_a_save_that_may_be_running_is_reported_as_long_as_its_files_are_new(
    tmp_path: Path,
) -> None:
    saved(tmp_path, 40, complete=False)
    track(tmp_path, 40)
    soon, later = (report(tmp_path, WRITTEN + RUNNING_SECONDS + by).notes for by in (-1, 1))
    assert "iter_0000040 changed lately: its save may still be running" in soon
    assert not any("running" in note for note in later)


def test_a_missing_tracker_is_reported(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    (note,) = report(tmp_path).notes
    assert note.startswith("there is no latest_checkpointed_iteration.txt")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("60", "latest_checkpointed_iteration.txt names 60, which is not here"),
        ("40", "latest_checkpointed_iteration.txt names iter_0000040, which is incomplete"),
        ("x", "latest_checkpointed_iteration.txt holds 'x', no number"),
    ],
)
def test_a_tracker_that_leads_nowhere_is_reported(tmp_path: Path, text: str, note: str) -> None:
    saved(tmp_path, 20)
    saved(tmp_path, 40, complete=False)
    track(tmp_path, text)
    assert report(tmp_path).notes == (note,)


def test_composer_needs_no_tracker(tmp_path: Path) -> None:
    torch_file(tmp_path / "ep0-ba100-rank0.pt")
    assert (report(tmp_path).exit_code, report(tmp_path).notes) == (0, ())


def test_leftovers_are_reported(tmp_path: Path) -> None:
    folder = saved(tmp_path, 20)
    track(tmp_path, 20)
    (folder / ".metadata.tmp").write_bytes(b"x")
    (folder / "plan.tmp.3").write_bytes(b"x")
    saved(tmp_path / "non_persistent", 30)
    assert report(tmp_path).notes == (
        "non_persistent holds 3 files of non-persistent checkpoints",
        "iter_0000020/.metadata.tmp and 1 more were left behind by a save that was stopped",
    )


def test_the_report_is_json(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    record = json.loads(json.dumps(report(tmp_path).to_json()))
    assert set(record) == {
        "folder", "observed_at", "checkpoints", "resume_from", "has_timeline", "pointers",
        "leftovers", "left_out", "is_cut", "notes",
    }  # fmt: skip
    assert record["checkpoints"] == [
        {
            "name": "iter_0000020", "format": "torch_dist", "iteration": 20, "state": "complete",
            "reason": None, "bytes": record["checkpoints"][0]["bytes"], "files": 3,
            "newest_mtime": WRITTEN, "tracked": False, "is_cut": False, "age_seconds": 7200.0,
            "standing": "good",
        }
    ]  # fmt: skip


def put_timeline(save: Path, *rollbacks: tuple[float, int], first_bad: int | None = None) -> None:
    known = Timeline()
    for at, to_iteration in rollbacks:
        known.roll_back(Rollback(at, to_iteration, None, "loss went missing"))
    if first_bad is not None:
        known.suspect(WRITTEN, first_bad, "loss went missing")
    (save / ".mwatch").mkdir()
    (save / ".mwatch" / "timeline.json").write_text(to_text(known))


def standings(save: Path) -> dict[str, str | None]:
    found = report(save)
    return {each.name: found.standing(each) for each in found.listing.checkpoints}


def resume_from(save: Path) -> str | None:
    found = report(save).resume_from
    return None if found is None else found.name


def test_without_a_timeline_what_is_complete_is_good(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    saved(tmp_path, 40, complete=False)
    assert standings(tmp_path) == {"iter_0000040": None, "iter_0000020": "good"}
    assert report(tmp_path).to_json()["has_timeline"] is False


def test_after_a_rollback_the_old_line_is_abandoned_and_the_new_one_good(tmp_path: Path) -> None:
    for iteration in (20, 40, 60):
        saved(tmp_path, iteration)
    put_timeline(tmp_path, (WRITTEN + 100, 20))
    assert standings(tmp_path) == {
        "iter_0000060": "abandoned", "iter_0000040": "abandoned", "iter_0000020": "good",
    }  # fmt: skip
    for path in [*(tmp_path / "iter_0000040").rglob("*")]:
        os.utime(path, (WRITTEN + 500, WRITTEN + 500))
    assert standings(tmp_path)["iter_0000040"] == "good"
    assert resume_from(tmp_path) == "iter_0000040"


def test_from_the_first_bad_sign_on_checkpoints_are_suspect(tmp_path: Path) -> None:
    for iteration in (20, 40, 60):
        saved(tmp_path, iteration)
    track(tmp_path, 60)
    put_timeline(tmp_path, first_bad=40)
    assert list(standings(tmp_path).values()) == ["suspect", "suspect", "good"]
    assert (resume_from(tmp_path), report(tmp_path).exit_code) == ("iter_0000020", 0)
    assert report(tmp_path).notes == (
        "checkpoints from iteration 40 on are suspect (loss went missing): no rollback yet",
    )


def test_nothing_good_is_exit_1(tmp_path: Path) -> None:
    saved(tmp_path, 40)
    put_timeline(tmp_path, (WRITTEN + 100, 20))
    assert (resume_from(tmp_path), report(tmp_path).exit_code) == (None, 1)


def test_what_could_not_be_verified_is_not_called_good(tmp_path: Path) -> None:
    (saved(tmp_path, 20) / ".metadata").write_bytes(b"garbage")
    assert standings(tmp_path) == {"iter_0000020": "unknown"}
    put_timeline(tmp_path, (4e9, 10))
    assert standings(tmp_path) == {"iter_0000020": "abandoned"}


def test_a_broken_timeline_leaves_the_standing_open(tmp_path: Path) -> None:
    saved(tmp_path, 20)
    (tmp_path / ".mwatch").mkdir()
    (tmp_path / ".mwatch" / "timeline.json").write_text("{")
    assert standings(tmp_path) == {"iter_0000020": "unknown"}
    assert (resume_from(tmp_path), report(tmp_path).exit_code) == (None, 0)
    assert report(tmp_path).notes[0].startswith(".mwatch/timeline.json does not parse")


def hint(save: Path) -> str:
    found = report(save)
    assert found.exit_code == 3
    return found.notes[0]


def test_an_empty_folder_is_exit_3(tmp_path: Path) -> None:
    assert hint(tmp_path) == "the folder is empty"


def test_a_foreign_folder_is_exit_3_and_reported_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert "iter_0000020/" in hint(tmp_path)


def test_a_checkpoint_itself_is_asked_to_go_up(tmp_path: Path) -> None:
    assert hint(saved(tmp_path, 20)).endswith(f"give the folder above it, {tmp_path}")


def test_a_folder_of_save_folders_is_asked_to_go_down(tmp_path: Path) -> None:
    saved(tmp_path / "run-1", 20)
    saved(tmp_path / "run-2", 20)
    (tmp_path / "again").symlink_to(tmp_path)
    assert hint(tmp_path) == (
        "there are checkpoints one folder deeper: in run-1 and 1 more folders"
    )


def test_what_is_no_folder_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is not a folder; give the folder"):
        report(tmp_path / "file")
    with pytest.raises(InputError, match="no such folder"):
        report(tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot read"):
        inspect_folder("a\0b", lambda: WRITTEN)


def test_a_folder_that_may_not_be_read_is_bad_input(tmp_path: Path) -> None:
    save = tmp_path / "save"
    save.mkdir(mode=0)
    with unprivileged(), pytest.raises(InputError, match="no permission; check its mode"):
        report(save)
    save.chmod(0o700)
