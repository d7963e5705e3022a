# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's pages: a table of all jobs, and the cluster sections of a job's page.

The table works without JavaScript and lists jobs that need attention first. `fleet.js` sorts and
filters the rows in the browser, by the `data-sort` attribute of each cell. Names of jobs, pods and
nodes come from the cluster, and are escaped like every other text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from mwatch.model.finding import Culprit
from mwatch.report.html.sections import BRAND, labelled
from mwatch.report.html.text import (
    DASH,
    Detail,
    cause_name,
    cause_tone,
    count,
    duration,
    esc,
    many,
    percent,
    when,
)
from mwatch.report.model import ReportClock, culprit_text, short

SCRIPTS = ("page.js", "live.js", "fleet.js")
MAX_JOBS = 1000
MAX_ACTS = 32
_MAX_SILENT = 16
_TEXT = Detail(8, 300, 40)
_COLUMNS = (
    "Job", "State", "Since", "Culprit", "Iteration", "Goodput", "Good checkpoint", "Restarts left",
    "Mode",
)  # fmt: skip
_ORDER = {"bad": 0, "warn": 1, "dim": 2, "good": 3}
_NOTHING = "nothing"


class FleetRow(NamedTuple):
    """One row of the table: a job. None means unknown."""

    namespace: str
    name: str
    kind: str
    link: str
    cause: str
    """Cause of the job's verdict."""
    is_over: bool = False
    summary: str = ""
    since: float | None = None
    culprit: Culprit | None = None
    attempt: int | None = None
    iteration: int | None = None
    total_iterations: int | None = None
    seconds_left: float | None = None
    goodput: float | None = None
    good_checkpoint: int | None = None
    saved_at: float | None = None
    restarts_left: int | None = None
    mode: str = "observe"
    doing: str = _NOTHING
    """What mwatch is doing about the job: held, restarting and so on."""
    why: str = ""
    """Why remediation is held back."""
    pause: str = ""
    """Who paused it and why; empty: not paused."""
    paused_until: float | None = None
    is_paused: bool = False
    pods_wanted: int | None = None
    pods_answering: int = 0


class FleetTable(NamedTuple):
    """All jobs of a namespace at one time."""

    namespace: str
    at: float
    rows: Sequence[FleetRow]
    clock: ReportClock
    is_leader: bool = True
    problem: str = ""
    """Why the cluster cannot be read; empty if it can."""
    commands: str = ""
    """The commands to copy, as HTML."""


def job_link(namespace: str, name: str, kind: str = "") -> str:
    """Return the link relative to the fleet page; `kind` tells apart jobs of the same name."""
    more = f"?kind={quote(kind, safe='')}" if kind else ""
    return f"jobs/{quote(namespace, safe='')}/{quote(name, safe='')}{more}"


def fleet_parts(view: FleetTable) -> dict[str, str]:
    """Render the parts of the fleet page, by name."""
    bad = sum(_tone(each) in ("bad", "warn") for each in view.rows)
    state = f"{many(bad, 'job')} to look at" if bad else "all is well"
    return {
        "title": esc(f"{state} · {view.namespace}"),
        "header": _header(view, bad),
        "fleet": _table(view),
        "commands": view.commands,
    }


def _header(view: FleetTable, bad: int) -> str:
    known = [_tone(each) for each in view.rows]
    unknown, fine = known.count("dim"), known.count("good")
    tone = "bad" if bad else "dim" if unknown or not known else "good"
    name = f"{many(bad, 'job')} to look at" if bad else "No job" if not known else "Fine"
    name = "Unknown" if tone == "dim" and known else name
    counts = [f"{many(len(known), 'job')}", f"{fine} fine"] + [f"{unknown} unknown"] * bool(unknown)
    notes = []
    if not view.is_leader:
        notes.append("This controller does not lead: it only observes, and another one acts.")
    if view.problem:
        notes.append(f"The cluster cannot be read: {short(view.problem, 300)}")
    zone = f" {view.clock.zone}" if view.clock.zone else ""
    return (
        f"<header>{BRAND}<h1>Jobs in {esc(view.namespace[:200])}</h1>"
        f'<p class="state"><span class="pill {tone}">{esc(name)}</span> '
        f"{esc(', '.join(counts))}</p>"
        f'<p class="dim">{esc(when(view.at, view.clock))}{esc(zone)}</p>'
        + "".join(f'<p class="warn">{esc(each)}</p>' for each in notes)
        + "</header>"
    )


