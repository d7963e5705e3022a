# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch replay` and `mwatch diagnose` as a person runs them: a real process and its output."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from support.repository.json_schema import read_json
from support.runs.commands import mwatch
from support.runs.recorded import RunLog

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    log = RunLog(total=400).start().steps(1, 100).save(100).steps(101, 150).killed()
    file = tmp_path / "logs" / "trainer.log"
    file.parent.mkdir()
    file.write_text(str(log))
    return file


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    file = tmp_path / "finished.log"
    file.write_text(str(RunLog(total=100).start().steps(1, 100).save(100).done()))
    return file


def test_diagnose_answers_in_one_screen(killed: Path) -> None:
    done = mwatch("diagnose", killed.parent)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert lines[0] == "KILLED since iteration 151 (2026-01-07 10:02:43)"
    assert "restart from checkpoint 100" in done.stdout
    assert "trainer.log:" in done.stdout
    assert "mwatch runbook process-crash" in done.stdout
    assert "\x1b" not in done.stdout


def test_replay_prints_the_whole_story(killed: Path) -> None:
    done = mwatch("replay", killed)
    assert (done.returncode, done.stderr) == (1, "")
    for title in ("TIMELINE", "ATTEMPTS", "FINDINGS", "MWATCH", "GOODPUT"):
        assert title in done.stdout
    assert "would have restarted from checkpoint 100" in done.stdout
    assert "saved checkpoint 100" in done.stdout


@pytest.mark.parametrize("command", ["replay", "diagnose"])
def test_json_is_the_same_object_for_both(command: str, killed: Path) -> None:
    done = mwatch(command, "--json", killed)
    assert (done.returncode, done.stderr) == (1, "")
    record = read_json(done.stdout, "recording")
    assert record["verdict"]["cause"] == "killed"
    assert record["decision"]["resume_from"] == 100


def test_a_finished_run_is_exit_0(finished: Path) -> None:
    done = mwatch("diagnose", finished)
    assert done.returncode == 0
    assert done.stdout.startswith("FINISHED\n")


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_standard_input_is_read(arguments: tuple[str, ...], finished: Path) -> None:
    assert mwatch("diagnose", *arguments, stdin=finished.read_text()).returncode == 0


def test_a_report_file_is_written_beside_the_output(killed: Path, tmp_path: Path) -> None:
    target = tmp_path / "incident.md"
    done = mwatch("replay", killed, "--out", target)
    assert done.returncode == 1
    assert target.read_text().startswith("# killed")
    assert "TIMELINE" in done.stdout


def test_an_empty_folder_is_exit_3(tmp_path: Path) -> None:
    done = mwatch("diagnose", tmp_path)
    assert (done.returncode, done.stderr) == (3, "")
    assert "the folder is empty" in done.stdout


def test_a_log_that_breaks_off_is_exit_3(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text(str(RunLog().start().steps(1, 50)))
    os.utime(file, (1.0, 1.0))
    assert mwatch("diagnose", file).returncode == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no.log",), "no such file"),
        (("core",), "not a text file"),
        (("logs", "--policy", "policy.toml"), "did you mean hang.probe_floor_seconds?"),
        (("logs", "--until", "soon"), "not a time"),
        (("logs", "--checkpoints", "no"), "no such folder"),
    ],
)
def test_bad_input_is_exit_2_in_one_line(
    arguments: tuple[str, ...], said: str, tmp_path: Path, killed: Path
) -> None:
    (tmp_path / "policy.toml").write_text("[hang]\nprobe_flor_seconds = 1\n")
    (tmp_path / "core").write_bytes(b"\x7fELF" + bytes(100))
    names = [str(tmp_path / each) if each[0] not in "-s" else each for each in arguments]
    done = mwatch("diagnose", *names)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = mwatch("replay", tmp_path / "no.log", "--out", tmp_path / "x.html")
    assert (done.returncode, "name it .md or .json" in done.stderr) == (2, True)


def test_a_log_that_may_not_be_read_is_exit_2(killed: Path) -> None:
    killed.chmod(0)
    done = mwatch("diagnose", killed, is_unprivileged=True)
    assert (done.returncode, "may not be read" in done.stderr) == (2, True)


def test_a_policy_changes_the_answer(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(str(RunLog(total=300).start().steps(1, 150).wait(60).steps(151, 300).done()))
    policy = tmp_path / "policy.toml"
    policy.write_text("[deadlines.training]\nfloor_seconds = 600\n")
    usual = read_json(mwatch("replay", log, "--json").stdout, "recording")
    patient = read_json(mwatch("replay", log, "--json", "--policy", policy).stdout, "recording")
    assert [each["cause"] for each in usual["incidents"]] == ["hang"]
    assert patient["incidents"] == []


@pytest.mark.parametrize(("colour", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_for_terminals(
    colour: dict[str, str], is_coloured: bool, finished: Path
) -> None:
    shown = in_terminal("diagnose", str(finished), **colour)
    assert ("\x1b[1;32m" in shown) == is_coloured
    assert "FINISHED" in shown


def test_progress_is_shown_on_a_terminal_only(finished: Path) -> None:
    assert mwatch("replay", finished).stderr == ""


def test_a_reader_that_leaves_is_no_error(killed: Path) -> None:
    command = f"{sys.executable} -m mwatch replay {killed} | head -1"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_what_a_log_says_does_not_steer_the_terminal(tmp_path: Path) -> None:
    run_log = RunLog(total=400).start().steps(1, 50)
    run_log.say("[rank0]: RuntimeError: CUDA out of memory \x9b31m\x07 [bold]x[/bold]")
    file = tmp_path / "a.log"
    file.write_text(str(run_log.killed()))
    done = mwatch("diagnose", file)
    assert not set(done.stdout) & {"\x1b", "\x07", "\x9b"}


def in_terminal(*arguments: str, **environment: str) -> str:
    """The output of mwatch where standard output is a terminal."""
    ours, theirs = pty.openpty()
    unset = {key: value for key, value in ENVIRONMENT.items() if key not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-m", "mwatch", *arguments], stdout=theirs, stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL, env={**unset, "TERM": "xterm", **environment},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # how a terminal says that nobody writes to it any more
        pass
    process.wait(timeout=60)
    os.close(ours)
    return shown.decode()
