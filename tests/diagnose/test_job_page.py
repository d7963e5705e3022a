# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch report JOB`: history of the controller, else of the sidecars, else what logs still hold.

The API server is a fake that speaks HTTP; the real one is asked in `tests/cluster`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from kube.fake_api import Reply
from mwatch.diagnose.job import JobRequest
from mwatch.diagnose.job_page import report_with
from mwatch.model.cause import Cause
from mwatch.report import story_json
from mwatch.report.html.page import render
from mwatch.report.model import EvidenceFile
from mwatch.report.run_report import RunReport
from support.builders.diagnose import (
    BEGAN,
    USUAL,
    answering,
    as_printed,
    block,
    events_of,
    iteration,
    words,
)
from support.builders.story import Watch
from support.fakes.job_api import CONTROLLER, CORE, access_to, job_api, kubeconfig_of, sidecar_of
from support.runs.commands import mwatch

SECRET = "hf_" + "abcdefgh" * 5
ARGUMENTS = as_printed([(0.0, line) for line in block(**USUAL)])
STEPS = [(5.0 + n, iteration(n)) for n in range(1, 100)]
CRASH = [
    (105.0, "Traceback (most recent call last):"),
    (105.0, f'  File "train.py", line 7, in step  # {SECRET}'),
    (105.0, "ValueError: the tokenizer has no pad token"),
]
LOGS = {"train-0": ARGUMENTS, "train-1": as_printed(STEPS)}


def reported(logs: dict[str, bytes], pods: Any = None, at: float = 106.0, **more: Any) -> RunReport:
    pods = pods or [words("train-0"), words("train-1")]
    with job_api(pods, logs, **more) as api, access_to(api) as access:
        return report_with(access, JobRequest("train", "ns"), BEGAN + at)


def kept(iterations: int) -> RunReport:
    """What a watcher knows that has seen an earlier attempt too."""
    watch = Watch()
    watch.says(*block(**USUAL), *(iteration(n) for n in range(1, 20)), *(each for _, each in CRASH))
    watch.says(*block(**USUAL), *(iteration(n) for n in range(10, iterations)))
    return replace(watch.story(), run="another name")


def test_without_watchers_the_page_is_made_of_the_logs_and_says_so() -> None:
    report = reported(LOGS)
    assert (report.verdict.cause, report.iteration, report.is_over) == (Cause.HEALTHY, 99, False)
    assert sum(each.last - each.first + 1 for each in report.series) == 99
    ends = {each.file: each.lines for each in report.log_ends}
    assert ends["train-1"][-1] == STEPS[-1][1]
    assert len(ends["train-1"]) == 50 and ends["train-0"][0].startswith("----")
    (note,) = (each for each in report.notes if each.startswith("history:"))
    assert note.startswith("history: only from the logs") and "not found" in note
    page = render(report)
    assert "<title>train · mwatch</title>" in page and "history: only from the logs" in page


def test_the_lines_before_a_crash_are_in_the_page_without_secrets() -> None:
    after = [(200.0 + n, f"NCCL INFO closing {n}") for n in range(60)]
    report = reported(LOGS | {"train-1": as_printed([*STEPS, *CRASH, *after])}, at=261.0)
    assert report.verdict.cause is not Cause.HEALTHY
    (window,) = (each for each in report.log_ends if each.incident == 1)
    assert window.file == "train-1" and window.first == 99 + 3 + 8 - 50 + 1
    assert "ValueError: the tokenizer has no pad token" in window.lines
    assert SECRET not in render(report)