def _table(view: FleetTable) -> str:
    rows = sorted(view.rows, key=lambda each: (_ORDER[_tone(each)], each.namespace, each.name))
    if not rows:
        text = "No job here has the label mwatch.dev/watch=true."
        return f'<section id="fleet"><h2>Jobs</h2><p class="dim">{text}</p></section>'
    head = "".join(
        f'<th scope="col"><button type="button" class="sort">{each}</button></th>'
        for each in _COLUMNS
    )
    body = "".join(_row(view, each, place) for place, each in enumerate(rows[:MAX_JOBS]))
    left = len(rows) - MAX_JOBS
    more = f'<p class="dim">{many(left, "more job")} not shown.</p>' if left > 0 else ""
    return (
        '<section id="fleet"><h2>Jobs</h2><table class="cards"><thead>'
        f'<tr>{head}</tr></thead><tbody data-keyed="">{body}</tbody></table>{more}</section>'
    )


def _row(view: FleetTable, row: FleetRow, place: int) -> str:
    tone = _tone(row)
    total = f" of {count(row.total_iterations)}" if row.total_iterations else ""
    left = "" if row.seconds_left is None else f"{duration(row.seconds_left)} left"
    attempt = f"attempt {row.attempt}" if row.attempt and row.attempt > 1 else ""
    saved = "" if row.saved_at is None else f"{duration(max(0.0, view.at - row.saved_at))} ago"
    cells: tuple[tuple[str, object], ...] = (
        (_job(row), row.name),
        (_state(row, tone), _ORDER[tone]),
        (_since(view, row), row.since),
        (_culprit(row.culprit), _culprit_key(row.culprit)),
        (f"{count(row.iteration)}{total}{_small(left)}{_small(attempt)}", row.iteration),
        (DASH if row.goodput is None else percent(row.goodput), row.goodput),
        (f"{count(row.good_checkpoint)}{_small(saved)}", row.saved_at),
        (count(row.restarts_left), row.restarts_left),
        (_mode(view, row), f"{row.mode} {row.is_paused}"),
    )
    columns = "".join(
        f'<td data-label="{name}" data-sort="{esc("" if key is None else str(key)[:100])}">'
        f"<div>{cell}</div></td>"
        for name, (cell, key) in zip(_COLUMNS, cells, strict=True)
    )
    id = f"job-{row.namespace}-{row.kind}-{row.name}"
    return f'<tr id="{esc(id[:300])}" data-place="{place}" class="t-{tone}">{columns}</tr>'


def _small(text: str) -> str:
    return f'<span class="dim">{esc(text)}</span>' if text else ""


def _tone(row: FleetRow) -> str:
    return cause_tone(row.cause)


def _job(row: FleetRow) -> str:
    pods = "" if row.pods_wanted is None else f", {row.pods_answering} of {row.pods_wanted} pods"
    return f'<a href="{esc(row.link)}">{esc(row.name[:200])}</a>{_small(row.kind[:60] + pods)}'


def _state(row: FleetRow, tone: str) -> str:
    name = "Running" if row.cause == "healthy" and not row.is_over else cause_name(row.cause)
    doing = "" if row.doing == _NOTHING else f"<b>{esc(row.doing)}</b>"
    if doing and row.why:
        doing += f": {_TEXT.cut(short(row.why))}"
    text = "" if row.cause == "healthy" else _TEXT.cut(short(row.summary))
    pill = f'<span class="pill {tone}">{esc(name)}</span>'
    return pill + "".join(f"<span>{each}</span>" for each in (doing, text) if each)


def _since(view: FleetTable, row: FleetRow) -> str:
    if row.since is None:
        return DASH
    age = max(0.0, view.at - row.since)
    at = when(row.since, view.clock, with_date=age > 43_200)
    return f"{esc(at)}{_small(duration(age))}"


