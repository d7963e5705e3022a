# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The sections of the page around the charts: headline, key figures, attempts, goodput, sources,
timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    wait,
    when,
)
from mwatch.report.model import (
    AttemptReport,
    SpentStory,
)
from mwatch.report.run_report import RunReport
from mwatch.stats import median

_SPENT = {
    "first_step": "first step",
    "hang_undetected": "hanging, not yet detected",
    "detecting": "hanging, being judged",
    "waiting_to_act": "hanging, waiting to act",
    "recomputed": "computing steps again",
    "bad_steps": "steps with a bad loss, or skipped",
    "training": "training (good)",
}
_SOURCES = {
    "log": "the trainer's log",
    "probe": "the probe inside each rank",
    "process": "the trainer's processes",
    "gpu": "the GPUs",
    "nccl": "NCCL's own counters",
    "fabric": "the network",
    "checkpoints": "the checkpoint folder",
}
_MARK = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><circle cx="12" cy="12" r="10"/>'
    '<path d="M5 12h3l2-5 4 10 2-5h3"/></svg>'
)
BRAND = f'<p class="brand">{_MARK}mwatch</p>'
_ATTEMPTS = ("#", "Started", "Lasted", "Iterations", "Resumed from", "Done again", "Ended by")


def header(report: RunReport, title: str) -> str:
    cause, summary = report.verdict.cause, report.verdict.summary
    tone = cause_tone(cause)
    name = "Running" if cause == "healthy" and not report.is_over else cause_name(cause)
    clock = report.clock
    span = ""
    if report.started_at is not None and report.ended_at is not None:
        zone = f" {clock.zone}" if clock.zone else ""
        begun = when(report.started_at, clock)
        span = f"{begun}{zone}, {duration(report.ended_at - report.started_at)}"
    command = f"<details><summary>Command</summary><code>{esc(report.command)}</code></details>"
    command = command if report.command else ""
    return (
        f"<header>{BRAND}<h1>{esc(title)}</h1>"
        f'<p class="state"><span class="pill {tone}">{esc(name)}</span> {esc(summary)}</p>'
        f'<p class="dim">{esc(span)}</p>{_lede(report)}{command}</header>'
    )


def _lede(report: RunReport) -> str:
    is_real = report.mode == "act"
    acted = [
        each
        for each in report.incidents
        if each.acted_at is not None or (each.action != "none" and not is_real)
    ]
    if not acted:
        return ""
    times = "once" if len(acted) == 1 else f"{len(acted)} times"
    text = f"mwatch acted {times}" if is_real else f"mwatch would have acted {times}"
    lost = sum(each.recomputed for each in report.attempts)
    if lost and report.wall_seconds > 0:
        spent = sum(each.seconds for each in report.spent if each.name == "recomputed")
        share = percent(spent / report.wall_seconds)
        text += f"; {many(lost, 'step')} were done again, {share} of the time"
    back = sum(each.recovered_at is not None for each in acted)
    how = "after each" if len(acted) > 1 else "after that"
    how = how if back == len(acted) else f"after {back} of them"
    text += f", and the run came back {how}" if back else ""
    return f"<p>{esc(text)}.</p>"


def figures(report: RunReport) -> str:
    tiles = "".join(
        f'<div class="tile"><dt>{esc(name)}</dt><dd>{esc(big)}</dd><dd class="dim">{esc(small)}'
        "</dd></div>"
        for name, big, small in _figures(report)
    )
    return f'<dl class="tiles">{tiles}</dl>'


def _figures(report: RunReport) -> Iterator[tuple[str, str, str]]:
    if report.goodput is not None:
        yield "Goodput", percent(report.goodput), f"of {duration(report.wall_seconds)}"
    total = "" if report.total_iterations is None else f"of {count(report.total_iterations)}"
    yield "Iteration", count(report.iteration), total
    done = sum(each.recovered_at is not None for each in report.incidents)
    good = f"{done} recovered from" if done else "" if report.incidents else "nothing went wrong"
    yield "Incidents", count(len(report.incidents)), good
    waits = [
        each.detected_at - each.since_at
        for each in report.incidents
        if each.since_at is not None and each.severity == "critical"
    ]
    if waits:
        yield "Detected after", wait(median(waits)), f"at the most {wait(max(waits))}"
    again = sum(each.recomputed for each in report.attempts)
    yield (
        "Attempts",
        count(len(report.attempts)),
        f"{many(again, 'step')} done again" if again else "",
    )
    if report.world_size:
        hours = sum(each.gpu_seconds for each in report.spent) / 3600
        yield "GPU-hours", f"{hours:,.2f}", f"on {many(report.world_size, 'rank')}"


def attempts(report: RunReport, detail: Detail) -> str:
    if not report.attempts:
        return ""
    head = "".join(f'<th scope="col">{each}</th>' for each in _ATTEMPTS)
    least = min((each.first_iteration or 0 for each in report.attempts), default=0)
    most = max((each.last_iteration or 0 for each in report.attempts), default=1)
    rows = "".join(_attempt(report, each, (least, most), detail) for each in report.attempts)
    return (
        '<section id="attempts"><h2>Attempts</h2>'
        f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        "</section>"
    )


