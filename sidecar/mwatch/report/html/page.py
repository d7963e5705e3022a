# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run as one self-contained HTML file, to be mailed or archived.

All text is escaped. The page's Content-Security-Policy forbids it to load anything and to run any
script except those whose hashes it lists. The page never exceeds MAX_BYTES: if a run has more data,
evidence is cut first, and the page contains a note about it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

from mwatch import __version__
from mwatch.report.files import check_target, write_target
from mwatch.report.html import sections
from mwatch.report.html.charts import CHARTS, Frame, charts, frame, tables
from mwatch.report.html.incidents import incidents, log_section
from mwatch.report.html.scale import WIDTH, Across, Tick, labels_by_step, labels_by_time
from mwatch.report.html.text import Detail, cause_name, count, duration, esc, when
from mwatch.report.model import IncidentStory, PhaseSpan
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket

_PIN_ROWS = 4
_PIN_WIDTH = 2.6
"""Percent of the page width; pins closer than this go into different rows."""
_THINNEST = 0.8
PHASES = (
    "training", "first-step", "saving", "async-finalize", "evaluating", "loading", "starting",
    "stopping", "queued", "scheduling",
)  # fmt: skip


def until(frame: Frame, incident: IncidentStory) -> float:
    """Return the end of an incident: closed, acted on (in act mode), or end of the report."""
    ends = [incident.closed_at, incident.acted_at if frame.report.mode == "act" else None]
    return min((each for each in ends if each is not None), default=frame.time.high)


def since(incident: IncidentStory) -> float:
    at = None if incident.severity == "warning" else incident.since_at
    return incident.detected_at if at is None else min(at, incident.detected_at)


def marks(frame: Frame) -> str:
    """Draw the incidents behind every chart, by time and by iteration."""
    by_time, by_step = [], []
    for each in frame.report.incidents:
        is_mild = each.severity == "warning"
        kind = "warn" if is_mild else "bad"
        left = frame.time.place(since(each))
        if is_mild:  # a band of several days would hide worse incidents
            by_time.append(f'<path class="at {kind}" d="M{left:g} 0v100"/>')
        else:
            wide = max(_THINNEST, frame.time.place(until(frame, each)) - left)
            by_time.append(
                f'<rect class="span {kind}" x="{left:g}" width="{wide:g}" y="0" height="100"/>'
            )
        if each.since_iteration is not None:
            at = frame.step.place(float(each.since_iteration))
            by_step.append(f'<path class="at {kind}" d="M{at:g} 0v100"/>')
    starts = "".join(
        f"M{frame.time.place(each.started_at):g} 0v100" for each in frame.report.attempts[1:]
    )
    by_time.append(f'<path class="start" d="{starts}"/>' if starts else "")
    return f'<g class="by-time">{"".join(by_time)}</g><g class="by-step">{"".join(by_step)}</g>'


def pins(frame: Frame) -> str:
    """Render the incident numbers as links to their evidence."""
    numbered = list(enumerate(frame.report.incidents, 1))
    if not numbered:
        return ""
    by_time = [(number, each, frame.time.place(since(each))) for number, each in numbered]
    by_step = [
        (number, each, frame.step.place(float(each.since_iteration)))
        for number, each in numbered
        if each.since_iteration is not None
    ]
    rows = max(len(set(_rows([x for *_, x in of]))) for of in (by_time, by_step))
    return (
        f'<nav class="pins" aria-label="Incidents" style="--rows:{max(1, rows)}">'
        f"{_pins(by_time, 'by-time')}{_pins(by_step, 'by-step')}</nav>"
    )


def _pins(placed: Sequence[tuple[int, IncidentStory, float]], view: str) -> str:
    rows = _rows([x for *_, x in placed])
    return "".join(
        f'<a class="pin {view} {"warn" if each.severity == "warning" else "bad"}" '
        f'href="#incident-{number}" style="--a:{x / WIDTH * 100:.2f};--row:{row}" '
        f'title="{esc(cause_name(each.cause))}: {esc(each.summary[:80])}" '
        f'aria-label="Incident {number}: {esc(cause_name(each.cause))}">{number}</a>'
        for (number, each, x), row in zip(placed, rows, strict=True)
    )


def _rows(places: Sequence[float]) -> list[int]:
    """Return for each pin the lowest row where it does not overlap the pin on its left."""
    taken = [-WIDTH] * _PIN_ROWS
    found = [0] * len(places)
    for index in sorted(range(len(places)), key=places.__getitem__):
        x = places[index]
        free = (row for row in range(_PIN_ROWS) if x - taken[row] >= _PIN_WIDTH * WIDTH / 100)
        found[index] = next(free, 0)
        taken[found[index]] = x
    return found


