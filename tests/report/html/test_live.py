# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What only the page of a running job shows: progress, ranks, and what mwatch would do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.snapshot.snapshot import RankSnapshot, Snapshot
from mwatch.report.html.live import LiveParts, LiveView, Place, document, time_left
from mwatch.report.html.sections import LARGE
from mwatch.report.model import CheckpointStory
from mwatch.report.run_report import RunReport
from support.builders.snapshot import busy_snapshot, empty_snapshot
from support.builders.story import replayed
from support.runs.recorded import RunLog

AT = busy_snapshot().at


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    log = RunLog(total=100)
    log.steps(1, 40)
    found = replayed(Path(tmp_path_factory.mktemp("live")), str(log), "gpt")
    return replace(found, is_over=False, findings=(), total_iterations=100)


def parts(report: RunReport, snapshot: Snapshot | None, **more: object) -> dict[str, str]:
    return LiveParts().render(report, LiveView(snapshot, **more))  # type: ignore[arg-type]


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def ranks(number: int, iteration: int = 50) -> tuple[RankSnapshot, ...]:
    return tuple(
        RankSnapshot(each, iteration, AT - 0.2, phase="forward", progressed_at=AT - 1)
        for each in range(number)
    )


def test_progress_has_a_share_and_an_end(report: RunReport) -> None:
    shown = text(parts(report, replace(busy_snapshot(), iteration=40, total_iterations=100))["now"])
    assert "Iteration 40 of 100 (40.0%" in shown and " left, at " in shown
    usual = time_left(report, 40, 100)
    assert usual is not None and usual > 0


def test_a_run_that_hangs_has_no_end_in_view(report: RunReport) -> None:
    hang = Finding("stalled", Cause.HANG, Severity.CRITICAL, "no progress")
    assert time_left(replace(report, findings=(hang,)), 40, 100) is None
    assert time_left(report, 100, 100) is None
    assert time_left(replace(report, series=()), 40, 100) is None


def test_the_numbers_of_the_newest_line_are_shown(report: RunReport) -> None:
    shown = text(parts(report, busy_snapshot())["now"])
    for name in ("Step time", "Tokens/s", "TFLOP/s 412 per GPU", "Gradient norm", "Loss scale"):
        assert name in shown


def test_nothing_seen_is_a_page_too(report: RunReport) -> None:
    found = parts(report, empty_snapshot())
    assert "Nothing is running yet" in found["ranks"]
    assert "Iteration 40 of 100" in text(parts(report, None)["now"])
    assert parts(replace(report, is_over=True), None)["now"] == ""


def test_what_mwatch_would_do_has_its_time_and_its_reason(report: RunReport) -> None:
    decision = Decision(
        Action.RESTART, Cause.HANG, 1, "rank 3 is stuck", resume_from=400, act_at=AT + 30
    )
    asked = replace(busy_snapshot(), decision=decision, is_acting=False)
    shown = text(parts(report, asked)["next"])
    assert "What mwatch would do" in shown and "only observes" in shown
    assert "Restart from checkpoint 400 in 30 s" in shown and "rank 3 is stuck" in shown
    acting = text(parts(report, replace(asked, is_acting=True))["next"])
    assert "What mwatch will do" in acting and "3 restarts left" in acting
    assert parts(replace(report, is_over=True), asked)["next"] == ""


@pytest.mark.parametrize("number", [1, 8, LARGE])
def test_few_ranks_have_a_card_each(report: RunReport, number: int) -> None:
    html = parts(report, replace(busy_snapshot(), ranks=ranks(number), findings=()))["ranks"]
    assert html.count('<li class="good" id="rank-') == number
    assert text(html).count("iteration 50") == number


def test_a_card_has_the_use_and_heat_of_its_gpu(report: RunReport) -> None:
    html = parts(report, replace(busy_snapshot(), ranks=ranks(4)))["ranks"]
    assert "GPU 97% 61 °C" in text(html)
    assert "GPUs without a known rank: 1:" in text(html)


def test_two_thousand_ranks_are_squares_and_the_odd_ones_have_a_row(report: RunReport) -> None:
    blame = Finding(
        "rank_silent", Cause.HANG, Severity.CRITICAL, "rank 7 silent", culprit=Culprit(rank=7)
    )
    many = list(ranks(2048))
    many[7] = many[7]._replace(progressed_at=AT - 60)
    many[9] = many[9]._replace(iteration=45)
    asked = replace(
        busy_snapshot(), ranks=tuple(many), findings=(blame,), hang_deadline_seconds=30.0
    )
    html = parts(report, asked)["ranks"]
    assert html.count("<li class=") == 2048 + 3, "with the legend"
    rows = text(html.partition('class="odd">')[2].partition("</ol>")[0])
    assert rows.index("rank 7, culprit: hang") < rows.index("rank 9, behind by 5")
    assert len(html) < 400_000


