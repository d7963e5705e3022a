# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run: one HTML file that needs nothing else, to be mailed, kept, or opened.

All text is escaped; the page forbids itself (by its own policy) to load anything and to run any
script but the one whose hash it names. It is never larger than MAX_BYTES: where a run has more
to tell than fits, evidence is cut first, and the page says so.

The report page as a file: whole, or not at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

from mwatch import __version__
from mwatch.errors import InputError
from mwatch.report.html import sections, timeline_band
from mwatch.report.html.assets import SCRIPT, style
from mwatch.report.html.charts import CHARTS, Frame, charts, frame, tables
from mwatch.report.html.sections import incidents
from mwatch.report.html.text import Detail, esc
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket
from mwatch.runtime.files import replace_file

MAX_BYTES = 2_000_000
_LEVELS = (Detail(8, 600, 40), Detail(3, 240, 20), Detail(1, 100, 10), Detail(0, 40, 4))
_MOST = 256
"""Incidents, attempts and checkpoints; a recorder keeps no more."""


def render(story: RunReport, title: str = "") -> str:
    """The whole page."""
    drawn = frame(_bounded(story))
    page = ""
    for detail in _LEVELS:
        page = _page(drawn, (title or story.run)[:200], detail)
        if len(page.encode("utf-8", "replace")) <= MAX_BYTES:
            break
    return page


def _bounded(story: RunReport) -> RunReport:
    """A file may hold more than any recorder would."""
    left_out = max(0, len(story.incidents) - _MOST) + max(0, len(story.attempts) - _MOST)
    return replace(
        story,
        verdict=replace(story.verdict, summary=story.verdict.summary[:600]),
        incidents=story.incidents[-_MOST:],
        attempts=story.attempts[-_MOST:],
        checkpoints=story.checkpoints[-_MOST:],
        phases=story.phases[-4 * _MOST :],
        spent=story.spent[:32],
        sights=story.sights[:32],
        left_out=story.left_out + left_out,
    )


def _page(drawn: Frame, title: str, detail: Detail) -> str:
    story = drawn.story
    body = (
        sections.header(story, title),
        sections.figures(story),
        _panel(drawn),
        incidents(story, detail),
        sections.attempts(story, detail),
        sections.goodput(story),
        sections.seen(story, detail),
        sections.happened(story, detail),
        _footer(story, is_cut=detail is not _LEVELS[0]),
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{esc(title)} · mwatch</title><style>{style()}</style></head>\n"
        f"<body><main>{chr(10).join(body)}</main>\n"
        f'<script type="application/json" id="data">{_data(drawn)}</script>\n'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _policy() -> str:
    """Nothing is loaded; of scripts, only ours runs. (Places on the axis are inline styles.)"""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _panel(drawn: Frame) -> str:
    marks = timeline_band.marks(drawn)
    axis = timeline_band.axis_labels(drawn)
    drawings = list(charts(drawn, marks, timeline_band.checkpoints(drawn) + axis))
    parts = [
        timeline_band.pins(drawn),
        *drawings[:1],
        timeline_band.phase_band(drawn),
        *drawings[1:],
        axis,
    ]
    if not drawn.buckets:
        parts.append('<p class="dim">No iteration line was seen.</p>')
    return (
        '<div class="panel"><div class="bar-top"><h2>The run</h2>'
        '<button id="reset" type="button" hidden>Whole run</button>'
        '<fieldset class="views"><legend hidden>Axis</legend>'
        '<label><input type="radio" name="view" id="view-time" checked>by time</label>'
        '<label><input type="radio" name="view" id="view-step">by iteration</label></fieldset>'
        f'</div><div class="stacked">{"".join(parts)}</div>{tables(drawn)}</div>'
    )


def _data(drawn: Frame) -> str:
    """For the pointer; `<` is written so that no text in it can end the block."""
    told = {
        "rows": [_row(drawn, each) for each in drawn.buckets],
        "names": [chart.short for chart in CHARTS],
        "phases": [
            [drawn.time.place(each.began_at), drawn.time.place(each.ended_at), each.phase]
            for each in drawn.story.phases
        ],
        "time": [drawn.time.low, drawn.time.high],
        "step": [drawn.step.low, drawn.step.high],
        "relative": drawn.story.clock.is_relative,
        "offset": drawn.story.clock.offset_seconds,
    }
    text = json.dumps(told, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _row(drawn: Frame, each: Bucket) -> list[float | int | None]:
    spans = (chart.pick(each) for chart in CHARTS)
    values = [None if span is None else float(f"{span.mean:.6g}") for span in spans]
    places = (drawn.time_of(each), drawn.step_of(each))
    head = (each.attempt, each.first, each.last, round(each.ended_at, 1))
    return [*places, *head, *values, each.skipped, each.bad]


def _footer(story: RunReport, *, is_cut: bool) -> str:
    cut = " There was more evidence than fits; it is cut here." if is_cut else ""
    state = "" if story.is_over else " The run was still going on when this was written."
    return (
        f"<footer>Made by mwatch {esc(__version__)}. One file: nothing is loaded from "
        f"elsewhere.{cut}{state} Drag across a chart to zoom; double click for the whole run."
        "</footer>"
    )


_SUFFIXES = (".html", ".htm")


def check_target(file: Path) -> None:
    """Before a long replay: InputError where the page could not be written."""
    if file.is_dir():
        raise InputError(f"{file}: is a folder; name a file in it with --out")
    if file.suffix not in _SUFFIXES:
        raise InputError(f"{file}: name it .html, for that is what is written")
    if not file.parent.is_dir():
        raise InputError(f"{file}: there is no folder {file.parent}; make it first")
    if not os.access(file.parent, os.W_OK):
        raise InputError(f"{file}: its folder may not be written to; name another with --out")


def write_page(page: str, file: Path) -> int:
    """Returns its bytes."""
    check_target(file)
    data = page.encode("utf-8", "replace")
    try:
        replace_file(file, data)
    except OSError as error:
        fix = "name another place with --out"
        raise InputError(f"{file}: cannot be written ({error.strerror}); {fix}") from error
    return len(data)