def _attempts(frame: Frame) -> str:
    """Render one bracket per attempt, with the checkpoint that it resumed from."""
    spans = []
    for each in frame.report.attempts:
        left = frame.time.place(each.started_at)
        right = frame.time.place(frame.time.high if each.ended_at is None else each.ended_at)
        source = "" if each.resumed_from is None else f" from {each.resumed_from:,}"
        spans.append(
            f'<span class="attempt" style="--a:{left / 10:.2f};--b:{right / 10:.2f}" '
            f'title="Attempt {each.number}{source}">#{each.number}{source}</span>'
        )
    return f'<div class="lane attempts" aria-hidden="true">{"".join(spans)}</div>'


def phase_band(frame: Frame) -> str:
    spans = frame.report.phases
    if not spans:
        return ""
    found = {each.phase for each in spans}
    present = [each for each in PHASES if each in found] + sorted(found - set(PHASES))
    lengths = dict.fromkeys(present, 0.0)
    for each in spans:
        lengths[each.phase] += each.ended_at - each.began_at
    paths = "".join(
        f'<path class="p-{esc(name)}" d="{_boxes(frame.time, spans, name)}"/>' for name in present
    )
    strips = _strips(frame)
    legend = "".join(f'<li class="p-{esc(name)}">{esc(name)}</li>' for name in present)
    legend += '<li class="l-incident">incident</li>' if strips else ""
    summary = ", ".join(f"{name} {duration(length)}" for name, length in lengths.items())
    return (
        f'<figure class="chart by-time" id="phases"><figcaption><b>Phases</b></figcaption>'
        f"{_attempts(frame)}"
        f'<div class="plot band"><div class="clip">'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="phases-t phases-d"><title id="phases-t">Phases</title>'
        f'<desc id="phases-d">{esc(summary)}</desc>{paths}{strips}</svg></div></div>'
        f'<ul class="legend">{legend}</ul></figure>'
    )


def _strips(frame: Frame) -> str:
    """Draw red strips under the phases in which incidents happened."""
    places = [
        (frame.time.place(since(each)), frame.time.place(until(frame, each)))
        for each in frame.report.incidents
        if each.severity != "warning"
    ]
    boxes = "".join(
        f"M{left:g} 72h{max(_THINNEST, right - left):g}v28H{left:g}z" for left, right in places
    )
    return f'<path class="strip" d="{boxes}"/>' if boxes else ""


def _boxes(axis: Across, spans: Iterable[PhaseSpan], phase: str) -> str:
    boxes = []
    for each in spans:
        if each.phase == phase:
            left = axis.place(each.began_at)
            wide = max(_THINNEST, axis.place(each.ended_at) - left)
            boxes.append(f"M{left:g} 0h{wide:g}v100h-{wide:g}z")
    return "".join(boxes)


def checkpoints(frame: Frame) -> str:
    """Draw small marks under the loss chart, one per checkpoint, styled by its state."""
    report = frame.report
    shown = []
    for each in report.checkpoints:
        places = [("by-step", frame.step.place(float(each.iteration)))]
        if each.saved_at is not None:
            places.append(("by-time", frame.time.place(each.saved_at)))
        about = f"Checkpoint {each.iteration:,}: {each.state}"
        about += f", {each.reason[:80]}" * bool(each.reason)
        state, title = esc(each.state[:20]), esc(about[:160])
        shown += [
            f'<i class="{view} c-{state}" style="--a:{x / 10:.2f}" title="{title}"></i>'
            for view, x in places
        ]
    if not shown:
        return ""
    number = count(len(report.checkpoints))
    states = {each.state for each in report.checkpoints}
    names = {"good": "saved", "abandoned": "rolled back", "broken": "broken", "unknown": "unsure"}
    legend = "".join(
        f'<li class="c-{state}">{name}</li>' for state, name in names.items() if state in states
    )
    return (
        f'<div class="saves"><div class="lane marks" role="img" '
        f'aria-label="{number} checkpoints">{"".join(shown)}</div>'
        f'<ul class="legend small" aria-hidden="true"><li class="plain">Checkpoints:</li>{legend}'
        "</ul></div>"
    )


def axis_labels(frame: Frame) -> str:
    clock = frame.report.clock
    zone = "since the first line" if clock.is_relative else clock.zone
    by_time, by_step = labels_by_time(frame.time, clock), labels_by_step(frame.step)
    return (
        f'<div class="lane x" aria-hidden="true">{_axis(by_time, "by-time")}'
        f"{_axis(by_step, 'by-step')}</div>"
        f'<p class="unit"><span class="by-time">{esc(_day(frame))} {esc(zone)}</span>'
        '<span class="by-step">iteration</span></p>'
    )


def _day(frame: Frame) -> str:
    first, last = (
        when(frame.time.low, frame.report.clock),
        when(frame.time.high, frame.report.clock),
    )
    if frame.report.clock.is_relative:
        return "time"
    return first[:10] if first[:10] == last[:10] else f"{first[:10]} to {last[:10]}"


def _axis(ticks: Sequence[Tick], view: str) -> str:
    return "".join(
        f'<span class="{view} tick" style="--a:{tick.place / 10:.2f}">{esc(tick.label)}</span>'
        for tick in ticks
    )


