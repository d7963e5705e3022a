# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch ui` serves what runs have written, while they run and afterwards."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.cli.ui import has_browser
from mwatch.errors import InputError
from mwatch.report import story_json
from mwatch.report.files import STORY
from mwatch.report.run_report import RunReport
from mwatch.run.ui import MAX_RUNS, address_of, pages_of
from support.builders.story import START, Watch
from support.runs.http_runs import get, served
from support.runs.live_runs import environment
from support.waiting import until

HOSTILE = "<script>alert(1)</script>"


def a_report(iteration: int = 5) -> RunReport:
    watch = Watch()
    watch.says(
        f" iteration {iteration:8}/      90 | consumed samples: 8 | elapsed time per iteration "
        "(ms): 500.0 | learning rate: 1.0E-05 | global batch size: 8 | lm loss: 2.5E+00 | "
        "loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations: 0 | "
        "number of nan iterations: 0 |"
    )
    return watch.recorder.report(is_over=True)


def a_run(parent: Path, name: str, report: RunReport | None = None) -> Path:
    folder = parent / name
    (folder / "volume").mkdir(parents=True)
    if report is not None:
        story_json.write(replace(report, run=name), folder / STORY)
    return folder


@contextmanager
def opened(run: Path | None, parent: Path) -> Iterator[int]:
    with served(pages_of(run, parent)) as server:
        yield server.port


def test_an_ended_run_is_shown_with_its_numbers(tmp_path: Path) -> None:
    folder = a_run(tmp_path, "gpt", a_report())
    with opened(folder, tmp_path) as port:
        status, body, headers = get(port, "/")
        assert status == 200 and b"<h1>gpt</h1>" in body
        assert b"mwatch report " in body and b'http-equiv="refresh"' not in body
        assert "connect-src 'self'" in headers["Content-Security-Policy"]


def test_a_run_is_found_by_its_name(tmp_path: Path) -> None:
    a_run(tmp_path, "gpt", a_report())
    with opened(Path("gpt"), tmp_path) as port:
        assert b"<h1>gpt</h1>" in get(port, "/")[1]


def test_a_run_that_goes_on_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwatch.watch.page.MIN_SECONDS", 0.0)
    going_on = replace(a_report(), is_over=False, ended_at=time.time() + 600)
    folder = a_run(tmp_path, "gpt", going_on)
    with opened(folder, tmp_path) as port:
        body = get(port, "/")[1].decode()
        found = re.search(r'data-page="(\w+)" data-after="([\w.]+)"', body)
        assert found is not None and "<noscript><meta http-equiv" in body
        story_json.write(replace(going_on, iteration=77), folder / STORY)

        def figures() -> str:
            answer = get(port, f"/page.json?page={found[1]}&after={found[2]}")[1]
            return str(json.loads(answer)["parts"].get("figures", ""))

        until(lambda: "77" in figures())


def test_a_run_that_was_killed_is_not_shown_as_running(tmp_path: Path) -> None:
    stale = replace(a_report(), is_over=False, ended_at=START)
    with opened(a_run(tmp_path, "gpt", stale), tmp_path) as port:
        assert b"mwatch stopped recording" in get(port, "/")[1]


def test_all_runs_are_listed_with_links(tmp_path: Path) -> None:
    a_run(tmp_path, "first", a_report())
    a_run(tmp_path, "a+b", a_report())
    a_run(tmp_path, "young")
    (tmp_path / "notes").mkdir()
    (a_run(tmp_path, "torn") / STORY).write_text("{")
    with opened(None, tmp_path) as port:
        body = get(port, "/")[1].decode()
        links = re.findall(r'href="(run/[^"]+/)"', body)
        assert len(links) == 4 and ">notes<" not in body
        assert "has no story.json yet" in body and "not JSON" in body
        pages = [get(port, f"/{link}")[1] for link in links]
        assert sum(b"<h1>a+b</h1>" in each for each in pages) == 1
        assert sum(b"has no story.json yet" in each for each in pages) == 1
        assert get(port, "/run/nothing/")[0] == 404
        assert get(port, "/run/../")[0] == 404


def test_a_hostile_name_is_only_text(tmp_path: Path) -> None:
    a_run(tmp_path, f"x {HOSTILE}".replace("/", ""), replace(a_report(), command=HOSTILE))
    with opened(None, tmp_path) as port:
        body = get(port, "/")[1].decode()
        assert "<script>alert" not in body and "&lt;script&gt;" in body
        (link,) = re.findall(r'href="(run/[^"]+/)"', body)
        assert b"<script>alert" not in get(port, f"/{link}")[1]


def test_a_long_list_is_cut_and_says_so(tmp_path: Path) -> None:
    for number in range(MAX_RUNS + 3):
        a_run(tmp_path, f"run-{number}")
    with opened(None, tmp_path) as port:
        body = get(port, "/")[1]
        assert body.count(b"<tr>") == MAX_RUNS + 1 and b"3 older runs not shown" in body


def test_web_sites_cannot_read_the_list(tmp_path: Path) -> None:
    with opened(None, tmp_path) as port:
        assert get(port, "/", Host="evil.example")[0] == 403
        assert b"There are no runs here yet" in get(port, "/")[1]


def test_what_is_not_a_run_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist; name one that 'mwatch run' has made"):
        pages_of(tmp_path / "nothing", tmp_path)
    with pytest.raises(InputError, match="is not the folder of a run"):
        pages_of(tmp_path, tmp_path / "runs")
    with pytest.raises(InputError, match="start one with 'mwatch run'"):
        pages_of(None, tmp_path / "runs")


def test_names_with_odd_characters_have_an_address_of_their_own() -> None:
    assert address_of("gpt-1.5b") == "gpt-1.5b"
    odd = [address_of(name) for name in ("a b", "a+b", ".hidden", "é")]
    assert len(set(odd)) == 4 and all(re.fullmatch(r"-[0-9a-f]{24}", each) for each in odd)


def test_a_browser_is_opened_only_in_a_window() -> None:
    assert has_browser({"DISPLAY": ":0"}) and has_browser({"BROWSER": "firefox"})
    assert sys.platform == "darwin" or not has_browser({"TERM": "xterm"})


def test_the_command_prints_its_address_and_ends_by_a_signal(tmp_path: Path) -> None:
    a_run(tmp_path / "runs", "gpt", a_report())
    line = [sys.executable, "-m", "mwatch", "ui", "--port", "0"]
    env = {**environment(), "BROWSER": "/bin/false"}
    process = subprocess.Popen(
        line, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.match(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert found is not None
        assert b'href="run/gpt/"' in get(int(found[1]), "/")[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_folder_without_runs_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mwatch", "ui"], cwd=tmp_path, capture_output=True, text=True,
        env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("mwatch: there is no folder runs here;")
