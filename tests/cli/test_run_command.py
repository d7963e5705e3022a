# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run` as a user starts it: real processes and signals, and a trainer that only prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ROOT / "tests" / "printing_trainer.py"
QUICK = """
[act]
backoff_first_seconds = 0.2
min_restart_cost_seconds = 0.5
default_restart_cost_seconds = 0.5
stall_factor = 1.0
"""
PATIENCE = 25.0


def environment() -> dict[str, str]:
    folders = os.pathsep.join(str(ROOT / name) for name in ("sidecar", "trainer"))
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    return {**os.environ, **rank, "PYTHONPATH": folders, "TERM": "dumb"}


def command(tmp_path: Path, *options: str, then: list[str]) -> list[str]:
    policy = tmp_path / "policy.toml"
    policy.write_text(QUICK, "utf-8")
    runs = ["--runs", str(tmp_path / "runs"), "--name", "r", "--policy", str(policy)]
    own = [sys.executable, "-m", "mwatch", "run", "--json", *runs, *options]
    return [*own, "--", *then]


def trainer(*flags: str) -> list[str]:
    return [sys.executable, str(TRAINER), *flags]


def run(line: list[str], tmp_path: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        line, capture_output=True, timeout=PATIENCE, env=environment(), cwd=tmp_path, check=False
    )


def said(ended: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    """What mwatch told, without what the trainer printed on the same stream."""
    lines = ended.stderr.decode().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"event"')]


def of(ended: subprocess.CompletedProcess[bytes], event: str) -> list[dict[str, Any]]:
    return [each for each in said(ended) if each["event"] == event]


@contextmanager
def started(line: list[str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "said").open("wb") as file:
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=file, env=environment(), cwd=tmp_path
        )
        try:
            yield process
        finally:
            process.terminate()  # killed, it would leave the training behind: as it should
            process.wait(PATIENCE)


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def attempt_of(tmp_path: Path) -> dict[str, Any]:
    try:
        text = (tmp_path / "runs" / "r" / "volume" / "attempt.json").read_text("utf-8")
        found: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found


def is_alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text("utf-8")
    except OSError:
        return False


def test_observing_returns_the_exit_code_of_the_command_and_its_output_unchanged(
    tmp_path: Path,
) -> None:
    line = trainer("--train-iters", "5", "--exit-code", "7")
    bare = subprocess.run(line, capture_output=True, timeout=PATIENCE, check=False)
    ended = run(command(tmp_path, then=line), tmp_path)
    assert ended.returncode == bare.returncode == 7
    assert ended.stdout == bare.stdout


def test_observing_says_what_would_have_been_done_and_does_not_do_it(tmp_path: Path) -> None:
    ended = run(command(tmp_path, then=trainer("--then", "kill")), tmp_path)
    assert ended.returncode == 137
    (action,) = of(ended, "action")
    assert action["is_done"] is False
    assert action["action"] == "restart"
    assert len(of(ended, "attempt")) == 1


def test_acting_brings_a_killed_run_to_its_end(tmp_path: Path) -> None:
    line = trainer("--then", "kill", "--state", str(tmp_path / "once"))
    ended = run(command(tmp_path, "--act", then=line), tmp_path)
    assert ended.returncode == 0, ended.stderr.decode()
    assert [each["attempt"] for each in of(ended, "attempt")] == [1, 2]
    assert of(ended, "incident")[0]["cause"] == "killed"
    assert of(ended, "end")[0]["exit_code"] == 0


def test_acting_finds_a_stopped_process_and_starts_it_anew(tmp_path: Path) -> None:
    line = trainer("--then", "stop", "--state", str(tmp_path / "once"))
    ended = run(command(tmp_path, "--act", then=line), tmp_path)
    assert ended.returncode == 0, ended.stderr.decode()
    incident = of(ended, "incident")[0]
    assert incident["cause"] == "hang"
    assert "rank 0" in incident["culprit"]


def test_acting_stops_at_what_only_the_user_can_mend(tmp_path: Path) -> None:
    ended = run(command(tmp_path, "--act", then=trainer("--then", "raise")), tmp_path)
    assert ended.returncode == 1, ended.stderr.decode()
    assert len(of(ended, "attempt")) == 1
    assert of(ended, "action")[0]["action"] == "stop"


def test_an_incident_leaves_its_record_and_its_evidence(tmp_path: Path) -> None:
    run(command(tmp_path, then=trainer("--then", "kill")), tmp_path)
    (folder,) = (tmp_path / "runs" / "r" / "incidents").iterdir()
    record = json.loads((folder / "incident.json").read_text("utf-8"))
    assert record["cause"] == "killed"
    assert record["action"] == "restart"
    assert record["is_carried_out"] is False
    assert "iteration       10/" in (folder / "trainer.log").read_text("utf-8")


def test_the_story_of_the_run_is_there_for_the_report(tmp_path: Path) -> None:
    run(command(tmp_path, then=trainer("--train-iters", "8")), tmp_path)
    story = json.loads((tmp_path / "runs" / "r" / "story.json").read_text("utf-8"))["story"]
    assert story["cause"] == "finished"
    assert story["iteration"] == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_run_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    line = trainer("--train-iters", "100000", "--step-seconds", "0.05")
    with started(command(tmp_path, "--grace", "1", then=line), tmp_path) as process:
        until(lambda: bool(attempt_of(tmp_path).get("pid")))
        known = attempt_of(tmp_path)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
        assert not is_alive(known["pid"])
        assert not is_alive(known["wrapper_pid"])


def test_training_goes_on_when_the_watcher_is_killed(tmp_path: Path) -> None:
    line = trainer("--train-iters", "60", "--step-seconds", "0.05")
    with started(command(tmp_path, then=line), tmp_path) as process:
        until(lambda: bool(attempt_of(tmp_path).get("pid")))
        process.kill()
        until(lambda: attempt_of(tmp_path).get("exit") is not None)
    assert attempt_of(tmp_path)["exit"]["code"] == 0
    log = (tmp_path / "runs" / "r" / "volume" / "trainer.log").read_text("utf-8")
    assert "iteration       60/" in log


def test_metrics_are_served_while_it_runs(tmp_path: Path) -> None:
    line = trainer("--train-iters", "100000")
    options = ("--port", "19461", "--grace", "1")
    with started(command(tmp_path, *options, then=line), tmp_path):
        file = tmp_path / "said"
        until(lambda: "/metrics" in file.read_text("utf-8"))
        (where,) = [
            part for part in file.read_text("utf-8").replace('"', " ").split()
            if part.endswith("/metrics")
        ]  # fmt: skip

        def has_iteration() -> bool:
            with urlopen(where, timeout=5) as answer:
                return b'mwatch_iteration{run="r"}' in answer.read()

        until(has_iteration)


def test_a_command_that_is_not_there_is_said_plainly(tmp_path: Path) -> None:
    ended = run(command(tmp_path, then=["no-such-program"]), tmp_path)
    assert ended.returncode == 127
    assert b"Traceback" not in ended.stderr
    assert b"no-such-program" in ended.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--name", "../x", "--", "true"], "--name ../x"),
        (["--policy", "missing.toml", "--", "true"], "missing.toml"),
        ([], "name the command after --"),
    ],
)
def test_bad_usage_starts_nothing_and_names_the_mend(
    tmp_path: Path, options: list[str], expected: str
) -> None:
    line = [sys.executable, "-m", "mwatch", "run", "--runs", str(tmp_path / "runs"), *options]
    ended = run(line, tmp_path)
    assert ended.returncode == 2
    assert expected in ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists()
