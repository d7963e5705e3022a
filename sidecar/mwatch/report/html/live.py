# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The page of a run in progress: the sections of the report, plus the live state.

The page consists of parts. A browser gets all of them once, and afterwards only those that have
changed. Without JavaScript the page reloads itself. Charts take the most CPU time, so they are
redrawn less often when they are expensive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mwatch.model.decision import Action, Decision, describe_start
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch.report.html import page, sections
from mwatch.report.html.charts import frame
from mwatch.report.html.fleet import JobView, job_parts
from mwatch.report.html.incidents import incidents
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
    power_of_two,
    seconds,
    value,
    when,
)
from mwatch.report.model import CheckpointStory, short
from mwatch.report.run_report import RunReport
from mwatch.stats import median

PARTS = (
    "title", "up", "header", "now", "next", "ranks", "panel", "incidents", "acts", "checkpoints",
    "figures", "attempts", "goodput", "pods", "seen", "happened", "commands", "data",
)  # fmt: skip
"""Parts in page order; only a controller's page has those of `job_parts`."""
SCRIPTS = ("page.js", "live.js")
RUNS_SCRIPTS = ("runs.js",)
RELOAD_SECONDS = 5
_RELOAD = f'<meta http-equiv="refresh" content="{RELOAD_SECONDS}">'
MAX_DRAWN = 512
_MAX_CHECKPOINTS = 12
_RECENT = 32
"""Newest buckets of the curve that the usual step time is computed from."""
_LONG_SECONDS = 12 * 3600.0
_DETAIL = Detail(8, 600, 40)
_BESIDE = frozenset({"title", "data"})
"""Parts that are not in the body of the page."""


@dataclass(frozen=True, slots=True)
class LiveView:
    """The live data that the page shows besides the report."""

    snapshot: Snapshot | None = None
    commands: Sequence[tuple[str, str]] = ()
    """Descriptions, each with the command to copy."""
    protected: frozenset[int] = frozenset()
    """Checkpoints that mwatch keeps from being deleted."""
    title: str = ""
    job: JobView | None = None
    """For a job in a cluster."""
    places: Mapping[int, str] = field(default_factory=dict)
    """Pod and node of each rank."""
    rank_count: int | None = None
    """Number of all ranks, if the snapshot has only some of them."""


class LiveParts:
    """Renders the parts of one run repeatedly, and caches its charts."""

    def __init__(self, chart_share: float = 1.0) -> None:
        """`chart_share`: the maximum share of a core to spend on drawing charts."""
        self._share = chart_share
        self._charts: dict[str, str] = {}
        self._next_charts = float("-inf")
        self.chart_seconds = 0.0
        """CPU time for charts in the last `render`; 0 if they were not redrawn."""
        self._levels = [replace(each, has_links=False) for each in page.LEVELS]
        self._ranks = sections.Ranks()

    def render(self, report: RunReport, live: LiveView) -> dict[str, str]:
        shown = page.bounded(report)
        self.chart_seconds = 0.0
        if time.monotonic() >= self._next_charts or report.is_over:
            began = time.thread_time()
            drawn = frame(shown, most=MAX_DRAWN)
            self._charts = {"panel": page.panel(drawn), "data": page.data(drawn)}
            self.chart_seconds = time.thread_time() - began
            self._next_charts = time.monotonic() + self.chart_seconds / self._share
        ranks = self._ranks.render(live.snapshot, live.places, live.rank_count)
        while True:
            parts = self._charts | _texts(shown, live, self._levels[0]) | {"ranks": ranks}
            is_large = sum(map(len, parts.values())) > page.MAX_BYTES
            if not is_large or len(self._levels) == 1:
                return {name: parts[name] for name in PARTS if name in parts}
            del self._levels[0]


def _texts(report: RunReport, live: LiveView, detail: Detail) -> dict[str, str]:
    """Render all parts except the charts and the ranks."""
    title = (live.title or report.run)[:200]
    return ({} if live.job is None else job_parts(live.job)) | {
        "title": esc(f"{_state_name(report)} · {title}"),
        "header": sections.header(report, title),
        "now": _now(report, live.snapshot),
        "next": _next(report, live.snapshot),
        "incidents": incidents(report, detail),
        "checkpoints": _checkpoints(report, live),
        "figures": sections.figures(report),
        "attempts": sections.attempts(report, detail),
        "goodput": sections.goodput(report),
        "seen": sections.seen(report, detail),
        "happened": sections.happened(report, detail),
        "commands": commands(live.commands),
    }


class Place(NamedTuple):
    """The values that a page sends back with each request."""

    page_id: str
    after: str
    address: str = "page.json"


