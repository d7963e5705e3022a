# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The live page in a real browser, beside a real training of two ranks and with thousands."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from browser.devtools import Page
from browser.test_report_page import HOSTILE, SIZES, box, is_visible
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.snapshot.snapshot import RankSnapshot, Snapshot
from mwatch.report import story_json
from mwatch.report.files import STORY
from mwatch.report.run_report import RunReport
from mwatch.run.ui import pages_of
from mwatch.watch.page import LivePage
from support.builders.snapshot import GPU, busy_snapshot
from support.free_ports import free_port
from support.runs.http_runs import served
from support.runs.live_runs import HANGS, command, environment, started, trainer
from support.waiting import until

HERE = Path(__file__).parents[1] / "support" / "runs"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
WITH_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
NAMED_SECONDS = 50.0
PATIENT = {"mwatch.watch.page:_WAIT_SECONDS": 60.0, "mwatch.watch.page:LivePage.finish": 60.0}
"""A page is given seconds for its first state, and for the end; a busy browser has more here."""
WIDE = [(1440 if width > 600 else width, height, dark) for width, height, dark in SIZES]


@pytest.fixture(autouse=True)
def calm(tab: Page) -> None:
    tab.open("about:blank")  # the page of the test before still asks its server
    tab.complaints.clear()
    tab.requests.clear()


def shown(tab: Page, name: str) -> str:
    found = tab.value(f"document.querySelector({name!r})?.innerText || ''")
    return str(found)


def iteration(tab: Page) -> int:
    found = tab.value("parseInt(document.querySelector('p.progress b')?.innerText) || 0")
    return int(found)


@pytest.mark.timeout(600)  # loading torch takes most of the time
def test_the_page_follows_a_real_run_through_a_stopped_rank_and_its_restart(
    tab: Page, tmp_path: Path
) -> None:
    once, when = tmp_path / "once", tmp_path / "when"
    flags = ["--meeting", str(tmp_path / "meeting"), "--state", str(once), "--at", "80"]
    flags += ["--without-torch", "--when", str(when)]
    ranks = [*TORCHRUN, str(HERE / "torch_trainer.py"), *flags, "--train-iters", "4000"]
    line = command(tmp_path, "--act", then=ranks, policy=HANGS)
    port = free_port()
    line[line.index("--port") + 1] = str(port)
    kept = {name: text for name, text in environment().items() if name not in WITH_RANK}
    with started(line, tmp_path, kept, PATIENT) as running:
        here = f"http://127.0.0.1:{port}/"
        until(lambda: here in running.said.read_text("utf-8"))
        tab.look(1440, 900)
        tab.open(here)
        tab.value("window.opened = 'once'; 0")
        first = until(lambda: iteration(tab))
        until(lambda: iteration(tab) > first)
        until(lambda: shown(tab, "#now .tile dd") == "training")
        when.touch()
        until(once.exists)
        stopped = time.monotonic()
        until(lambda: "rank 1" in shown(tab, "header .state"))
        assert time.monotonic() - stopped < NAMED_SECONDS
        until(lambda: "bad" in tab.value("document.querySelector('#rank-1').className"))
        until(lambda: "rank 1" in shown(tab, "#incident-1"))
        until(lambda: "Stacks" in shown(tab, "#evidence-1"))
        until(lambda: "attempt 2" in shown(tab, "#now"), seconds=120)
        until(lambda: iteration(tab), seconds=120)
        until(lambda: shown(tab, "#attempts tbody tr:nth-child(2)"))
        assert tab.value("window.opened") == "once", "it was never loaded again"
    assert all(each.startswith((here, "data:")) for each in tab.requests), tab.requests
    assert tab.complaints == []


@pytest.mark.timeout(400)
def test_the_end_of_a_run_is_shown_and_nothing_is_asked_afterwards(
    tab: Page, tmp_path: Path
) -> None:
    line = command(tmp_path, then=trainer("--train-iters", "60", "--step-seconds", "0.1"))
    port = free_port()
    line[line.index("--port") + 1] = str(port)
    with started(line, tmp_path, patches=PATIENT) as running:
        here = f"http://127.0.0.1:{port}/"
        until(lambda: here in running.said.read_text("utf-8"))
        tab.look(1440, 900)
        tab.open(here)
        until(lambda: shown(tab, "#live") == "The run has ended.")
        assert running.ends().code == 0
    assert shown(tab, "header .pill") == "Finished"
    assert "iteration 60" in shown(tab, "header .state")
    assert tab.complaints == []


@contextmanager
def served_page(report: RunReport, snapshot: Snapshot, title: str = "") -> Iterator[str]:
    page = LivePage(
        lambda: [snapshot], read=lambda: report, title=title, is_local=True,
        commands=lambda: [("Make a report of it", "mwatch report runs/gpt")],
    )  # fmt: skip
    with served(page.pages()) as server:
        yield f"http://127.0.0.1:{server.port}/"


def with_ranks(number: int) -> Snapshot:
    now = busy_snapshot()
    finding = Finding(
        "rank_silent", Cause.HANG, Severity.CRITICAL, "rank 3 silent", culprit=Culprit(rank=3)
    )
    decision = Decision(Action.RESTART, Cause.HANG, 1, "rank 3 is stuck", 40, act_at=now.at + 30)
    ranks = tuple(
        RankSnapshot(each, 40, now.at, phase="forward", progressed_at=now.at - 1)
        for each in range(number)
    )
    return replace(now, ranks=ranks, gpus=(GPU,), findings=(finding,), decision=decision)


