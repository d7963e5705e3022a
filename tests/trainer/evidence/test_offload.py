# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence beside the checkpoints, brought there by the wrapper: copied whole, for its owner alone,
within bounds; and whatever the storage does, the trainer and the wrapper go on."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mwatch.model.incident import is_incident_id as is_incident_id_there
from mwatch_trainer.evidence.incidents import NotCopied, beside, copy, is_incident_id, prune
from support.runs.wrapper_runs import ask, attempt, child_pid, helpers, is_alive, kill, running
from support.waiting import until

ID = "20260105T121314Z-a1-hang"
OLDER = "20260104T121314Z-a1-hang"
FOREVER = ["sh", "-c", "echo ready; while :; do sleep 0.1; done"]


def bundle(volume: Path, id: str = ID) -> Path:
    folder = volume / "incidents" / id
    folder.mkdir(parents=True)
    (folder / "rank-0.stacks.txt").write_text("Thread 1\n")
    (folder / "manifest.json").write_text("{}\n")
    return folder


@contextmanager
def acting(tmp_path: Path, *options: str, patch: str = "") -> Iterator[tuple[Path, Path]]:
    """The volume, and the save folder of its wrapper."""
    volume, save = tmp_path / "volume", tmp_path / "save"
    save.mkdir(exist_ok=True)
    given = ["--checkpoints", str(save), *options]
    with running(volume, *FOREVER, options=given, patch=patch):
        child_pid(volume)
        yield volume, save


def held_copiers(tmp_path: Path) -> str:
    """For `acting`: one that copies begins only when there is a file `gate`."""
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *evidence.incidents*)\n'
        f'while [ ! -e "{tmp_path}/gate" ]; do sleep 0.05; done;; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    script.chmod(0o755)
    return f"sys.executable = {str(script)!r}"


def test_both_sides_have_the_same_names_for_incidents() -> None:
    for name in (ID, OLDER + "-2", "x", "../x", ID + "/..", ".", ID.lower(), ID + "\n"):
        assert is_incident_id(name) == is_incident_id_there(name)


def test_it_is_copied_beside_the_checkpoints_for_the_owner_alone(tmp_path: Path) -> None:
    with acting(tmp_path, "--act") as (volume, save):
        bundle(volume)
        answer = ask(str(volume), {"op": "keep", "id": ID, "seconds": 60})
    assert (answer["ok"], answer["state"], answer["files"]) == (True, "kept", 2)
    folder = Path(beside(str(save))) / ID
    assert answer["folder"] == str(folder)
    assert sorted(os.listdir(folder)) == ["manifest.json", "rank-0.stacks.txt"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}


def test_asked_again_it_brings_what_is_new(tmp_path: Path) -> None:
    with acting(tmp_path, "--act") as (volume, save):
        folder = bundle(volume)
        assert ask(str(volume), {"op": "keep", "id": ID, "seconds": 60})["ok"] is True
        (folder / "incident.json").write_text('{"closed": true}')
        assert ask(str(volume), {"op": "keep", "id": ID, "seconds": 60})["files"] == 3
    assert (Path(beside(str(save))) / ID / "incident.json").read_text() == '{"closed": true}'


def test_observing_leaves_the_checkpoints_alone(tmp_path: Path) -> None:
    with acting(tmp_path) as (volume, save):
        bundle(volume)
        answer = ask(str(volume), {"op": "keep", "id": ID})
        assert answer["error"] == "observe mode does not write to the checkpoint folder"
        assert os.listdir(save) == []


@pytest.mark.parametrize("id", ["", "../../etc", ID + "/..", "x" * 200, "keep"])
def test_only_an_incident_can_be_kept(tmp_path: Path, id: str) -> None:
    with acting(tmp_path, "--act") as (volume, save):
        answer = ask(str(volume), {"op": "keep", "id": id})
        assert "is not the name of an incident" in answer["error"]
        assert not (save / ".mwatch" / "incidents").exists()


def test_a_bundle_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with acting(tmp_path, "--act") as (volume, _):
        answer = ask(str(volume), {"op": "keep", "id": ID, "seconds": 60})
        assert answer["ok"] is False
        assert "No such file" in answer["error"]


def test_without_a_known_folder_of_checkpoints_it_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, *FOREVER, options=["--act"]):
        child_pid(tmp_path)
        answer = ask(str(tmp_path), {"op": "keep", "id": ID})
        assert answer["error"] == "the checkpoint folder of this job is unknown"