def _attempt(report: RunReport, each: AttemptReport, reach: tuple[int, int], detail: Detail) -> str:
    ended = report.ended_at if each.ended_at is None else each.ended_at
    lasted = "?" if ended is None else duration(ended - each.started_at)
    cells = (
        f"<b>{each.number}</b>",
        esc(when(each.started_at, report.clock, with_date=False)),
        esc(lasted),
        _iterations(each, *reach),
        count(each.resumed_from),
        count(each.recomputed) if each.recomputed else DASH,
        f'<span class="{cause_tone(each.cause)}">{esc(cause_name(each.cause))}</span> '
        f'<span class="dim">{_ended_by(report, each, detail)}</span>',
    )
    return f"<tr>{labelled(_ATTEMPTS, cells)}</tr>"


def _ended_by(report: RunReport, each: AttemptReport, detail: Detail) -> str:
    """The incident that says why, else the sentence itself, unless it is the headline."""
    for number, incident in enumerate(report.incidents, 1):
        if incident.attempt == each.number and incident.cause == each.cause:
            return f'<a href="#incident-{number}">incident {number}</a>'
    return "" if each.summary == report.verdict.summary else detail.cut(each.summary)


def _iterations(each: AttemptReport, least: int, most: int) -> str:
    """First and last iteration, with a bar whose repeated part is pale."""
    first, last = each.first_iteration, each.last_iteration
    if first is None or last is None:
        return DASH
    whole = max(1, most - least + 1)
    left, wide = (first - least) / whole, max(0.004, (last - first + 1) / whole)
    again = min(wide, each.recomputed / whole)
    return (
        f'{first:,}{DASH}{last:,}<svg class="reach" viewBox="0 0 1000 10" '
        'preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="again" x="{left * 1000:.1f}" width="{again * 1000:.1f}" height="10"/>'
        f'<rect class="new" x="{(left + again) * 1000:.1f}" width="{(wide - again) * 1000:.1f}" '
        'height="10"/></svg>'
    )


def goodput(report: RunReport) -> str:
    parts = sorted((each for each in report.spent if each.seconds > 0), key=lambda e: -e.seconds)
    whole = sum(each.seconds for each in parts)
    if not parts or whole <= 0:
        return ""
    bar, left = "", 0.0
    for each in sorted(parts, key=lambda each: each.name != "training"):
        wide = each.seconds / whole * 1000
        bar += f'<rect class="s-{esc(each.name)}" x="{left:.2f}" width="{wide:.2f}" height="10"/>'
        left += wide
    rows = "".join(_spent(each, whole, parts[0].seconds) for each in parts)
    return (
        f'<section id="goodput"><h2>Goodput <b class="big">{percent(report.goodput)}</b></h2>'
        '<p class="dim">The share of the wall time in which iterations were done for the first '
        "time, at the usual speed.</p>"
        '<svg class="stack" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">'
        f"{bar}</svg>"
        '<table class="spent"><thead><tr><th scope="col">Time went to</th><th scope="col">Part</th>'
        '<th scope="col">Time</th><th scope="col">Share</th><th scope="col">GPU-hours</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></section>"
    )


def _spent(each: SpentStory, whole: float, most: float) -> str:
    name = _SPENT.get(each.name) or each.name.replace("_", " ")
    return (
        f'<tr><td><i class="s-{esc(each.name)}"></i>{esc(name)}</td>'
        '<td class="bar"><svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="s-{esc(each.name)}" width="{each.seconds / most * 1000:.1f}" height="10"/>'
        f"</svg></td><td>{duration(each.seconds)}</td><td>{percent(each.seconds / whole)}</td>"
        f"<td>{each.gpu_seconds / 3600:,.3f}</td></tr>"
    )


def seen(report: RunReport, detail: Detail) -> str:
    """The sources that mwatch had, and those that it lacked."""
    sources = []
    for each in report.source_states:
        name = _SOURCES.get(each.name) or each.name[:60]
        if each.is_up:
            sources.append(f'<li class="good">{esc(name)}</li>')
        elif each.since is None:
            sources.append(f'<li class="dim">{esc(name)}: not available</li>')
        else:
            since = when(each.since, report.clock, with_date=False)
            why = f", {each.reason}" * bool(each.reason)
            sources.append(f'<li class="warn">{esc(name)}: lost at {detail.cut(since + why)}</li>')
    fresh = [note for note in report.notes if note != report.verdict.summary]
    notes = "".join(f"<li>{detail.cut(note)}</li>" for note in fresh[:64])
    files = "".join(f"<li><code>{detail.cut(file)}</code></li>" for file in report.files[:64])
    return (
        '<section id="seen"><h2>What mwatch could see</h2>'
        f'<ul class="source-states">{"".join(sources)}</ul>'
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + (f"<details><summary>{many(len(report.files), 'file')} read</summary>"
           f"<ul>{files}</ul></details>" if files else "")
        + "</section>"
    )  # fmt: skip


def happened(report: RunReport, detail: Detail) -> str:
    most = 10 * detail.entries
    every = report.timeline
    left_out = report.left_out + max(0, len(every) - most)
    kept = every if len(every) <= most else (*every[: most // 2], *every[-(most - most // 2) :])
    rows = "".join(
        f'<li class="h-{esc(each.kind[:20])}">'
        f"<time>{esc(when(each.at, report.clock, with_date=False))}</time> {detail.cut(each.text)}"
        "</li>"
        for each in kept
    )
    if not rows:
        return ""
    more = f'<p class="dim">{left_out:,} more were left out.</p>' if left_out else ""
    return (
        '<section id="happened"><details><summary><h2>What happened, in order</h2></summary>'
        f"<ol>{rows}</ol>{more}</details></section>"
    )


def labelled(names: Sequence[str], cells: Sequence[str]) -> str:
    return "".join(
        f'<td data-label="{name}"><div>{cell}</div></td>'
        for name, cell in zip(names, cells, strict=True)
    )