def document(
    parts: Mapping[str, str], place: Place, *, is_over: bool, scripts: Sequence[str] = SCRIPTS
) -> str:
    """Assemble the whole page from its parts."""
    body = "\n".join(
        f'<div class="part" id="part-{name}">{text}</div>'
        for name, text in parts.items()
        if name not in _BESIDE
    )
    state = (
        f'<p id="live" class="dim" role="status" data-page="{esc(place.page_id)}" '
        f'data-after="{esc(place.after)}" data-address="{esc(place.address)}"></p>'
    )
    head = "" if is_over else f"<noscript>{_RELOAD}</noscript>"
    return page.document(
        parts["title"], state + body, parts.get("data", ""), scripts=scripts, head=head
    )


def policy(*scripts: str) -> str:
    """Return the Content-Security-Policy header: own scripts, and requests to its own server."""
    return f"{page.policy(*scripts)}; frame-ancestors 'none'"


class RunRow(NamedTuple):
    """One row of the list of runs."""

    name: str
    link: str
    report: RunReport | None
    """None if not read yet, or not readable; `problem` then has the reason."""
    problem: str = ""


def runs_page(rows: Sequence[RunRow], title: str, left_out: int = 0) -> str:
    """Render the list of runs as a page that reloads itself."""
    names = ("Run", "State", "Iteration", "Started", "Lasted", "Incidents")
    head = "".join(f'<th scope="col">{each}</th>' for each in names)
    body = "".join(f"<tr>{sections.labelled(names, _run(each))}</tr>" for each in rows)
    table = f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    table = table if rows else '<p class="dim">There are no runs here yet.</p>'
    more = f'<p class="dim">{many(left_out, "older run")} not shown.</p>' if left_out else ""
    return page.document(
        esc(title), f"<header>{sections.BRAND}<h1>{esc(title)}</h1></header>"
        f'<section id="runs">{table}{more}</section>',
        scripts=RUNS_SCRIPTS, head=f"<noscript>{_RELOAD}</noscript>",
    )  # fmt: skip


def _run(row: RunRow) -> tuple[str, ...]:
    report, name = row.report, f'<a href="{esc(row.link)}">{esc(row.name[:200])}</a>'
    if report is None:
        return (name, esc(short(row.problem) or "not read yet"), *([DASH] * 4))
    lasted = DASH
    if report.started_at is not None and report.ended_at is not None:
        lasted = duration(report.ended_at - report.started_at)
    total = f" of {count(report.total_iterations)}" if report.total_iterations else ""
    tone = cause_tone(report.verdict.cause)
    return (
        name,
        f'<span class="pill {tone}">{esc(_state_name(report))}</span>',
        f"{count(report.iteration)}{total}",
        esc(when(report.started_at, report.clock)),
        esc(lasted),
        count(len(report.incidents)),
    )


def _state_name(report: RunReport) -> str:
    cause = report.verdict.cause
    return "Running" if cause == "healthy" and not report.is_over else cause_name(cause)


def _now(report: RunReport, snapshot: Snapshot | None) -> str:
    """Render the progress with its estimated end, and the values of the newest log line."""
    if snapshot is None:
        shown = _progress(report, report.iteration, report.ended_at)
        is_known = report.iteration is not None and not report.is_over
        return f'<section id="now"><h2>Now</h2>{shown}</section>' if is_known else ""
    progress = _progress(report, snapshot.iteration, snapshot.at)
    tiles = "".join(
        f'<div class="tile"><dt>{esc(name)}</dt><dd>{esc(big)}</dd>'
        f'<dd class="dim">{esc(small)}</dd></div>'
        for name, big, small in _numbers(snapshot)
    )
    return f'<section id="now"><h2>Now</h2>{progress}<dl class="tiles">{tiles}</dl></section>'


def _progress(report: RunReport, done: int | None, now: float | None) -> str:
    text, total = f"Iteration <b>{count(done)}</b>", report.total_iterations
    if done is None or not total:
        return f'<p class="progress">{text}</p>'
    share = min(1.0, max(0.0, done / total))
    left, end = time_left(report, done, total), ""
    if left is not None and now is not None:
        at = when(now + left, report.clock, with_date=left > _LONG_SECONDS)
        end = f", {duration(left)} left, at {at}"
    return (
        f'<p class="progress">{text} of {count(total)} ({percent(share)}{esc(end)})</p>'
        f'<svg class="progress" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{percent(share)} done"><rect width="{share * 1000:.1f}" height="10"/></svg>'
    )


def time_left(report: RunReport, done: int, total: int) -> float | None:
    """Estimate from the newest steps of this attempt; None if unknown or not training."""
    if report.is_over or done >= total:
        return None
    newest = report.series[-1].attempt if report.series else None
    recent = [each for each in report.series[-_RECENT:] if each.attempt == newest]
    known = [each.step_seconds.mean for each in recent if each.step_seconds is not None]
    if not known or any(each.severity == "critical" for each in report.findings):
        return None
    return median(known) * (total - done)


