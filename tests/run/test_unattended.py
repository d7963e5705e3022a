# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A run whose `mwatch run` was killed is found, watched again or ended: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from mwatch.run.folder import RunFolder
from mwatch.run.ui import StoredRun
from mwatch.run.unattended import end, find, find_just_started, unattended_runs
from support.runs.live_runs import (
    MWATCH,
    PATIENCE,
    Running,
    command,
    environment,
    left_behind,
    run,
    start,
    started,
    trainer,
)
from support.runs.wrapper_runs import is_alive
from support.waiting import until

pytestmark = pytest.mark.timeout(400)
LONG = ("--train-iters", "100000", "--step-seconds", "0.05")


def kill_watcher(running: Running) -> dict[str, object]:
    known = running.starts()
    running.process.kill()
    until(lambda: find(RunFolder(running.folder)) is not None)
    return known


def adopting(folder: Path, *options: str) -> list[str]:
    return [*MWATCH, "run", "--json", "--port", "0", "--adopt", "r", "--runs", str(folder / "runs"),
            "--policy", str(folder / "policy.toml"), *options]  # fmt: skip


@pytest.mark.parametrize("code", [0, 9])
def test_it_is_watched_again_to_its_end(tmp_path: Path, code: int) -> None:
    """From the end of a file: a look of another process must not be needed."""
    gate = tmp_path / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.1; done; exit {code}"
    shell = ["sh", "-c", f'"$@"; {wait}', "sh", *trainer("--train-iters", "5")]
    with started(command(tmp_path, then=shell), tmp_path) as running:
        kill_watcher(running)
        with (tmp_path / "again").open("wb") as said, open(os.devnull, "r+b") as nothing:
            files = [nothing.fileno(), nothing.fileno(), said.fileno()]
            again = start(adopting(tmp_path), files, tmp_path, environment())
        until(lambda: b"adopted" in (tmp_path / "again").read_bytes())
        gate.touch()
        assert again.wait(PATIENCE) == code, (tmp_path / "again").read_text()
        until(lambda: left_behind(tmp_path) == [])
    told = (tmp_path / "again").read_text()
    assert "goes on without 'mwatch run'" in told and '"attempt":1' in told.replace(" ", "")
    story = json.loads((running.folder / "story.json").read_text())["story"]
    assert story["is_over"] is True and story["iteration"] == 5


def test_it_is_ended_by_a_command(tmp_path: Path) -> None:
    with started(command(tmp_path, "--grace", "5", then=trainer(*LONG)), tmp_path) as running:
        kill_watcher(running)
        done = run([*MWATCH, "stop", "--yes", "runs/r"], tmp_path)
        assert (done.code, done.out) == (0, b"r: ended\n"), done.err.decode()
        assert b"goes on without 'mwatch run'" in done.err
        until(lambda: left_behind(tmp_path) == [])
        assert running.attempt["exit"]["asked"] is True
        again = run([*MWATCH, "stop", "--yes", "r"], tmp_path)
        assert (again.code, again.out) == (0, b"r: nothing of it runs\n")


def test_a_command_without_its_wrapper_is_ended_too(tmp_path: Path) -> None:
    with started(command(tmp_path, then=trainer(*LONG)), tmp_path) as running:
        known = running.starts()
        running.process.kill()
        os.kill(known["wrapper_pid"], signal.SIGKILL)
        until(lambda: not is_alive(known["wrapper_pid"]))
        found = until(lambda: find(RunFolder(running.folder)))
        assert found.wrapper is None and f"its command is process {known['pid']}" in found.text
        refused = run(adopting(tmp_path), tmp_path)
        assert refused.code == 2 and b"end it: mwatch stop" in refused.err
        assert run([*MWATCH, "stop", "--yes", "runs/r"], tmp_path).code == 0
        until(lambda: left_behind(tmp_path) == [])


def test_a_watched_run_is_ended_by_its_own_watcher(tmp_path: Path) -> None:
    with started(command(tmp_path, "--grace", "5", then=trainer(*LONG)), tmp_path) as running:
        running.starts()
        assert find(RunFolder(running.folder)) is None
        done = run([*MWATCH, "stop", "--yes", "r"], tmp_path)
        assert done.code == 0, done.err.decode()
        assert running.process.wait(PATIENCE) == 130
        assert left_behind(tmp_path) == []


def test_the_next_run_of_the_same_name_is_refused_and_another_one_is_warned(tmp_path: Path) -> None:
    with started(command(tmp_path, then=trainer(*LONG)), tmp_path) as running:
        known = kill_watcher(running)
        same = run(command(tmp_path, then=trainer("--train-iters", "3")), tmp_path)
        assert same.code == 2
        text = same.err.decode()
        assert f"process {known['wrapper_pid']}" in text
        assert "mwatch run --adopt runs/r" in text and "mwatch stop runs/r" in text
        line = command(tmp_path, then=trainer("--train-iters", "3"))
        line[line.index("--name") + 1] = "other"
        other = run(line, tmp_path)
        assert other.code == 0
        notes = [each["summary"] for each in other.of("note")]
        assert any("run r goes on without" in each for each in notes), notes


