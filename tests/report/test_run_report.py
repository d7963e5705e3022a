# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report's shape is a promise; its files are whole or not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.errors import InputError
from mwatch.model.finding import Culprit, CulpritState
from mwatch.replay.replay import ReplayRequest, replay
from mwatch.report.files import check_target
from mwatch.report.markdown import SUFFIXES, to_json, to_markdown, write_report
from mwatch.report.run_report import RunReport, iso
from support.runs.recorded import RunLog, moment


@pytest.fixture
def report(tmp_path: Path) -> RunReport:
    run = RunLog(total=400).start().steps(1, 100).save(100).steps(101, 150).killed()
    file = tmp_path / "trainer.log"
    file.write_text(str(run))
    return replay(ReplayRequest([str(file)]), moment(10**7))


def test_the_keys_are_those_of_the_contract(report: RunReport) -> None:
    record = json.loads(to_json(report))
    assert list(record)[:5] == ["verdict", "decision", "findings", "goodput", "attempts"]
    assert list(record["verdict"]) == ["cause", "summary", "since", "culprit", "confidence"]
    assert list(record["verdict"]["since"]) == ["iteration", "time"]
    assert list(record["decision"])[:3] == ["action", "resume_from", "reason"]
    assert set(record["attempts"][0]) >= {
        "number", "started", "ended", "first_iteration", "last_iteration", "resumed_from", "cause",
        "decision",
    }  # fmt: skip
    assert {"incidents", "timeline", "notes"} <= set(record)
    assert record["verdict"]["since"] == {"iteration": 151, "time": "2026-01-07T10:02:43"}


def test_a_culprit_has_all_its_keys(report: RunReport) -> None:
    culprit = Culprit(3, CulpritState.BEHIND, {"tp": 1, "pp": 0, "dp": 0}, "pod-1", "node-7")
    named = replace(report, verdict=replace(report.verdict, culprit=culprit))
    assert named.to_json()["verdict"]["culprit"] == {
        "rank": 3, "state": "behind", "coordinates": {"tp": 1, "pp": 0, "dp": 0}, "pod": "pod-1",
        "node": "node-7", "gpu_uuid": None, "xid": None, "place": None, "file": None,
    }  # fmt: skip


def test_numbers_that_json_has_not_are_null(report: RunReport) -> None:
    odd = replace(report, verdict=replace(report.verdict, confidence=float("nan")))
    assert json.loads(to_json(odd))["verdict"]["confidence"] is None


@pytest.mark.parametrize("at", [-1e20, 1e20, float("nan"), float("inf")])
def test_a_moment_that_no_calendar_has_is_still_text(at: float) -> None:
    assert isinstance(iso(at), str)


def test_a_report_is_written_whole(report: RunReport, tmp_path: Path) -> None:
    for name in ("out.json", "out.md"):
        write_report(report, tmp_path / name)
        write_report(report, tmp_path / name)  # again: it is replaced
    assert json.loads((tmp_path / "out.json").read_text())["verdict"]["cause"] == "killed"
    assert (tmp_path / "out.md").read_text() == to_markdown(report)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "out.json", "out.md", "trainer.log",
    ]  # fmt: skip


def test_markdown_names_evidence_and_the_decision(report: RunReport) -> None:
    text = to_markdown(report)
    assert text.startswith("# killed: ")
    assert "from checkpoint 100" in text
    assert "trainer.log:" in text
    for title in ("Findings", "Incidents", "Attempts", "Timeline", "Goodput", "Read"):
        assert f"## {title}" in text


def test_markdown_does_not_obey_what_a_log_says(report: RunReport) -> None:
    evil = replace(report, notes=("a | b\n# title <script>`x`",))
    assert "\n# title" not in to_markdown(evil)
    assert "<script>" not in to_markdown(evil)


@pytest.mark.parametrize(
    ("name", "said"),
    [("x.html", ".md or .json"), ("x", ".md or .json"), ("no/x.md", "create it first")],
)
def test_a_target_that_cannot_be_is_refused_at_once(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_target(tmp_path / name, *SUFFIXES)


def test_a_folder_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "x.md").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        check_target(tmp_path / "x.md")
