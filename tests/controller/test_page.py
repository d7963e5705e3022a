# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's pages for people: the fleet, and one job over all its pods."""

from __future__ import annotations

import html
import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest

from mwatch.controller.page import JobNow, job_state
from mwatch.model.cause import Cause
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.kube.ledger import JobEntry, LedgerNote
from mwatch.model.kube.restart_state import RestartState
from mwatch.model.snapshot.snapshot import MAX_RANKS
from mwatch.remediate.status import RemediationStatus
from mwatch.report import story_json
from mwatch.report.html import fleet as renderer
from mwatch.report.html.fleet import FleetRow
from mwatch.report.model import ReportClock
from mwatch.watch.page import MAX_PAGES
from support.runs.fleet_page_runs import NOTE, Pages, job, stopped, turning
from support.runs.http_runs import get
from support.runs.job_monitor_runs import START

EVIL = "<script>window.hacked=1</script>"
SECRET = "hf_" + "abcdEFGH1234" * 3
_TAG = re.compile(r"<[^>]*>")


def text(page: bytes) -> str:
    """What is between the tags, without the style and the scripts."""
    body = page.decode().partition("<body>")[2].partition("<script>")[0]
    return " ".join(html.unescape(_TAG.sub(" ", body)).split())


def opened(page: bytes) -> tuple[str, str, str]:
    found = re.search(rb'data-page="(\w+)" data-after="([\w.]+)" data-address="([^"]+)"', page)
    assert found is not None
    return found[1].decode(), found[2].decode(), html.unescape(found[3].decode())


def row(page: bytes, name: str) -> str:
    found = re.search(rf'<tr id="job-ns-PyTorchJob-{name}".*?</tr>', page.decode(), re.DOTALL)
    assert found is not None, name
    return " ".join(html.unescape(_TAG.sub(" ", found[0])).split())


def test_the_fleet_has_a_row_for_each_job_and_the_worst_comes_first() -> None:
    good, bad = job("gpt-good", 3).run(100), stopped(job("gpt-bad").run(60))
    pages = Pages([good, bad])
    pages.states["gpt-bad"] = RemediationStatus(
        RestartState.HELD, text="it is paused", is_paused=True, pause_text="ann: storage is full"
    )
    with turning(pages) as server:
        status, page, headers = get(server.port, "/")
    assert status == 200
    assert page.index(b"gpt-bad") < page.index(b"gpt-good")
    assert "1 job to look at" in text(page) and "2 jobs, 1 fine" in text(page)
    ill, fine = row(page, "gpt-bad"), row(page, "gpt-good")
    for part in (
        "Hang", "held : it is paused", "rank 1 pod train-1 node n1", "60", "act", "2 of 2 pods",
        "paused: ann: storage is full",
    ):  # fmt: skip
        assert part in ill, part
    assert "Running" in fine and "3 of 3 pods" in fine and "paused" not in fine
    assert "%" in fine
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert b'href="jobs/ns/gpt-bad"' in page
    assert "mwatch pause --all -n ns" in text(page)
    assert '<noscript><meta http-equiv="refresh"' in page.decode()


