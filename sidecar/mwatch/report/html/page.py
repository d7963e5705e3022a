# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run as one HTML file that needs nothing else: to be mailed, kept or opened.

All text is escaped. The page's own policy forbids it to load anything and to run any script but the
one whose hash it names. The page is never larger than MAX_BYTES: if a run has more, evidence is cut
first, and the page says so.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from mwatch import __version__
from mwatch.report.files import check_target, write_target
from mwatch.report.html import sections, timeline_band
from mwatch.report.html.charts import CHARTS, Frame, charts, frame, tables
from mwatch.report.html.sections import incidents
from mwatch.report.html.text import Detail, esc
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket

MAX_BYTES = 2_000_000
SUFFIXES = (".html", ".htm")
FIX = "name another file with --out"
_LEVELS = (Detail(8, 600, 40), Detail(3, 240, 20), Detail(1, 100, 10), Detail(0, 40, 4))
_MOST = 256
"""Incidents, attempts and checkpoints: as many as a recorder keeps."""


def render(report: RunReport, title: str = "") -> str:
    drawn = frame(_bounded(report))
    page = ""
    for detail in _LEVELS:
        page = _page(drawn, (title or report.run)[:200], detail)
        if len(page.encode("utf-8", "replace")) <= MAX_BYTES:
            break
    return page


def _bounded(report: RunReport) -> RunReport:
    """Cut what a file may hold beyond the limits of a recorder."""
    left_out = max(0, len(report.incidents) - _MOST) + max(0, len(report.attempts) - _MOST)
    return replace(
        report,
        verdict=replace(report.verdict, summary=report.verdict.summary[:600]),
        incidents=report.incidents[-_MOST:],
        attempts=report.attempts[-_MOST:],
        checkpoints=report.checkpoints[-_MOST:],
        phases=report.phases[-4 * _MOST :],
        spent=report.spent[:32],
        sights=report.sights[:32],
        left_out=report.left_out + left_out,
    )


def _page(drawn: Frame, title: str, detail: Detail) -> str:
    report = drawn.report
    body = (
        sections.header(report, title),
        sections.figures(report),
        _panel(drawn),
        incidents(report, detail),
        sections.attempts(report, detail),
        sections.goodput(report),
        sections.seen(report, detail),
        sections.happened(report, detail),
        _footer(report, is_cut=detail is not _LEVELS[0]),
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{esc(title)} · mwatch</title><style>{_asset('page.css')}</style></head>\n"
        f"<body><main>{chr(10).join(body)}</main>\n"
        f'<script type="application/json" id="data">{_data(drawn)}</script>\n'
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )


@cache
def _asset(name: str) -> str:
    return resources.files("mwatch.report.html").joinpath(name).read_text("utf-8")


def _policy() -> str:
    """Load nothing, and run only our script. (Places on the axis are inline styles.)"""
    digest = base64.b64encode(hashlib.sha256(_asset("page.js").encode()).digest()).decode()
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
        parts.append('<p class="dim">The log has no iteration lines.</p>')
    return (
        '<div class="panel"><div class="bar-top"><h2>The run</h2>'
        '<button id="reset" type="button" hidden>Whole run</button>'
        '<fieldset class="views"><legend hidden>Axis</legend>'
        '<label><input type="radio" name="view" id="view-time" checked>by time</label>'
        '<label><input type="radio" name="view" id="view-step">by iteration</label></fieldset>'
        f'</div><div class="stacked">{"".join(parts)}</div>{tables(drawn)}</div>'
    )


def _data(drawn: Frame) -> str:
    """The numbers under the pointer; `<` is escaped so that no text can end the block."""
    body = {
        "rows": [_row(drawn, each) for each in drawn.buckets],
        "names": [chart.short for chart in CHARTS],
        "phases": [
            [drawn.time.place(each.began_at), drawn.time.place(each.ended_at), each.phase]
            for each in drawn.report.phases
        ],
        "time": [drawn.time.low, drawn.time.high],
        "step": [drawn.step.low, drawn.step.high],
        "relative": drawn.report.clock.is_relative,
        "offset": drawn.report.clock.offset_seconds,
    }
    text = json.dumps(body, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _row(drawn: Frame, each: Bucket) -> list[float | int | None]:
    spans = (chart.pick(each) for chart in CHARTS)
    values = [None if span is None else float(f"{span.mean:.6g}") for span in spans]
    places = (drawn.time_of(each), drawn.step_of(each))
    head = (each.attempt, each.first, each.last, round(each.ended_at, 1))
    return [*places, *head, *values, each.skipped, each.bad]


def _footer(report: RunReport, *, is_cut: bool) -> str:
    cut = " Evidence is shortened, because there is too much for one page." if is_cut else ""
    state = "" if report.is_over else " The run was still going on when this was written."
    return (
        f"<footer>Made by mwatch {esc(__version__)}. One file: nothing is loaded from "
        f"elsewhere.{cut}{state} Drag across a chart to zoom; double click for the whole run."
        "</footer>"
    )


def write_page(page: str, file: Path) -> int:
    """Return the size in bytes."""
    check_target(file, *SUFFIXES, fix=FIX)
    data = page.encode("utf-8", "replace")
    write_target(file, data, fix=FIX)
    return len(data)