def test_squares_change_with_the_state_of_a_rank_and_not_with_its_numbers(
    report: RunReport,
) -> None:
    renderer, busy = LiveParts(), replace(busy_snapshot(), findings=(), gpus=())
    places = dict.fromkeys(range(200), "pod a, node <n>")

    def shown(number: int, seconds: float, odd: int | None = None) -> str:
        moved = [
            each._replace(iteration=number, beat_at=AT + seconds, progressed_at=AT + seconds)
            for each in ranks(200)
        ]
        if odd is not None:
            moved[odd] = moved[odd]._replace(iteration=number - 4)
        now = replace(busy, at=AT + seconds, ranks=tuple(moved))
        view = LiveView(now, places=places, rank_count=5000)
        return renderer.render(report, view)["ranks"]

    first = shown(50, 0.0)
    assert "200 of 5,000" in text(first) and first.count('<li class="good"') == 201
    assert 'title="rank 7, in step, pod a, node &lt;n&gt;"' in first
    assert shown(60, 9.0) == first
    late = shown(70, 18.0, odd=7)
    assert 'class="warn" title="rank 7, behind by 4, pod a' in late
    assert late.count('<li class="good"') == 200
    assert shown(80, 27.0) == first


def test_a_rank_whose_report_is_older_is_not_behind(report: RunReport) -> None:
    """The controller hears of each pod at another moment."""
    busy = busy_snapshot()
    step = busy.numbers.step_seconds
    assert step is not None
    young, old, slow = ranks(3)
    old = old._replace(iteration=46, beat_at=young.beat_at - 4 * step)
    slow = slow._replace(iteration=46, beat_at=young.beat_at - step)
    asked = replace(busy, ranks=(young, old, slow), findings=(), hang_deadline_seconds=600.0)
    html = parts(report, asked)["ranks"]
    assert '<li class="good" id="rank-1">' in html and '<li class="warn" id="rank-2">' in html


def test_ranks_without_iterations_are_judged_by_their_probe(report: RunReport) -> None:
    quiet = [RankSnapshot(0, None, AT - 0.5, progressed_at=AT - 100)]
    quiet.append(RankSnapshot(1, None, AT - 9, progressed_at=AT - 100))
    asked = replace(busy_snapshot(), ranks=tuple(quiet), findings=(), hang_deadline_seconds=5.0)
    html = parts(report, asked)["ranks"]
    assert '<li class="good" id="rank-0">' in html and '<li class="bad" id="rank-1">' in html


def test_ranks_that_wait_for_the_culprit_do_not_look_like_it(report: RunReport) -> None:
    blame = Finding(
        "rank_silent", Cause.HANG, Severity.CRITICAL, "rank 1 silent", culprit=Culprit(rank=1)
    )
    silent = tuple(each._replace(progressed_at=AT - 60) for each in ranks(2))
    asked = replace(busy_snapshot(), ranks=silent, findings=(blame,), hang_deadline_seconds=30.0)
    html = parts(report, asked)["ranks"]
    assert '<li class="warn" id="rank-0">' in html and '<li class="bad" id="rank-1">' in html


def test_checkpoints_are_listed_with_their_state(report: RunReport) -> None:
    saved = tuple(CheckpointStory(each, AT, "good", "", "complete") for each in range(10, 400, 10))
    by_log = CheckpointStory(395, AT, "good")
    bad = CheckpointStory(400, AT, "broken", "shard 3 is missing")
    asked = replace(report, checkpoints=(*saved, by_log, bad))
    html = parts(asked, None, protected=frozenset({390}))["checkpoints"]
    shown = text(html)
    assert "400" in shown and "shard 3 is missing" in shown
    assert "complete, good" in shown and shown.count("saved, by the log") == 1
    assert shown.count("protected") == 1 and "older ones not shown" in shown


def test_hostile_text_is_only_text(report: RunReport) -> None:
    evil = "</script><script>alert(1)</script>"
    decision = Decision(Action.STOP, Cause.CRASH, 1, evil, proposal=evil, resume_reason=evil)
    snapshot = replace(
        busy_snapshot(), decision=decision,
        ranks=(RankSnapshot(0, 1, AT, phase=evil),),
    )  # fmt: skip
    asked = replace(report, run=evil, command=evil, notes=(evil,))
    found = parts(asked, snapshot, title=evil, commands=((evil, evil),))
    page = document(found, Place("a", "b.1"), is_over=False)
    assert "<script>alert" not in page
    assert page.count("<script") == 3
    assert "alert(1)" in text(page) or "alert(1)" in page


def test_a_report_with_too_much_evidence_stays_bounded(report: RunReport) -> None:
    notes = tuple(f"{number} " + "x" * 1990 for number in range(64))
    renderer = LiveParts()
    found = renderer.render(replace(report, notes=notes), LiveView())
    assert sum(map(len, found.values())) < 2_000_000


def test_charts_are_drawn_again_only_when_they_are_worth_their_cost(report: RunReport) -> None:
    eager, thrifty = LiveParts(1e9), LiveParts(1e-9)
    later = replace(report, series=report.series[:20])
    for renderer in (eager, thrifty):
        renderer.render(report, LiveView())
    assert eager.render(later, LiveView())["data"] != thrifty.render(later, LiveView())["data"]
    over = thrifty.render(replace(later, is_over=True), LiveView())
    assert over["data"] == eager.render(replace(later, is_over=True), LiveView())["data"]