def test_a_job_has_the_ranks_of_all_pods_its_acts_and_its_attempts() -> None:
    fleet = stopped(job("gpt").run(60))
    fleet.restart(2)
    fleet.run(30)
    fleet.pods[0].answers = False
    fleet.run(15)
    pages = Pages([fleet])
    pages.entries["gpt"] = JobEntry(
        notes=(NOTE, LedgerNote(START + 5, "ann", "pause", f"token={SECRET}"))
    )
    with turning(pages) as server:
        status, page, _ = get(server.port, "/jobs/ns/gpt")
        story = story_json.from_json(get(server.port, "/jobs/ns/gpt/story.json")[1])
        assert [each.number for each in story.attempts] == [1, 2]
        assert get(server.port, "/jobs/ns/other")[0] == 404
        assert get(server.port, "/jobs/ns/gpt?kind=Job")[0] == 404
        assert get(server.port, "/jobs/elsewhere/gpt")[0] == 404
        assert get(server.port, "/jobs/ns/gpt", "POST")[0] == 405
    shown = text(page)
    assert status == 200
    assert 'id="rank-0"' in page.decode() and 'id="rank-1"' in page.decode()
    assert "pod train-1, node n1" in shown
    assert "rank 1 is stuck" in shown and SECRET not in page.decode()
    assert re.search(r"What was done, and why Mode act . When By What Why .*ann pause", shown)
    assert "The sidecars of 1 of 2 pods answer. train-0 on n1: Connection refused" in shown
    attempts = page.decode().partition('id="attempts"')[2].partition("</section>")[0]
    assert attempts.count("<tr>") == 3, "the head and two attempts"
    assert 'id="incident-1"' in page.decode() and "Hang" in attempts
    assert '<a href="../../">All jobs</a>' in page.decode()
    assert "mwatch diagnose gpt -n ns" in shown


def test_an_open_page_gets_what_has_changed_and_nothing_else() -> None:
    pages = Pages([job("gpt").run(20)])
    with turning(pages) as server:
        for path, expected in (("/", "page.json"), ("/jobs/ns/gpt", "gpt/page.json")):
            id, after, address = opened(get(server.port, path)[1])
            assert address.startswith(expected)
            base = path.rpartition("/")[0]
            more = "&" if "?" in address else "?"
            asked = f"{base}/{address}{more}page={id}&after={after}"
            body = json.loads(get(server.port, asked)[1])
            assert body["over"] is False
            assert "title" not in body["parts"] and "commands" not in body["parts"]


def test_the_page_is_made_only_while_it_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = renderer.fleet_parts

    def counted(view: renderer.FleetTable) -> dict[str, str]:
        made.append(view.namespace)
        return real(view)

    monkeypatch.setattr(renderer, "fleet_parts", counted)
    pages = Pages([job("gpt").run(10)])
    for _ in range(20):
        pages.turn()
    assert made == []
    with turning(pages) as server:
        get(server.port, "/")
    assert made == ["ns"]


def test_two_hundred_pages_are_served_and_the_next_gets_a_clear_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_OPENED_SECONDS", "_WANTED_SECONDS"):  # none is closed before the last is open
        monkeypatch.setattr(f"mwatch.watch.page.{name}", 600.0)
    pages = Pages([job("gpt").run(20), job("bert").run(20)])
    with turning(pages) as server:
        for number in range(MAX_PAGES):
            path = ("/", "/jobs/ns/gpt", "/jobs/ns/bert")[number % 3]
            id, after, address = opened(get(server.port, path)[1])
            more = "&" if "?" in address else "?"
            asked = f"{path.rpartition('/')[0]}/{address}{more}page={id}&after={after}"
            assert get(server.port, asked)[0] == 200
        began = time.thread_time()  # not of others, on a machine that is busy
        pages.turn()
        assert time.thread_time() - began < 5
        status, body, headers = get(server.port, "/")
        assert (status, headers["Retry-After"]) == (503, "10")
        assert body.startswith(b"200 pages of this controller are open")
        assert get(server.port, "/jobs/ns/gpt")[0] == 503
        assert pages.live.open.different == 3


def test_of_a_job_with_more_ranks_than_fit_the_blamed_one_is_shown() -> None:
    fleet = job("gpt", MAX_RANKS + 40).run(6)
    last = MAX_RANKS + 39
    culprit = Culprit(last, pod=f"train-{last}")
    blame = Finding("stalled", Cause.HANG, Severity.CRITICAL, "it hangs", culprit=culprit)
    pages = Pages([fleet])
    pages.turn()
    snapshot = pages.metrics.of(fleet.job.uid)
    assert snapshot is not None
    now = JobNow(fleet.watch, RemediationStatus(), replace(snapshot, findings=(blame,)), JobEntry())
    state = job_state(now, ReportClock(), fleet.now)
    assert state.snapshot is not None
    shown = [each.rank for each in state.snapshot.ranks]
    assert shown == [*range(MAX_RANKS - 1), last] and state.rank_count == MAX_RANKS + 40
    assert set(state.places) == set(shown)
    assert state.places[last] == f"pod train-{last}, node n1"


