# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch checkpoints` as a person runs it: a real process, its output and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from mwatch.cli.checkpoints import age, size
from support.builders.checkpoint import sparse, torch_dist, track
from support.repository.json_schema import read_json
from support.runs.commands import mwatch

COMMAND = (sys.executable, "-m", "mwatch", "checkpoints")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


run = partial(mwatch, "checkpoints")


@pytest.fixture
def save(tmp_path: Path) -> Path:
    folder = tmp_path / "save"
    torch_dist(folder, 20)
    sparse(torch_dist(folder, 40) / "__0_0.distcp", 1_000_000)
    (folder / "iter_0000060").mkdir()
    track(folder, 40)
    return folder


def rollback(*, to_iteration: int) -> dict[str, object]:
    return {"at": 4e9, "to_iteration": to_iteration, "first_bad": None, "reason": "", "marked": []}


def put_timeline(save: Path, rollbacks: object) -> None:
    (save / ".mwatch").mkdir()
    text = json.dumps({"version": 1, "attempt": 2, "rollbacks": rollbacks})
    (save / ".mwatch" / "timeline.json").write_text(text)


def test_the_table_has_the_newest_first_and_the_answer_last(save: Path) -> None:
    done = run(save)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows, first_note, second_note, answer = done.stdout.splitlines()
    assert head.split() == [
        "ITERATION", "STATE", "STANDING", "SIZE", "AGE", "FORMAT", "TRACKER", "REASON",
    ]  # fmt: skip
    assert [row.split()[:3] for row in rows] == [
        ["60", "incomplete", "-"], ["40", "incomplete", "-"], ["20", "complete", "good,"],
    ]  # fmt: skip
    assert "__0_0.distcp is too short: 1000000 of at least 409991887 bytes" in rows[1]
    assert rows[1].split()[7:9] == ["torch_dist", "*"]
    assert "good, resume" in rows[2]
    assert "410 MB" in rows[2]
    assert first_note.endswith("names iter_0000040, which is incomplete")
    assert "may still be running" in second_note
    assert answer == "1 of 3 checkpoints complete, resume from iter_0000020"


def test_json_has_the_same_objects(save: Path) -> None:
    done = run("--json", save)
    assert (done.returncode, done.stderr) == (0, "")
    record = read_json(done.stdout, "checkpoints")
    found = [(each["iteration"], each["state"], each["tracked"]) for each in record["checkpoints"]]
    assert found == [(60, "incomplete", False), (40, "incomplete", True), (20, "complete", False)]


def test_a_rollback_in_the_timeline_takes_a_checkpoint_out(save: Path) -> None:
    torch_dist(save, 80)
    put_timeline(save, [rollback(to_iteration=40)])
    done = run(save)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:3] == ["80", "complete", "abandoned"]
    assert done.stdout.endswith("2 of 4 checkpoints complete, resume from iter_0000020\n")
    record = read_json(run("--json", save).stdout, "checkpoints")
    assert [each["standing"] for each in record["checkpoints"]] == ["abandoned", None, None, "good"]
    assert (record["resume_from"], record["has_timeline"]) == ("iter_0000020", True)


def test_nothing_good_is_exit_1(save: Path) -> None:
    put_timeline(save, [rollback(to_iteration=0)])
    done = run(save)
    assert done.returncode == 1
    assert done.stdout.endswith("1 of 3 checkpoints complete, none of them good\n")


def test_a_broken_timeline_is_a_note(save: Path) -> None:
    put_timeline(save, "\x1b[31m")
    done = run(save)
    assert (done.returncode, done.stderr) == (0, "")
    assert "note: .mwatch/timeline.json holds no list of rollbacks" in done.stdout
    assert done.stdout.endswith("is iter_0000020; its standing is unknown\n")


def test_none_complete_is_exit_1(save: Path) -> None:
    (save / "iter_0000020" / ".metadata").write_bytes(b"garbage")
    done = run(save)
    assert done.returncode == 1
    assert "unverified" in done.stdout
    assert done.stdout.endswith("none of 3 checkpoints is complete\n")


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_nothing_that_it_knows_is_exit_3(tmp_path: Path, option: tuple[str, ...]) -> None:
    done = run(*option, tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert "the folder is empty" in done.stdout
    if not option:
        assert done.stdout.endswith(f"no checkpoint found in {tmp_path}\n")


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit 2 and one line that says what to do."""
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    refused(run(tmp_path / "nowhere"), "nowhere", "no such folder")


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    refused(run(tmp_path / "file"), "is not a folder")


@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_folder_that_may_not_be_read_is_refused(save: Path, option: tuple[str, ...]) -> None:
    save.chmod(0)
    try:
        refused(run(*option, save, is_unprivileged=True), "no permission", "mode")
    finally:
        save.chmod(0o700)


@pytest.mark.parametrize("arguments", [(), ("--colour", "."), (".", ".")])
def test_wrong_usage_is_exit_2(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_help_has_an_example_and_the_exit_codes() -> None:
    text = " ".join(run("--help").stdout.split())
    assert "mwatch checkpoints /data/ckpt" in text
    assert "3 none found" in text
    for word in ("good", "suspect", "abandoned", "timeline.json"):
        assert word in text


def test_names_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    folder = torch_dist(tmp_path, 20, {"__0_0.distcp": 1})
    (folder / "\x1b]0;owned\x07.tmp").write_text("x")
    bad = os.path.join(os.fsencode(folder), b"\xff.tmp")
    with open(bad, "w"):
        pass
    for option, shown in (((), "\\x1b]0;owned\\x07.tmp"), (("--json",), "\\udcff.tmp")):
        done = subprocess.run(
            [*COMMAND, *option, str(tmp_path)], capture_output=True, text=True, timeout=60,
            check=False, env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout
        assert shown in done.stdout


def test_a_reader_that_goes_away_is_no_error(save: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, str(save)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (409_991_887, "410 MB"),
     (5 * 10**15, "5000 TB")],
)  # fmt: skip
def test_sizes_are_short(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"), (-5, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"),
        (172_800, "2 d"),
    ],
)  # fmt: skip
def test_ages_are_short(seconds: float | None, text: str) -> None:
    assert age(seconds) == text
