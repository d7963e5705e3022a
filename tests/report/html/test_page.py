# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The page shows all of a story, whatever is in it, and obeys nothing of it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from browser.eventful import eventful_log
from mwatch.engine.engine import Engine
from mwatch.model.cause import Cause
from mwatch.model.finding import Evidence, Verdict
from mwatch.report.html.incidents import RUNBOOKS, as_markdown
from mwatch.report.html.page import MAX_BYTES, render
from mwatch.report.log_ends import MAX_LINES
from mwatch.report.model import DetectorReport, EvidenceFile, IncidentStory, LogEnd, ReportClock
from mwatch.report.recorder import ReportRecorder
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket, ValueRange
from support.builders.story import by_chance, quiet, replayed
from support.runs.recorded import RunLog

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\x1b[2J\u202e'
VOID = {"meta", "link", "br", "input", "path", "rect", "circle"}


class Reader(HTMLParser):
    """The elements of a page, and whether each that was opened was closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another"

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def ids(self) -> list[str]:
        return [str(found["id"]) for _, found in self.found if "id" in found]


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    return replayed(tmp_path_factory.mktemp("eventful"), eventful_log())


def incident(number: int, **change: object) -> IncidentStory:
    whole = IncidentStory(
        1, "hang", "critical", "no progress", number, 10.0 * number, 10.0 * number
    )
    return replace(whole, **change)  # type: ignore[arg-type]


def bucket(number: int, loss: float | None = 2.0, **change: object) -> Bucket:
    span = None if loss is None else ValueRange(loss, loss, loss, 1)
    whole = Bucket(1, number, number, float(number), float(number), span)
    return replace(whole, **change)  # type: ignore[arg-type]


def test_everything_that_was_asked_for_is_on_the_page(eventful: RunReport) -> None:
    page = Reader(render(eventful))
    wanted = {"loss", "step-time", "grad-norm", "loss-scale", "phases", "incidents", "attempts"}
    wanted |= {"goodput", "seen", "happened", "view-time", "view-step", "data"}
    wanted |= {f"incident-{number}" for number in range(1, len(eventful.incidents) + 1)}
    assert wanted <= set(page.ids())
    assert len(eventful.incidents) == 4
    assert not page.open
    assert len(page.ids()) == len(set(page.ids()))


def test_an_incident_is_reported_with_its_reasons_and_its_lines(eventful: RunReport) -> None:
    text = " ".join(" ".join(Reader(render(eventful)).text).split())
    assert "Loss-scale collapse" in text
    assert "would restart" in text
    assert "checkpoint 400: the newest one before the first bad iteration" in text
    assert "Watchdog caught collective operation timeout" in text
    assert "mwatch runbook numerics" in text


def test_a_sentence_is_printed_once(eventful: RunReport) -> None:
    bad = eventful.incidents[-1]
    report = replace(eventful, verdict=replace(eventful.verdict, summary=bad.summary))
    for sentence in [each.summary for each in report.incidents]:
        page = re.sub(r' (?:title|data-markdown)="[^"]*"', "", render(report))
        assert " ".join(Reader(page).text).count(sentence.rstrip(".")) == 1, sentence


def test_what_the_page_leaves_out_of_the_logs_is_named() -> None:
    short, long = LogEnd("a.log", ("one",)), LogEnd("b.log", ("x",) * MAX_LINES)
    assert "not in this page" not in render(quiet(bucket(1), log_ends=(short,), files=("a.log",)))
    files = tuple(f"{name}.log" for name in "abcd")
    page = render(quiet(bucket(1), log_ends=(short, long), files=files))
    assert "Earlier lines are not in this page. The ends of 2 other logs are left out." in page


def test_the_markdown_of_an_incident_ends_with_its_evidence(eventful: RunReport) -> None:
    text = as_markdown(eventful, 2, eventful.incidents[1])
    assert text.startswith("**NaN since iteration 431** in trainer, attempt 2 (incident 2)")
    assert text.endswith("```") and text.count("```") == 2
    assert "- mwatch: would restart" in text and f"{RUNBOOKS}/numerics.md" in text


def test_nothing_is_loaded_from_elsewhere(eventful: RunReport) -> None:
    page = Reader(render(eventful))
    links = [
        found.get("href") or found.get("src")
        for tag, found in page.found
        if tag != "a" or not str(found.get("href")).startswith(RUNBOOKS)
    ]
    assert all(link.startswith(("#", "data:,")) for link in links if link)
    assert "http://" not in render(eventful).replace("http-equiv", "")
    assert "@import" not in render(eventful) and "url(" not in render(eventful)


def test_the_policy_lets_only_our_script_run(eventful: RunReport) -> None:
    page = render(eventful)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(
        found["content"]
        for tag, found in Reader(page).found
        if tag == "meta" and found.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")


def test_hostile_text_is_text_wherever_it_stands() -> None:
    voice = DetectorReport(HOSTILE, HOSTILE, "critical", (Evidence(HOSTILE, 3, HOSTILE),))
    bad = incident(
        1, summary=HOSTILE, cause=HOSTILE, culprit=HOSTILE, reason=HOSTILE, voices=(voice,),
        files=(EvidenceFile("javascript:alert(3)", HOSTILE),), advice=HOSTILE, proposal=HOSTILE,
    )  # fmt: skip
    page = render(
        quiet(bucket(1), incidents=(bad,), run=HOSTILE, command=HOSTILE, notes=(HOSTILE,),
              verdict=Verdict(Cause.HANG, HOSTILE), files=(HOSTILE,)), HOSTILE,
    )  # fmt: skip
    read = Reader(page)
    assert sum(tag == "script" for tag, _ in read.found) == 2
    assert not any(tag == "img" for tag, _ in read.found)
    assert not any(name.startswith("on") for _, found in read.found for name in found)
    assert not any(str(found.get("href")).startswith("javascript:") for _, found in read.found)
    assert "\x1b" not in page and "\u202e" not in page


@pytest.mark.parametrize("seed", range(60))
def test_any_story_makes_a_whole_page(seed: int) -> None:
    page = render(by_chance(seed))
    read = Reader(page)
    assert not read.open
    assert sum(tag == "script" for tag, _ in read.found) == 2
    assert len(page.encode("utf-8", "replace")) <= MAX_BYTES


def test_a_story_of_nothing_says_so() -> None:
    text = " ".join(Reader(render(ReportRecorder(Engine("run", {}), "replay").report())).text)
    assert "no data yet" in text
    assert "The log has no iteration lines" in text


def test_a_single_point_is_a_dot() -> None:
    page = render(quiet(bucket(1)))
    assert 'class="line" d="M10 50h.01"' in page or re.search(r'class="line" d="M[\d.]+ 50h', page)


def test_a_gap_is_left_where_there_is_no_number() -> None:
    buckets = (bucket(1), bucket(2), bucket(3, None, bad=1), bucket(4), bucket(5))
    page = render(quiet(*buckets))
    (loss,) = re.findall(r'id="loss".*?class="by-time".*?class="line" d="([^"]*)"', page, re.DOTALL)
    assert loss.count("M") == 2
    assert 'class="nan"' in page


def test_a_spike_stays_on_the_chart_of_a_long_run() -> None:
    buckets = [bucket(number) for number in range(1, 5001)]
    buckets[2345] = bucket(2346, 4.0)
    page = render(quiet(*buckets))
    assert 'class="range"' in page
    assert "highest 4" in page
    assert len(page) < MAX_BYTES / 2


def test_steps_that_were_lost_are_drawn_apart(eventful: RunReport) -> None:
    assert render(eventful).count('class="lost"') >= 2


def test_a_constant_scale_is_not_worth_a_chart(tmp_path: Path) -> None:
    page = render(replayed(tmp_path, str(RunLog(total=9).start().steps(1, 9).done())))
    assert 'id="loss-scale"' not in page
    assert 'id="step-time"' in page


def test_two_hundred_incidents_with_long_texts_stay_inside_the_bound() -> None:
    evidence = (Evidence("a.log", 1, "&" * 600),) * 8
    voice = DetectorReport("stalled", "<" * 2000, "critical", evidence)
    many = tuple(
        incident(number, summary="<" * 2000, reason="&" * 1000, voices=(voice,) * 3)
        for number in range(256)
    )
    page = render(quiet(*(bucket(number) for number in range(1, 2049)), incidents=many))
    assert len(page.encode()) <= MAX_BYTES
    assert "Evidence is shortened" in page
    assert page.count('class="incident"') == 256


def test_a_run_that_goes_on_is_reported_as_one() -> None:
    page = render(quiet(bucket(1), is_over=False))
    assert "Running" in page and "still going on" in page


def test_what_mwatch_did_is_distinguished_from_what_it_would_have_done() -> None:
    acted = incident(1, action="restart", acted_at=12.0, decided_at=11.0, resume_from=0)
    really = render(quiet(bucket(1), incidents=(acted,)))
    assert "mwatch acted once" in really and ">restarted<" in really
    only_seen = render(quiet(bucket(1), incidents=(acted,), mode="observe"))
    assert "would have acted once" in only_seen and ">would restart<" in only_seen


def test_times_are_those_of_the_clock_that_is_named() -> None:
    late = quiet(bucket(1), clock=ReportClock(zone="CET", offset_seconds=3600.0))
    assert "1970-01-01 01:00:00 CET" in render(late)
    without = quiet(bucket(1), clock=ReportClock(is_relative=True))
    assert "+0 ms" in render(without)


def test_every_chart_has_words_for_those_who_cannot_see_it(eventful: RunReport) -> None:
    page = Reader(render(eventful))
    charts = [found for tag, found in page.found if tag == "svg" and found.get("role") == "img"]
    ids = set(page.ids())
    assert len(charts) == 5
    for chart in charts:
        assert set((chart.get("aria-labelledby") or "").split()) <= ids
    assert "The numbers as tables" in render(eventful)


def test_the_numbers_for_the_pointer_are_those_of_the_story(eventful: RunReport) -> None:
    page = render(eventful)
    (block,) = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    data = json.loads(block)
    assert data["rows"][0][2:5] == [1, 1, 1]
    assert data["names"] == ["loss", "seconds a step", "gradient norm", "loss scale"]
    assert "<" not in block


def test_the_title_may_be_given(eventful: RunReport) -> None:
    assert "<title>Monday &amp; co · mwatch</title>" in render(eventful, "Monday & co")
