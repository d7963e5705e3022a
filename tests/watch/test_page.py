# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The live page: rendered only when asked for, for all browsers together, read-only and bounded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from mwatch.export.http.server import Request
from mwatch.report import story_json
from mwatch.report.run_report import RunReport
from mwatch.watch.page import (
    MAX_PAGES,
    MAX_SECONDS,
    LivePage,
    OpenPages,
    RunState,
    protected_checkpoints,
)
from support.builders.snapshot import busy_snapshot
from support.builders.story import Watch
from support.runs.http_runs import get, served
from support.waiting import until


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop on a busy machine is not one that makes no report."""
    monkeypatch.setattr("mwatch.watch.page._WAIT_SECONDS", 60.0)


def a_report(iterations: int = 3) -> RunReport:
    watch = Watch()
    for number in range(1, iterations + 1):
        watch.says(
            f" iteration {number:8}/      90 | consumed samples: 8 | elapsed time per iteration "
            "(ms): 500.0 | learning rate: 1.0E-05 | global batch size: 8 | lm loss: 2.5E+00 | "
            "loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations: 0 | "
            "number of nan iterations: 0 |"
        )
    return watch.recorder.report()


class Loop:
    """Turns as the loop of a run does, and counts the reports that it makes."""

    def __init__(self, page: LivePage) -> None:
        self.page = page
        self.report = a_report()
        self.made = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._turn, daemon=True)

    def make(self) -> RunReport:
        self.made += 1
        return self.report

    def _turn(self) -> None:
        while not self._stopped.wait(0.005):
            self.page.update(self.make)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()


class Seconds:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def live(**more: Any) -> Iterator[tuple[LivePage, Loop, int, Seconds]]:
    clock = Seconds()
    page = LivePage(lambda: [busy_snapshot()], clock=clock, **more)
    with Loop(page) as loop, served(page.pages()) as server:
        yield page, loop, server.port, clock


def ids(body: bytes) -> tuple[str, str]:
    found = re.search(rb'data-page="(\w+)" data-after="([\w.]+)"', body)
    assert found is not None
    return found[1].decode(), found[2].decode()


def changes(port: int, page: str, after: str) -> dict[str, Any]:
    status, body, _ = get(port, f"/page.json?page={page}&after={after}")
    assert status == 200, body
    found: dict[str, Any] = json.loads(body)
    return found


def test_nothing_is_made_until_somebody_opens_the_page() -> None:
    with live() as (_, loop, port, _):
        assert loop.made == 0
        status, body, headers = get(port, "/")
        assert (status, loop.made) == (200, 1)
        assert b"iteration" in body.lower() and b"<noscript><meta http-equiv" in body
        assert headers["Content-Type"].startswith("text/html")


def test_many_requests_within_a_second_are_one_report_and_one_rendering() -> None:
    with live() as (page, loop, port, clock):
        bodies = [get(port, "/")[1] for _ in range(20)]
        assert loop.made == 1
        assert {ids(body)[1] for body in bodies} == {ids(bodies[0])[1]}
        assert len(page.open) == 20
        clock.now += 2.0
        get(port, "/page.json?page=" + ids(bodies[0])[0])
        until(lambda: loop.made == 2)


def test_only_what_has_changed_is_sent_again() -> None:
    with live() as (_, loop, port, clock):
        page, after = ids(get(port, "/")[1])
        assert changes(port, page, after)["parts"] == {}
        loop.report = a_report(7)
        clock.now += 2.0
        found = until(lambda: (new := changes(port, page, after))["parts"] and new)
        assert {"header", "figures"} <= set(found["parts"])
        assert "commands" not in found["parts"]
        assert changes(port, page, found["after"])["parts"] == {}
        for foreign in ("other.9", "9" * 5000, found["after"] + "9" * 5000):
            assert set(changes(port, page, foreign)["parts"]) >= {"header", "commands", "data"}


def test_a_page_that_was_closed_costs_nothing_more() -> None:
    with live() as (_, loop, port, clock):
        get(port, "/")
        clock.now += 60.0
        made = loop.made
        page = LivePage(list, clock=clock)
        page.update(loop.make)
        assert loop.made == made


def test_a_new_mark_does_not_wait_until_the_budget_allows_it() -> None:
    clock, made = Seconds(), list[str]()
    page = LivePage(list, cpu_share=1e-9, clock=clock)
    page.finish(a_report(), 0)
    assert page.page(Request("/", {})).status == 200  # so costly that it is seldom made

    def make(mark: str) -> RunState:
        made.append(mark)
        return RunState(a_report(), None)

    def turn(seconds: float, mark: str) -> list[str]:
        clock.now += seconds
        page.show_if_wanted(lambda: make(mark), mark)
        return made

    assert turn(MAX_SECONDS, "well") == ["well"]
    assert turn(MAX_SECONDS / 2, "well") == ["well"]
    assert turn(0.0, "hang") == ["well", "hang"]
    assert turn(1.0, "well") == ["well", "hang"], "a verdict that flickers is no way around it"
    assert turn(2.0, "well") == ["well", "hang", "well"]


def test_the_page_after_the_last_one_gets_a_sentence() -> None:
    with live() as (page, _, port, clock):
        for _ in range(MAX_PAGES):
            assert page.open.admit() is not None
        status, body, headers = get(port, "/")
        assert status == 503
        assert b"200 pages of this run are open" in body and "Retry-After" in headers
        assert get(port, "/page.json?page=0123456789abcdef")[0] == 503
        clock.now += 60.0
        assert get(port, "/")[0] == 200, "closed pages make room"


def test_an_open_page_stays_open_while_it_asks() -> None:
    clock = Seconds()
    pages = OpenPages(most=1, clock=clock)
    first = pages.admit()
    for _ in range(10):
        clock.now += 9.0
        assert pages.admit(first) == first
    assert pages.admit() is None
    clock.now += 30.0
    assert pages.admit() not in (None, first)


def test_many_pages_poll_less_often() -> None:
    with live() as (page, _, port, _):
        one, after = ids(get(port, "/")[1])
        assert changes(port, one, after)["wait"] == 1.0
        for _ in range(150):
            page.open.admit()
        assert changes(port, one, after)["wait"] > 7


def test_the_policy_allows_no_other_host_and_no_frame() -> None:
    with live() as (_, _, port, _):
        _, body, headers = get(port, "/")
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy and "unsafe-eval" not in policy
        assert re.findall(rb'(?:src|href)="(?!#|data:)[^"]*"', body) == []
        assert get(port, "/", "POST")[0] == 405


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80"])
def test_a_local_page_is_not_served_under_the_name_of_a_web_site(host: str) -> None:
    with live(is_local=True) as (_, _, port, _):
        assert get(port, "/")[0] == 200
        assert get(port, "/", Host=f"localhost:{port}")[0] == 200
        status, body, _ = get(port, "/", Host=host)
        assert (status, b"loss" in body) == (403, False)


def test_the_end_of_the_run_reaches_open_pages() -> None:
    with live() as (page, loop, port, clock):
        one, after = ids(get(port, "/")[1])
        loop.report = replace(loop.report, is_over=True)
        over = threading.Thread(target=page.finish, args=(loop.report, 600))
        over.start()
        clock.now += 2.0
        found = until(lambda: (new := changes(port, one, after))["over"] and new)
        assert "header" in found["parts"]
        over.join(60)
        assert not over.is_alive(), "it waits only until the page has got it"


def test_a_run_without_open_pages_does_not_wait_at_its_end() -> None:
    page = LivePage(list)
    page.finish(replace(a_report(), is_over=True), 60)


def test_a_loop_that_makes_no_report_gives_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwatch.watch.page._WAIT_SECONDS", 0.05)
    with served(LivePage(list).pages()) as server:
        status, body, _ = get(server.port, "/")
        assert (status, body) == (
            503,
            b"mwatch has no report of this run yet; reload the page\n",
        )


def test_commands_are_shown_and_protected_checkpoints_marked() -> None:
    commands = [("Do it", 'mwatch restart "<b>"')]
    with live(commands=lambda: commands) as (_, _, port, _):
        body = get(port, "/")[1].decode()
        assert "mwatch restart &quot;&lt;b&gt;&quot;" in body
    assert protected_checkpoints(["protected iter_0000400 in .mwatch/keep"]) == {400}
    assert protected_checkpoints(["protected ep0-ba40 in .mwatch/keep", "other"]) == {40}


def test_the_renderer_is_not_loaded_before_the_first_request() -> None:
    code = (
        "import sys, mwatch.sidecar.sidecar; print('mwatch.report.html' in str(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_report_itself_is_served_beside_the_page() -> None:
    with live(is_local=True) as (_, loop, port, _):
        status, body, headers = get(port, "/story.json")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert story_json.from_json(body).series == loop.report.series
        assert get(port, "/story.json", Host="evil.example")[0] == 403