MAX_BYTES = 2_000_000
_NOTHING = "'none'"
SUFFIXES = (".html", ".htm")
FIX = "name another file with --out"
LEVELS = (Detail(8, 600, 40), Detail(3, 240, 20), Detail(1, 100, 10), Detail(0, 40, 4))
_MOST = 256
"""Limit for incidents, attempts and checkpoints each; the same as that of a recorder."""
_MARK = re.compile(rb'<meta name="mwatch-run" content="([0-9a-f]{16})">')
_HEAD_BYTES = 2048


def render(report: RunReport, title: str = "") -> str:
    drawn = frame(bounded(report))
    page = ""
    for level in LEVELS:
        detail = replace(level, has_links=not report.uid)  # files of a job are in its pods
        page = _page(drawn, (title or report.run)[:200], detail)
        if len(page.encode("utf-8", "replace")) <= MAX_BYTES:
            break
    return page


def bounded(report: RunReport) -> RunReport:
    """Cut entries beyond the limits of a recorder, which a report read from a file may have."""
    left_out = max(0, len(report.incidents) - _MOST) + max(0, len(report.attempts) - _MOST)
    return replace(
        report,
        verdict=replace(report.verdict, summary=report.verdict.summary[:600]),
        incidents=report.incidents[-_MOST:],
        attempts=report.attempts[-_MOST:],
        checkpoints=report.checkpoints[-_MOST:],
        phases=report.phases[-4 * _MOST :],
        spent=report.spent[:32],
        source_states=report.source_states[:32],
        left_out=report.left_out + left_out,
    )


def _page(drawn: Frame, title: str, detail: Detail) -> str:
    report = drawn.report
    body = (
        sections.header(report, title),
        sections.figures(report),
        panel(drawn),
        incidents(report, detail),
        sections.attempts(report, detail),
        log_section(report, detail),
        sections.goodput(report),
        sections.seen(report, detail),
        sections.happened(report, detail),
        _footer(report, is_cut=detail is not LEVELS[0]),
    )
    return document(esc(title), chr(10).join(body), data(drawn), head=_mark(report))


def document(
    title: str,
    body: str,
    data: str = "",
    *,
    scripts: Sequence[str] = ("page.js",),
    head: str = "",
) -> str:
    """`title`, `body` and `head` (more for the `<head>`) are HTML. `data`: JSON for the scripts."""
    block = f'<script type="application/json" id="data">{data}</script>\n' if data else ""
    code = "".join(f"<script>{_asset(name)}</script>" for name in scripts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(*scripts)}">'
        f'<meta name="generator" content="mwatch {esc(__version__)}">{head}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{title} · mwatch</title><style>{_asset('page.css')}</style></head>\n"
        f"<body><main>{body}</main>\n{block}{code}</body></html>\n"
    )


@cache
def _asset(name: str) -> str:
    return resources.files("mwatch.report.html").joinpath(name).read_text("utf-8")


@cache
def policy(*scripts: str) -> str:
    """Return the policy: load nothing and run only our scripts; a live page may also connect to its
    own server. Inline styles are allowed, because they hold the positions on the axis."""
    digests = (
        base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()
        for name in scripts
    )
    allowed = " ".join(f"'sha256-{each}'" for each in digests)
    live = "connect-src 'self'; " if "live.js" in scripts else ""
    return (
        f"default-src 'none'; script-src {allowed or _NOTHING}; {live}style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def panel(drawn: Frame) -> str:
    behind = marks(drawn)
    axis = axis_labels(drawn)
    drawings = list(charts(drawn, behind, checkpoints(drawn) + axis))
    parts = [
        pins(drawn),
        *drawings[:1],
        phase_band(drawn),
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


def data(drawn: Frame) -> str:
    """Return the values shown at the pointer as JSON; `<` is escaped so no text ends the block."""
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


def run_mark(report: RunReport) -> str:
    """Return an id of the run for its pages: a hash of its name, and its UID or start time."""
    began = "" if report.started_at is None else f"{report.started_at:.3f}"
    known = f"{report.run}\n{report.uid or began}".encode("utf-8", "replace")
    return hashlib.sha256(known).hexdigest()[:16]


def _mark(report: RunReport) -> str:
    return f'<meta name="mwatch-run" content="{run_mark(report)}">'


def written_mark(file: Path) -> str | None:
    """Return the `run_mark` of the page in `file`; None if mwatch did not write that file."""
    try:
        with file.open("rb") as page:
            found = _MARK.search(page.read(_HEAD_BYTES))
    except OSError:
        return None
    return found and found[1].decode()


def write_page(page: str, file: Path) -> int:
    """Write the page atomically and return its size in bytes."""
    check_target(file, *SUFFIXES, fix=FIX)
    data = page.encode("utf-8", "replace")
    write_target(file, data, fix=FIX, is_clean=True)
    return len(data)