def copiers(wrapper: int) -> list[int]:
    return helpers(wrapper, "evidence.incidents")


def test_storage_that_hangs_holds_up_neither_the_caller_nor_the_wrapper(tmp_path: Path) -> None:
    """A process that is not let go stands for one that waits for the storage."""
    with acting(tmp_path, "--act", patch=held_copiers(tmp_path)) as (volume, _):
        bundle(volume)
        trainer, wrapper = child_pid(volume), attempt(volume)["wrapper_pid"]
        answer = ask(str(volume), {"op": "keep", "id": ID, "seconds": 0})
        (copier,) = until(lambda: copiers(wrapper))
        assert answer["state"] == "copying"
        another = ask(str(volume), {"op": "keep", "id": OLDER})
        assert another["error"] == "another copy is under way"
        still = ask(str(volume), {"op": "keep", "id": ID, "seconds": 0.1})
        assert still["state"] == "copying"
        assert ask(str(volume), {"op": "status"})["is_running"] is True
        assert ask(str(volume), {"op": "stop", "grace_seconds": 5})["ok"] is True
        until(lambda: not is_alive(trainer) and not is_alive(wrapper))
        kill(copier)


def test_a_copy_ends_with_its_time(tmp_path: Path) -> None:
    """And says so to whoever asks again."""
    with acting(tmp_path, "--act", patch=held_copiers(tmp_path)) as (volume, _):
        bundle(volume)
        ask(str(volume), {"op": "keep", "id": ID, "seconds": 0})
        (copier,) = until(lambda: copiers(attempt(volume)["wrapper_pid"]))
        os.kill(copier, signal.SIGALRM)  # as its own timer does
        until(lambda: not is_alive(copier))
        (tmp_path / "gate").touch()
        answers = []

        def is_kept() -> bool:
            answers.append(ask(str(volume), {"op": "keep", "id": ID, "seconds": 60}))
            return answers[-1].get("state") == "kept"

        until(is_kept)
        assert all("try again" in each["error"] for each in answers[:-1])


def test_what_is_no_regular_file_stays_where_it_is(tmp_path: Path) -> None:
    source = bundle(tmp_path)
    (tmp_path / "secret").write_text("not evidence")
    (source / "link").symlink_to(tmp_path / "secret")
    (source / "folder").mkdir()
    os.mkfifo(source / "pipe")
    (source / ".half").write_text("being written")
    told = copy(str(source), str(tmp_path / "root"), ID)
    assert sorted(os.listdir(tmp_path / "root" / ID)) == ["manifest.json", "rank-0.stacks.txt"]
    assert len(told["left_out"]) == 3


def test_no_link_is_followed_to_or_from(tmp_path: Path) -> None:
    source = bundle(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / ID).symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"symbolic|directory"):
        copy(str(source), str(tmp_path / "root"), ID)
    assert os.listdir(elsewhere) == []
    source.rename(tmp_path / "moved")
    source.symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match=r"symbolic|directory"):
        copy(str(source), str(tmp_path / "other"), ID)


def test_a_file_that_lies_there_as_a_link_is_replaced_and_not_written_through(
    tmp_path: Path,
) -> None:
    source = bundle(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    target = tmp_path / "root" / ID
    target.mkdir(parents=True)
    (target / "manifest.json").symlink_to(victim)
    copy(str(source), str(tmp_path / "root"), ID)
    assert victim.read_text() == "mine"
    assert not (target / "manifest.json").is_symlink()


def test_only_an_id_can_be_copied(tmp_path: Path) -> None:
    with pytest.raises(NotCopied):
        copy(str(bundle(tmp_path)), str(tmp_path / "root"), "../x")


def test_the_oldest_go_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for day in range(1, 10):
        folder = root / f"2026010{day}T000000Z-a1-hang"
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(b"x" * 1000)
    (root / "my notes").mkdir()
    (root / "my notes" / "large").write_bytes(b"x" * 100_000)
    (root / "20250101T000000Z-a1-hang").write_text("a file of somebody")
    link = root / "20250102T000000Z-a1-hang"
    link.symlink_to(root / "my notes")
    gone = prune(str(root), keep="20260101T000000Z-a1-hang", max_bytes=3100)
    assert gone == [f"2026010{day}T000000Z-a1-hang" for day in range(2, 8)]
    assert (root / "my notes" / "large").exists()
    assert (root / "20250101T000000Z-a1-hang").exists()
    assert link.is_symlink()
    assert (root / "20260101T000000Z-a1-hang").exists()