def test_it_is_shown_with_the_commands_that_help(tmp_path: Path) -> None:
    with started(command(tmp_path, then=trainer(*LONG)), tmp_path) as running:
        running.starts()
        folder = RunFolder(running.folder)
        until(folder.story.exists)
        shown = StoredRun(folder)
        assert "goes on without" not in shown.read().verdict.summary
        kill_watcher(running)
        assert "goes on without 'mwatch run'" in shown.read().verdict.summary
        lines = [line for _, line in shown._commands()]
        assert [line.split()[:2] for line in lines[:2]] == [["mwatch", "run"], ["mwatch", "stop"]]
        assert [each.folder.name for each in unattended_runs(tmp_path / "runs")] == ["r"]


def test_a_process_that_got_the_same_number_is_left_alone(tmp_path: Path) -> None:
    """The wrapper is gone, and its id and that of its command belong to others by now."""
    folder = RunFolder(tmp_path / "runs" / "r")
    folder.volume.mkdir(parents=True)
    other = subprocess.Popen(["sleep", "600"])
    try:
        stat = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()
        for started_at in (int(stat[19]), int(stat[19]) - 1):
            document = {"attempt": 1, "wrapper_pid": other.pid, "wrapper_started": started_at,
                        "pid": other.pid, "started_at": 1.0, "exit": None,
                        "host": os.uname().nodename}  # fmt: skip
            (folder.volume / "attempt.json").write_text(json.dumps(document))
            assert find_just_started(folder) is None
            assert end(folder, "test", print) == ("r: nothing of it runs", True)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait(60)


def test_only_one_watches_it(tmp_path: Path) -> None:
    with started(command(tmp_path, then=trainer(*LONG)), tmp_path) as running:
        kill_watcher(running)
        with (tmp_path / "again").open("wb") as said, open(os.devnull, "r+b") as nothing:
            files = [nothing.fileno(), nothing.fileno(), said.fileno()]
            first = start(adopting(tmp_path), files, tmp_path, environment())
        until(lambda: b"adopted" in (tmp_path / "again").read_bytes())
        second = run(adopting(tmp_path), tmp_path)
        assert second.code == 2 and b"nothing of it runs that could be adopted" in second.err
        assert run([*MWATCH, "stop", "--yes", "r"], tmp_path).code == 0
        assert first.wait(PATIENCE) == 130


def test_what_was_started_to_act_goes_on_acting_with_its_own_command(tmp_path: Path) -> None:
    """From another folder: `ckpt` is relative to where the run was started."""
    hurry = tmp_path / "hurry"
    flags = ("--train-iters", "400", "--step-seconds", "0.2", "--save", "ckpt", "--load", "ckpt",
             "--hurry", str(hurry))  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with started(command(tmp_path, "--act", then=trainer(*flags)), tmp_path) as running:
        kill_watcher(running)
        with (tmp_path / "again").open("wb") as said, open(os.devnull, "r+b") as nothing:
            files = [nothing.fileno(), nothing.fileno(), said.fileno()]
            again = start(adopting(tmp_path), files, elsewhere, environment())
        until(lambda: (tmp_path / "ckpt" / "latest_checkpointed_iteration.txt").exists())
        until(lambda: b'"attempt"' in (tmp_path / "again").read_bytes())
        os.kill(running.attempt["pid"], signal.SIGKILL)
        hurry.touch()
        assert again.wait(PATIENCE) == 0, (tmp_path / "again").read_text()
    assert running.attempt["attempt"] == 2 and running.attempt["resume_from"]
    assert not (elsewhere / "ckpt").exists()
    assert left_behind(tmp_path) == []


def test_an_incident_that_is_found_again_is_the_same_one(tmp_path: Path) -> None:
    flags = ("--train-iters", "100000", "--step-seconds", "0.05", "--at", "6", "--then", "nan")
    with started(command(tmp_path, then=trainer(*flags)), tmp_path) as running:
        running.starts()
        place = running.folder / "incidents"
        until(lambda: list(place.glob("*/incident.json")))
        record = next(place.glob("*/incident.json"))
        until(lambda: json.loads(record.read_text()).get("evidence"))
        kill_watcher(running)
        before, written = json.loads(record.read_text()), record.stat().st_mtime_ns
        with (tmp_path / "again").open("wb") as said, open(os.devnull, "r+b") as nothing:
            files = [nothing.fileno(), nothing.fileno(), said.fileno()]
            again = start(adopting(tmp_path), files, tmp_path, environment())
        until(lambda: record.stat().st_mtime_ns > written)
        assert run([*MWATCH, "stop", "--yes", "r"], tmp_path).code == 0
        again.wait(PATIENCE)
    records = [json.loads(each.read_text()) for each in place.glob("*/incident.json")]
    nans = [each for each in records if each["cause"] == before["cause"]]
    assert [each["id"] for each in nans] == [before["id"]]
    assert nans[0]["evidence"] == before["evidence"]
    story = json.loads((running.folder / "story.json").read_text())["story"]
    assert [each["cause"] for each in story["incidents"]].count(before["cause"]) == 1