@pytest.mark.parametrize("number", [8, 2048])
@pytest.mark.parametrize(("width", "height", "dark"), WIDE)
def test_ranks_are_readable_at_every_size(
    tab: Page, eventful: RunReport, width: int, height: int, dark: bool, number: int
) -> None:
    report = replace(eventful, is_over=False)
    with served_page(report, with_ranks(number)) as here:
        tab.look(width, height, dark=dark)
        tab.open(here)
        assert tab.value("document.querySelectorAll('.ranks li').length") == number
        for name in ("#now", "#next", "#ranks", "#commands code", "#incident-1"):
            assert is_visible(tab, name, width), name
        assert tab.value("document.documentElement.scrollWidth") <= width
        assert box(tab, ".ranks")["height"] < 1400
        assert "culprit: hang" in shown(tab, "#ranks")
        assert "Restart from checkpoint 40" in shown(tab, "#next")
    assert tab.complaints == []


def test_an_update_keeps_what_the_reader_has_opened_and_zoomed(
    tab: Page, eventful: RunReport
) -> None:
    now = [replace(eventful, is_over=False)]
    page = LivePage(lambda: [busy_snapshot()], read=lambda: now[0])
    with served(page.pages()) as server:
        tab.look(1440, 2400)  # the pointer reaches only what is on the screen
        tab.open(f"http://127.0.0.1:{server.port}/")
        tab.value("document.querySelector('#happened details').open = true; 0")
        tab.value("document.querySelector('#evidence-1').open = false; 0")
        plot = box(tab, "#loss .plot")
        y = plot["top"] + 30
        tab.mouse("mousePressed", plot["left"] + 0.1 * plot["width"], y)
        tab.mouse("mouseMoved", plot["left"] + 0.3 * plot["width"], y)
        tab.mouse("mouseReleased", plot["left"] + 0.3 * plot["width"], y)
        zoomed = tab.value("document.querySelector('#loss svg').getAttribute('viewBox')")
        now[0] = replace(now[0], notes=("a new note",), series=now[0].series[:-5])
        until(lambda: "a new note" in shown(tab, "#seen"))
        assert tab.value("document.querySelector('#happened details').open")
        assert not tab.value("document.querySelector('#evidence-1').open")
        still = tab.value("document.querySelector('#loss svg').getAttribute('viewBox')")
        assert still == zoomed != "0 0 1000 100"
        assert box(tab, "#reset")["seen"]
    assert tab.complaints == []


def test_script_in_a_line_a_name_or_a_pod_is_shown_as_text(tab: Page, eventful: RunReport) -> None:
    bad = replace(eventful.incidents[0], summary=HOSTILE, culprit=HOSTILE)
    now = [replace(eventful, is_over=False)]
    page = LivePage(
        lambda: [replace(busy_snapshot(), run=HOSTILE)],
        read=lambda: now[0], title=f"{HOSTILE} · pod {HOSTILE}",
    )  # fmt: skip
    with served(page.pages()) as server:
        tab.look(390, 844)
        tab.open(f"http://127.0.0.1:{server.port}/")
        now[0] = replace(now[0], incidents=(bad,), notes=(HOSTILE,))
        until(lambda: HOSTILE in shown(tab, "#seen"))  # it came with an update
        assert HOSTILE in shown(tab, "h1") and HOSTILE in shown(tab, "#evidence-1 summary")
        assert tab.value("typeof window.hacked") == "undefined"
        assert tab.value("document.documentElement.scrollWidth") <= 390
    assert tab.complaints == []


def test_without_scripts_the_page_shows_the_state_and_reloads(
    tab: Page, eventful: RunReport
) -> None:
    with served_page(replace(eventful, is_over=False), with_ranks(8)) as here:
        tab.call("Emulation.setScriptExecutionDisabled", value=True)
        try:
            tab.look(1440, 900)
            tab.open(here)
            # The second request is seen before its page is: wait for the page too.
            until(
                lambda: is_visible(tab, "#ranks", 1440) and tab.requests.count(here) >= 2,
                ignoring=(AssertionError,),
            )
        finally:
            tab.call("Emulation.setScriptExecutionDisabled", value=False)


def test_a_server_that_is_gone_is_named_and_the_last_state_stays(
    tab: Page, eventful: RunReport
) -> None:
    with served_page(replace(eventful, is_over=False), with_ranks(8)) as here:
        tab.look(1440, 900)
        tab.open(here)
        assert not shown(tab, "#live")
    until(lambda: "mwatch has not answered since" in shown(tab, "#live"))
    assert is_visible(tab, "#ranks", 1440)


@pytest.mark.parametrize("width", [1440, 390])
def test_a_list_of_runs_leads_to_their_pages(
    tab: Page, eventful: RunReport, tmp_path: Path, width: int
) -> None:
    for name in ("gpt-a", "gpt-b"):
        (tmp_path / name).mkdir()
        story_json.write(replace(eventful, run=name), tmp_path / name / STORY)
    with served(pages_of(None, tmp_path)) as server:
        tab.look(width, 900)
        here = f"http://127.0.0.1:{server.port}/"
        tab.open(here)
        assert is_visible(tab, "#runs table", width)
        assert tab.value("document.documentElement.scrollWidth") <= width
        tab.open(here + tab.value("document.querySelector('a').getAttribute('href')"))
        until(lambda: shown(tab, "#live") == "The run has ended.")
        assert shown(tab, "h1") in ("gpt-a", "gpt-b")
    assert all(each.startswith((here, "data:")) for each in tab.requests), tab.requests
    assert tab.complaints == []
