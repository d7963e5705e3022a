# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the ranks stood, in the incident's record, the HTML page and the Markdown file."""

from __future__ import annotations

from dataclasses import replace

from mwatch.model.cause import Cause
from mwatch.model.finding import Finding, Severity
from mwatch.model.incident import describe, from_json, to_json
from mwatch.model.observation import StackKind
from mwatch.model.stacks import StackGroup
from mwatch.report import story_json
from mwatch.report.html.page import render
from mwatch.report.markdown import to_markdown
from mwatch.report.model import IncidentStory
from mwatch.report.run_report import RunReport
from support.builders.story import quiet

GROUPS = (
    StackGroup(7, "0-4,6-7", StackKind.COLLECTIVE, "all_reduce", "training.py:3532 in step",
               ("step (training/training.py:3532)", "<module> (work/pretrain.py:9)")),
    StackGroup(1, "5", StackKind.DATA, "DataLoader.__next__", "data.py:7 in <lambda>",
               ("<lambda> (work/data.py:7)", "<module> (work/pretrain.py:9)"), 5),
)  # fmt: skip


def with_stacks() -> RunReport:
    incident = IncidentStory(1, "hang", "critical", "stuck", 7, 10.0, 20.0, stacks=GROUPS)
    return quiet(incidents=(incident,))


def test_the_record_of_an_incident_keeps_them() -> None:
    finding = Finding("stalled", Cause.HANG, Severity.CRITICAL, "x", stacks=GROUPS)
    record = describe("20260101T000000Z-a1-hang", "run", finding, None, attempt=1, is_act=False)
    assert from_json(to_json(record)).stacks == GROUPS
    assert "stacks" not in to_json(replace(record, stacks=())), "as older releases wrote it"


def test_the_story_keeps_them() -> None:
    report = with_stacks()
    assert story_json.from_json(story_json.to_json(report)).incidents[0].stacks == GROUPS


def test_the_page_shows_places_and_one_tree_of_calls() -> None:
    page = render(with_stacks())
    assert "rank 5: `DataLoader.__next__`, called from data.py:7 in &lt;lambda&gt;" in page
    assert "8 ranks: &lt;module&gt; (work/pretrain.py:9)" in page


def test_the_markdown_file_shows_places() -> None:
    text = to_markdown(with_stacks())
    assert "Where the ranks stood in incident 1" in text
    assert "7 ranks (0-4,6-7): 'all_reduce', called from training.py:3532 in step" in text