def _numbers(snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    numbers, gpus = snapshot.numbers, snapshot.world_size
    phase = DASH if snapshot.phase is None else snapshot.phase.value.replace("-", " ")
    yield "Phase", phase, f"attempt {snapshot.attempt}"
    if snapshot.progress_at is not None:
        limit = snapshot.hang_deadline_seconds
        small = "" if limit is None else f"hang after {duration(limit)}"
        yield "Last progress", f"{duration(snapshot.at - snapshot.progress_at)} ago", small
    if numbers.step_seconds is not None:
        yield "Step time", seconds(numbers.step_seconds), ""
    if numbers.tokens_per_second is not None:
        of = "GPU" if snapshot.gpus else "rank"
        each = "" if not gpus else f"{value(numbers.tokens_per_second / gpus)} per {of}"
        yield "Tokens/s", value(numbers.tokens_per_second), each
    if numbers.throughput_tflops is not None:
        yield "TFLOP/s", value(numbers.throughput_tflops), "per GPU"
    for name, loss in list(numbers.losses.items())[:2]:
        yield short(name, 40), value(loss), ""
    if numbers.grad_norm is not None:
        yield "Gradient norm", value(numbers.grad_norm), ""
    if numbers.loss_scale is not None:
        yield "Loss scale", power_of_two(numbers.loss_scale), ""


def _next(report: RunReport, snapshot: Snapshot | None) -> str:
    """Render what mwatch will do, or would do in observe mode, and when."""
    if report.is_over or snapshot is None or snapshot.decision is None:
        return ""
    decision, will = snapshot.decision, "will" if snapshot.is_acting else "would"
    lines = [f"<b>{esc(_action(decision, will, snapshot, report))}</b> {_reason(decision)}"]
    if decision.action is not Action.NONE and not snapshot.is_acting:
        lines.append('<span class="dim">mwatch only observes this run.</span>')
    if decision.proposal:
        lines.append(f"Proposal: {_DETAIL.cut(short(decision.proposal))}")
    if snapshot.restarts_left is not None:
        lines.append(
            f'<span class="dim">{many(snapshot.restarts_left, "restart")} left in the budget.'
            "</span>"
        )
    body = "".join(f"<p>{each}</p>" for each in lines)
    return f'<section id="next"><h2>What mwatch {will} do</h2>{body}</section>'


def _action(decision: Decision, will: str, snapshot: Snapshot, report: RunReport) -> str:
    if decision.action is Action.NONE:
        return "Nothing."
    start = (
        describe_start(None, decision.resume_reason)
        if decision.resume_from is None
        else f"from checkpoint {count(decision.resume_from)}"
    )
    what = "Stop the job" if decision.action is Action.STOP else f"Restart {start}"
    if decision.act_at is None or decision.act_at <= snapshot.at:
        return f"{what}, now."
    left = duration(decision.act_at - snapshot.at)
    at = when(decision.act_at, report.clock, with_date=False)
    return f"{what} in {left}, at {at}, unless the run recovers."


def _reason(decision: Decision) -> str:
    why = f" ({short(decision.resume_reason)})" if decision.resume_reason else ""
    return _DETAIL.cut(short(decision.reason) + why)


def _checkpoints(report: RunReport, live: LiveView) -> str:
    newest = sorted(report.checkpoints, key=lambda each: -each.iteration)[:_MAX_CHECKPOINTS]
    if not newest:
        return ""
    names = ("Checkpoint", "Saved", "State", "Remark")
    head = "".join(f'<th scope="col">{each}</th>' for each in names)
    rows = "".join(_checkpoint(report, each, names, live.protected) for each in newest)
    left = len(report.checkpoints) - len(newest)
    more = f'<p class="dim">{many(left, "older one")} not shown.</p>' if left else ""
    return (
        '<section id="checkpoints"><h2>Checkpoints</h2><table class="cards"><thead>'
        f"<tr>{head}</tr></thead><tbody>{rows}</tbody></table>{more}</section>"
    )


def _checkpoint(
    report: RunReport, each: CheckpointStory, names: Sequence[str], protected: frozenset[int]
) -> str:
    tone = {"good": "good", "broken": "bad"}.get(each.state, "dim")
    whole = {"complete": "complete, good", "unverified": "good, unverified"}
    state = (
        whole.get(each.stored or "", "saved, by the log") if each.state == "good" else each.state
    )
    remarks = ["protected"] * (each.iteration in protected) + [each.reason] * bool(each.reason)
    cells = (
        f"<b>{count(each.iteration)}</b>",
        DASH if each.saved_at is None else esc(when(each.saved_at, report.clock)),
        f'<span class="{tone}">{esc(state)}</span>',
        _DETAIL.cut("; ".join(remarks)) or DASH,
    )
    return f"<tr>{sections.labelled(names, cells)}</tr>"


def commands(listed: Sequence[tuple[str, str]]) -> str:
    """Render each description with its command and a copy button."""
    if not listed:
        return ""
    rows = "".join(
        f"<dt>{esc(what)}</dt><dd><code>{esc(command)}</code>"
        '<button type="button" class="copy">Copy</button></dd>'
        for what, command in listed
    )
    return (
        '<section id="commands"><h2>Commands</h2><p class="dim">This page changes nothing. Copy '
        f"a command into a terminal.</p><dl>{rows}</dl></section>"
    )