def test_a_new_verdict_is_a_new_mark_and_time_alone_is_none() -> None:
    fleet = job("gpt").run(60)
    first = JobNow(fleet.watch, RemediationStatus(), None, JobEntry()).mark
    fleet.run(20)
    assert JobNow(fleet.watch, RemediationStatus(), None, JobEntry()).mark == first
    stopped(fleet)
    ill = JobNow(fleet.watch, RemediationStatus(), None, JobEntry()).mark
    assert ill != first
    held = RemediationStatus(RestartState.HELD, text="it is paused", is_paused=True)
    assert JobNow(fleet.watch, held, None, JobEntry()).mark != ill


def test_a_browser_asks_often_even_if_the_page_is_costly() -> None:
    with turning(Pages([job("gpt").run(20)])) as server:
        id, after, address = opened(get(server.port, "/jobs/ns/gpt")[1])
        body = json.loads(get(server.port, f"/jobs/ns/{address}&page={id}&after={after}")[1])
        assert 1.0 <= body["wait"] <= 3.0


def test_two_jobs_of_one_name_have_a_page_each_by_their_kind() -> None:
    first, second = job("gpt").run(10), job("gpt").run(10)
    kind = type(second.job.kind)("Job")
    second.job = replace(second.job, kind=kind, uid="uid-other")
    second.run(1)
    with turning(Pages([first, second])) as server:
        page = get(server.port, "/")[1].decode()
        assert "jobs/ns/gpt?kind=Job" in page and "jobs/ns/gpt?kind=PyTorchJob" in page
        assert get(server.port, "/jobs/ns/gpt?kind=Job")[0] == 200


@pytest.mark.parametrize("what", ["nothing", "follower"])
def test_the_page_reports_that_there_are_no_jobs_or_no_lead(what: str) -> None:
    pages = Pages([] if what == "nothing" else [job("gpt").run(5)])
    pages.is_leader = what == "nothing"
    pages.problem = "" if what == "nothing" else f"forbidden {SECRET}"
    with turning(pages) as server:
        shown = text(get(server.port, "/")[1])
    if what == "nothing":
        assert "No job here has the label mwatch.dev/watch=true." in shown
    else:
        assert "This controller does not lead" in shown
        assert "The cluster cannot be read: forbidden" in shown and SECRET not in shown


def hostile() -> dict[str, Any]:
    return {"namespace": EVIL, "name": EVIL, "kind": EVIL, "cause": EVIL, "summary": EVIL,
            "doing": EVIL, "why": EVIL, "mode": EVIL, "is_paused": True, "pause": EVIL}  # fmt: skip


def test_names_from_the_cluster_are_only_text() -> None:
    culprit = Culprit(1, pod=EVIL, node=EVIL)
    made = FleetRow(**hostile(), link=renderer.job_link(EVIL, EVIL, EVIL), culprit=culprit)
    view = renderer.FleetTable(EVIL, START, [made], ReportClock(), False, EVIL)
    act, pod = renderer.JobAct(START, EVIL, EVIL, EVIL), renderer.PodRow(EVIL, EVIL, EVIL)
    about = renderer.JobView(ReportClock(), EVIL, EVIL, EVIL, EVIL, EVIL, [act], 1, 0, [pod])
    shown = "".join((renderer.fleet_parts(view) | renderer.job_parts(about)).values())
    assert "<script" not in shown and "&lt;script&gt;" in shown
    assert 'href="jobs/%3Cscript%3E' in shown
