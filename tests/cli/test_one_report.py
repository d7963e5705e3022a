# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`diagnose`, `replay` and `report` of one real run folder agree on what happened in it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mwatch.report.html.text import cause_name
from support.repository.json_schema import read_json
from support.runs.commands import mwatch
from support.runs.live_runs import HANGS, command, environment, run, started, trainer
from support.waiting import until

pytestmark = pytest.mark.timeout(400)  # each makes a run and reads it several times
SAVES = ("--save", "ckpt", "--load", "ckpt", "--state", "once")


class Case(NamedTuple):
    make: Callable[[Path], None]
    attempts: list[str]
    incidents: list[tuple[int, str]]
    verdict: str
    summary: str
    exit_code: int


def killed(folder: Path) -> None:
    run(command(folder, then=trainer("--then", "kill")), folder)


def stopped(folder: Path) -> None:
    line = trainer(*SAVES, "--then", "stop", "--train-iters", "40")
    run(command(folder, "--act", then=line, policy=HANGS), folder)


def rolled_back(folder: Path) -> None:
    line = trainer(*SAVES, "--then", "nan", "--train-iters", "90")
    run(command(folder, "--act", then=line), folder)


def interrupted(folder: Path) -> None:
    line = command(folder, "--grace", "2", then=trainer("--train-iters", "100000"))
    with started(line, folder) as running:
        running.starts()
        until(lambda: (_story(folder).get("verdict") or {}).get("cause") == "healthy")
        running.process.send_signal(signal.SIGINT)
        running.ends()


def _story(folder: Path) -> dict[str, Any]:
    """What the watcher has written so far; a line that was printed may not be read yet."""
    file = folder / "runs" / "r" / "story.json"
    body: dict[str, Any] = json.loads(file.read_text())["story"] if file.exists() else {}
    return body


CASES = {
    "killed": Case(killed, ["killed"], [(1, "killed")], "killed", "SIGKILL", 1),
    "a stopped rank, restarted": Case(
        stopped, ["hang", "finished"], [(1, "hang")], "finished", "iteration 40", 0
    ),
    "a NaN, rolled back": Case(
        rolled_back, ["nan", "finished"], [(1, "nan")], "finished", "iteration 90", 0
    ),
    "interrupted": Case(interrupted, ["healthy"], [], "healthy", "interrupted by a person", 0),
}


def answer(folder: Path, name: str, *options: str) -> tuple[int, dict[str, Any]]:
    done = mwatch(name, "--json", "runs/r", *options, cwd=folder, environment=environment())
    assert done.stderr == ""
    kind = "report" if name == "report" else "recording"
    body: dict[str, Any] = read_json(done.stdout, kind)
    del body["time"]
    return done.returncode, body


def incidents(body: dict[str, Any]) -> list[tuple[int, str]]:
    return [(each["attempt"], each["cause"]) for each in body["incidents"]]


@pytest.mark.parametrize("name", CASES)
def test_every_command_gives_the_same_report_of_a_run(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.make(tmp_path)
    code, diagnosed = answer(tmp_path, "diagnose")
    assert code == case.exit_code
    assert [each["cause"] for each in diagnosed["attempts"]] == case.attempts
    assert incidents(diagnosed) == case.incidents
    assert diagnosed["verdict"]["cause"] == case.verdict
    assert case.summary in diagnosed["verdict"]["summary"]
    assert answer(tmp_path, "replay") == (code, diagnosed)

    code, reported = answer(tmp_path, "report", "--exit-code")
    assert code == case.exit_code
    said = diagnosed["verdict"]
    assert reported["verdict"] == {"cause": said["cause"], "summary": said["summary"]}
    assert reported["incidents"] == len(case.incidents)
    page = (tmp_path / "runs" / "r" / "report.html").read_text("utf-8")
    ends = re.findall(r'data-label="Ended by"><div><span class="\w+">([^<]+)</span>', page)
    assert ends == [cause_name(each) for each in case.attempts]
    assert page.count('class="incident"') == len(case.incidents)


def test_an_option_that_asks_for_another_answer_plays_the_log_of_the_run(tmp_path: Path) -> None:
    """What the watcher knew of the process is not in the log: it only breaks off."""
    killed(tmp_path)
    code, body = answer(tmp_path, "diagnose", "--until", "2026-11-15T10:00:00")
    assert (code, body["verdict"]["cause"]) == (1, "hang")
    assert body["recording"]["clock"] == "log"
