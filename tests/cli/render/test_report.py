# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reports as people read them: one screen, whatever there is to say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.cli.render import report as render_diagnose
from mwatch.cli.render import report as render_replay
from mwatch.cli.shared.formats import clock, culprit_text, duration, share
from mwatch.cli.shared.terminal import Line, plain, wrapped
from mwatch.model.cause import Cause
from mwatch.model.finding import Culprit, CulpritState, Evidence
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.model import ReportClock
from mwatch.report.run_report import RunReport
from support.runs.recorded import RunLog, moment

LONG = "a sentence that goes on and on " * 30


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    file = tmp_path_factory.mktemp("logs") / "trainer.log"
    log = RunLog(total=400).start().steps(1, 100).save(100).steps(101, 150).killed()
    log.wait(20.0).start(load=100).steps(101, 180).killed()
    file.write_text(str(log))
    return replay(ReplayRequest([str(file)]), moment(10**7))


def text(lines: list[Line]) -> str:
    return "\n".join("".join(part for part, _ in line) for line in lines)


def crowded(report: RunReport) -> RunReport:
    """Everything that can be long is long."""
    finding = report.findings[0]
    evidence = tuple(Evidence("trainer.log", number, LONG) for number in range(8))
    finding = replace(finding, evidence=evidence, summary=LONG)
    others = tuple(replace(finding, cause=cause) for cause in (Cause.SLOW, Cause.LOSS_STUCK) * 4)
    decision = replace(
        report.decision, reason=LONG, resume_reason=LONG, proposal=LONG, finding=finding
    )
    culprit = Culprit(3, CulpritState.BEHIND, {"tp": 1}, "pod", "node", "GPU-1", 79)
    return replace(
        report,
        verdict=replace(report.verdict, summary=LONG, culprit=culprit),
        decision=decision,
        findings=(finding, *others),
        advice=replace(report.advice, step=LONG),
        notes=(LONG,) * 9,
    )


def test_diagnose_fits_on_the_smallest_screen(report: RunReport) -> None:
    for each in (report, crowded(report)):
        lines = render_diagnose.render_diagnosis(each)
        assert len(lines) <= 23
        assert "runbook" in text(lines)
        assert "mwatch" in text(lines)
        assert "evidence" in text(lines)


def test_diagnose_says_what_when_who_why_and_what_next(report: RunReport) -> None:
    said = text(render_diagnose.render_diagnosis(report))
    for part in ("KILLED since iteration 181", "2 attempts", "culprit", "rank 0", "trainer.log:",
                 "restart from checkpoint 100", "goodput", "next", "earlier"):  # fmt: skip
        assert part in said, part


def test_replay_shows_every_finding_with_its_lines(report: RunReport) -> None:
    said = text(render_replay.render_replay(report))
    assert said.count("would have restarted from checkpoint 100") == 2
    assert "attempt 2 starts" in said
    assert "loaded checkpoint 100" in said
    for finding in report.findings:
        assert finding.summary in said


def test_a_long_timeline_is_cut_in_the_middle(report: RunReport) -> None:
    many = tuple(replace_entry(report, number) for number in range(500))
    lines = render_replay.render_replay(replace(report, timeline=many))
    assert "entries left out" in text(lines)
    assert len(lines) < 120


def replace_entry(report: RunReport, number: int):  # type: ignore[no-untyped-def]
    return replace(report.timeline[0], at=report.timeline[0].at + number)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.0, "0.0 s"), (9.9, "9.9 s"), (59.6, "60 s"), (125.0, "2 min 5 s"), (7260.0, "2 h 1 min"),
     (200_000.0, "2 d 7 h")],
)  # fmt: skip
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_times_are_of_the_log_or_relative(report: RunReport) -> None:
    assert clock(report, moment(5.0)) == "2026-01-07 10:00:05"
    assert clock(replace(report, clock=ReportClock(is_relative=True)), 72.0) == "+72 s"
    assert clock(report, None) == "?"


def test_a_culprit_in_words() -> None:
    culprit = Culprit(3, CulpritState.NEVER_JOINED, {"tp": 1, "pp": 0}, "w-1", "n-7", None, 79)
    assert culprit_text(culprit) == "rank 3 (tp 1 pp 0), pod w-1, node n-7, Xid 79: never joined"
    assert culprit_text(Culprit(state=CulpritState.ALL_EQUAL)) == "all equal"
    assert culprit_text(Culprit()) is None
    assert culprit_text(None) is None


def test_shares() -> None:
    assert (share(1, 4), share(1, 0)) == ("25.0%", "?")


def test_text_of_a_log_is_made_harmless() -> None:
    assert plain("a\tb\x1b[31m\x07é") == "a b\\x1b[31m\\x07é"


def test_wrapped_text_is_cut_where_it_is_too_long() -> None:
    lines = wrapped(LONG, 40, 2)
    assert len(lines) == 2
    assert lines[1].endswith("...")
    assert wrapped("", 40, 2) == [""]


def test_a_report_file_and_the_screen_agree(report: RunReport, tmp_path: Path) -> None:
    assert str(report.decision.resume_from) in text(render_diagnose.render_diagnosis(report))