def _culprit(culprit: Culprit | None) -> str:
    """Render rank, pod and node of the culprit; the page of the job has its state."""
    if culprit is None or culprit_text(culprit) is None:
        return DASH
    rank = None if culprit.rank is None else f"rank {culprit.rank}"
    pod, node = culprit.pod and f"pod {culprit.pod}", culprit.node and f"node {culprit.node}"
    named = [part for part in (rank, pod, node) if part] or [culprit_text(culprit) or DASH]
    first, *others = (_TEXT.cut(short(part, 260)) for part in named)
    return f"<b>{first}</b>" + "".join(f"<span>{each}</span>" for each in others)


def _culprit_key(culprit: Culprit | None) -> str | None:
    return None if culprit is None else f"{culprit.node or ''} {culprit.pod or ''}".strip() or None


def _mode(view: FleetTable, row: FleetRow) -> str:
    if not row.is_paused:
        return esc(row.mode)
    end = "" if row.paused_until is None else f" until {when(row.paused_until, view.clock)}"
    why = f": {short(row.pause, 300)}" if row.pause else ""
    return f'{esc(row.mode)}<span class="warn">paused{esc(end)}{_TEXT.cut(why)}</span>'


class JobAct(NamedTuple):
    """An action on a job, from the ledger."""

    at: float
    who: str
    what: str
    why: str


class PodRow(NamedTuple):
    name: str
    node: str
    problem: str


class JobView(NamedTuple):
    """What the controller knows about a job besides the report of its run."""

    clock: ReportClock
    fleet: str = "../../"
    """Relative URL of the fleet page."""
    mode: str = "observe"
    doing: str = _NOTHING
    text: str = ""
    pause: str = ""
    acts: Sequence[JobAct] = ()
    """Oldest first."""
    pods_wanted: int | None = None
    pods_answering: int = 0
    silent: Sequence[PodRow] = ()
    """Pods whose sidecar does not respond."""


def job_parts(view: JobView) -> dict[str, str]:
    return {
        "up": f'<p><a href="{esc(view.fleet)}">All jobs</a></p>',
        "acts": _acts(view),
        "pods": _pods(view),
    }


def _acts(view: JobView) -> str:
    lines = [f"Mode <b>{esc(view.mode)}</b>."]
    if view.pause:
        lines.append(f'<span class="warn">{_TEXT.cut(short(view.pause))}</span>')
    if view.doing != _NOTHING:
        why = f": {_TEXT.cut(short(view.text))}" if view.text else ""
        lines.append(f"Now: <b>{esc(view.doing)}</b>{why}")
    names = ("When", "By", "What", "Why")
    head = "".join(f'<th scope="col">{each}</th>' for each in names)
    shown = sorted(view.acts, key=lambda each: -each.at)[:MAX_ACTS]
    rows = "".join(
        f"<tr>{labelled(names, (esc(when(each.at, view.clock)), *map(_cut, each[1:])))}</tr>"
        for each in shown
    )
    table = f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    body = table if rows else '<p class="dim">Nothing was done to this job yet.</p>'
    text = "".join(f"<p>{each}</p>" for each in lines)
    return f'<section id="acts"><h2>What was done, and why</h2>{text}{body}</section>'


def _cut(text: str) -> str:
    return _TEXT.cut(short(text)) or DASH


def _pods(view: JobView) -> str:
    wanted = "" if view.pods_wanted is None else f" of {count(view.pods_wanted)}"
    text = f"The sidecars of {count(view.pods_answering)}{wanted} pods answer."
    silent = "".join(
        f"<li><b>{_cut(each.name)}</b>{f' on {_cut(each.node)}' if each.node else ''}: "
        f"{_cut(each.problem)}</li>"
        for each in view.silent[:_MAX_SILENT]
    )
    left = len(view.silent) - _MAX_SILENT
    more = f'<p class="dim">and {many(left, "more pod")}.</p>' if left > 0 else ""
    listed = f'<ul class="notes">{silent}</ul>{more}' if silent else ""
    return f'<section id="pods"><h2>Pods</h2><p>{text}</p>{listed}</section>'