def test_a_sidecar_gives_the_history_that_its_snapshot_no_longer_holds() -> None:
    pods = [words("train-0"), answering("train-1", events=events_of(STEPS[-20:]), at=106.0)]
    files = (EvidenceFile("incidents/1/attempt.json"),)
    known = kept(99)
    known = replace(known, incidents=tuple(replace(one, files=files) for one in known.incidents))
    story = Reply(200, story_json.to_json(known))
    logs = LOGS | {"train-1": as_printed([*CRASH, *STEPS])}
    report = reported(logs, pods, pages={f"{sidecar_of('train-1')}/story.json": story})
    assert report.run == "train" and report.uid == "job-uid"
    assert [each.number for each in report.attempts] == [1, 2]
    assert report.series[0].first == 1 and report.incidents
    (window,) = (each for each in report.log_ends if each.incident == 1)
    assert (window.file, CRASH[-1][1] in window.lines) == ("train-1", True)
    assert '<a href="incidents' not in render(report), "its files are in the pod"
    assert any("from the sidecar of train-1" in each for each in report.notes)
    assert {each.file for each in report.log_ends if each.incident is None} == {
        "train-0",
        "train-1",
    }


def test_a_controller_knows_best_and_the_verdict_stays_that_of_the_diagnosis() -> None:
    pods = [words("train-0"), answering("train-1", events=events_of(STEPS[-20:]), at=106.0)]
    pages = {
        f"{CONTROLLER}/jobs/ns/train/story.json": Reply(200, story_json.to_json(kept(70))),
        f"{sidecar_of('train-1')}/story.json": Reply(200, b"{"),
    }
    report = reported(LOGS, pods, pages=pages)
    assert report.iteration == 69 and len(report.attempts) == 2
    assert report.verdict.cause is Cause.HEALTHY
    assert report.attempts[-1].cause is Cause.HEALTHY
    assert not [each for each in report.notes if each.startswith("history")]


def test_a_story_that_is_none_costs_only_itself() -> None:
    pods = [words("train-0"), answering("train-1", events=events_of(STEPS[-20:]), at=106.0)]
    report = reported(LOGS, pods, pages={f"{sidecar_of('train-1')}/story.json": Reply(200, b"{")})
    assert report.iteration == 99
    (note,) = (each for each in report.notes if each.startswith("history:"))
    assert "the newest events that the sidecars keep" in note


def test_a_log_that_may_not_be_read_is_named_in_the_page() -> None:
    refused = Reply(403, {"kind": "Status", "message": "pods/log is forbidden"})
    pods = [words("train-0"), answering("train-1", events=events_of(STEPS), at=106.0)]
    report = reported({"train-0": ARGUMENTS}, pods, pages={f"{CORE}/pods/train-1/log": refused})
    said = "the log of train-1 is not in this page: pods/log is forbidden"
    assert any(said in each for each in report.notes) and said in render(report)


def test_the_command_writes_one_page_and_replaces_only_its_own(tmp_path: Path) -> None:
    with job_api([words("train-0"), words("train-1")], LOGS) as api:
        known = str(kubeconfig_of(api, tmp_path / "config"))
        environment = {**os.environ, "KUBECONFIG": known}

        def run(*arguments: str) -> Any:
            return mwatch("report", *arguments, cwd=tmp_path, environment=environment)

        first = run("train", "-n", "ns")
        assert (first.returncode, first.stderr) == (0, "")
        assert first.stdout.splitlines()[1] == (tmp_path / "report.html").as_uri()
        assert run("pytorchjob/train", "--kubeconfig", known, "-n", "ns").returncode == 0
        judged = run("train", "-n", "ns", "--exit-code", "--out", "b.html")
        assert judged.returncode == 1, "it has been silent for a long time"
        (tmp_path / "mine.html").write_text("mine")
        kept = run("train", "-n", "ns", "--out", "mine.html")
        assert (kept.returncode, "already exists" in kept.stderr) == (2, True)
        near = run("tran", "-n", "ns")
        assert (near.returncode, "did you mean train?" in near.stderr) == (2, True)
        for_logs = run("train", "-n", "ns", "--until", "now", "--force")
        assert (for_logs.returncode, "are only for recorded logs" in for_logs.stderr) == (2, True)
    gone = mwatch("report", "train", "--force", cwd=tmp_path, environment=environment)
    assert gone.returncode == 3
    assert gone.stderr.startswith("mwatch: train is not a file or folder here, so it must be a job")
