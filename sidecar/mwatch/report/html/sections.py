# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The sections of the page around the charts: headline, key figures, incidents, attempts, goodput,
sources, timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from mwatch.model.finding import Evidence
from mwatch.model.stacks import StackGroup, tree
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
    DetectorReport,
    EvidenceFile,
    IncidentStory,
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
    them = "all" if back == len(acted) else f"{back} of them"
    text += f"; {them} recovered from" if back else ""
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
        f'<span class="dim">{detail.cut(each.summary)}</span>',
    )
    return f"<tr>{labelled(_ATTEMPTS, cells)}</tr>"


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
    notes = "".join(f"<li>{detail.cut(note)}</li>" for note in report.notes[:64])
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


_OPEN = 6
"""Up to so many incidents are shown with their evidence unfolded."""
_HEAD = (
    "#", "What", "Since", "Detected after", "Culprit", "Action", "Resumed from", "Lost",
    "Recovered after",
)  # fmt: skip


def incidents(report: RunReport, detail: Detail) -> str:
    numbered = list(enumerate(report.incidents, 1))
    if not numbered:
        return '<section id="incidents"><h2>Incidents</h2><p class="calm">None.</p></section>'
    head = "".join(f'<th scope="col">{each}</th>' for each in _HEAD)
    rows = "".join(_row(report, number, each, detail) for number, each in numbered)
    cards = "".join(_card(report, number, each, detail) for number, each in numbered)
    return (
        '<section id="incidents"><h2>Incidents</h2>'
        f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f'<div class="evidence">{cards}</div></section>'
    )


def _row(report: RunReport, number: int, each: IncidentStory, detail: Detail) -> str:
    cells = (
        f'<a class="badge {_tone(each)}" href="#evidence-{number}">{number}</a>',
        f"<b>{esc(cause_name(each.cause))}</b>"
        + (f' <span class="dim">&times; {each.times}</span>' if each.times > 1 else ""),
        _since(report, each),
        DASH if each.since_at is None else wait(each.detected_at - each.since_at),
        detail.cut(each.culprit or DASH),
        esc(_action(report, each)),
        _resumed(report, each),
        DASH if each.lost_steps is None else many(each.lost_steps, "step"),
        _recovered(report, each),
    )
    return f'<tr id="incident-{number}" class="incident">{labelled(_HEAD, cells)}</tr>'


def labelled(names: Sequence[str], cells: Sequence[str]) -> str:
    return "".join(
        f'<td data-label="{name}"><div>{cell}</div></td>'
        for name, cell in zip(names, cells, strict=True)
    )


def _tone(each: IncidentStory) -> str:
    return "warn" if each.severity == "warning" else "bad"


def _since(report: RunReport, each: IncidentStory) -> str:
    place = "" if each.since_iteration is None else f"iteration {each.since_iteration:,}"
    at = each.since_at if each.since_at is not None else each.detected_at
    moment = f'<span class="dim">{esc(when(at, report.clock, with_date=False))}</span>'
    return f"{place} {moment}" if place else moment


def _action(report: RunReport, each: IncidentStory) -> str:
    if each.action == "none":
        return "watched"
    if report.mode != "act":
        return f"would {'stop the job' if each.action == 'stop' else each.action}"
    if each.acted_at is None:
        return f"{each.action} decided on"
    return {"restart": "restarted", "stop": "stopped"}.get(each.action, each.action)


def _resumed(report: RunReport, each: IncidentStory) -> str:
    chosen = each.resume_from
    if each.resumed_from is not None:
        text = count(each.resumed_from) if each.resumed_from > 0 else "the beginning"
        if chosen is not None and chosen != each.resumed_from and each.action == "restart":
            return f'{text} <span class="dim">(mwatch chose {chosen:,})</span>'
        return text
    if each.action != "restart":
        return DASH
    return "the beginning" if chosen is None else count(chosen)


def _recovered(report: RunReport, each: IncidentStory) -> str:
    if each.recovered_at is not None:
        return duration(each.recovered_at - (each.since_at or each.detected_at))
    if each.action == "none" and each.closed_at is not None:
        own = next((one for one in report.attempts if one.number == each.attempt), None)
        has_ended = own and own.ended_at is not None and each.closed_at >= own.ended_at
        return "ended with the attempt" if has_ended else "went away by itself"
    is_last = bool(report.attempts) and each.attempt == report.attempts[-1].number
    return "not yet" if each.action == "restart" and not is_last else DASH


def _card(report: RunReport, number: int, each: IncidentStory, detail: Detail) -> str:
    unfolded = " open" if len(report.incidents) <= _OPEN else ""
    facts = "".join(
        f"<dt>{name}</dt><dd>{text}</dd>" for name, text in _facts(report, each, detail)
    )
    detectors = "".join(_detector(one, detail) for one in each.voices[: detail.entries])
    return (
        f'<details id="evidence-{number}" class="card {_tone(each)}"{unfolded}>'
        f'<summary><span class="badge {_tone(each)}">{number}</span> '
        f"<b>{esc(cause_name(each.cause))}</b> {detail.cut(each.summary)}</summary>"
        f"<dl>{facts}</dl>{detectors}</details>"
    )


def _facts(report: RunReport, each: IncidentStory, detail: Detail) -> Iterator[tuple[str, str]]:
    clock = report.clock
    moments = [
        ("began", each.since_at),
        ("detected", each.detected_at),
        ("decided", each.decided_at),
        ("acted" if report.mode == "act" else "would have acted", each.acted_at),
        ("recovered", each.recovered_at),
    ]
    shown = (f"{name} {when(at, clock, with_date=False)}" for name, at in moments if at is not None)
    yield "Times", esc(" → ".join(shown))
    texts = (
        ("Culprit", each.culprit),
        ("Why", each.reason),
        ("Why this checkpoint", each.resume_reason),
        ("Proposal", each.proposal),
    )
    yield from ((name, detail.cut(text)) for name, text in texts if text)
    if each.witnesses:
        yield (
            "Witnesses",
            "<br>".join(
                f"{'✓' if one.agrees else '✗ against:'} <b>{detail.cut(one.name)}</b> "
                f"{detail.cut(one.text)}"
                for one in each.witnesses[: detail.entries]
            ),
        )
    if each.stacks:
        yield "Stacks", _stacks(each.stacks, detail)
    if each.files:
        yield "Files", _files(each.files[: detail.entries], detail)
    page = f" (runbooks/{each.runbook}.md)" if each.runbook else ""
    if each.advice:
        yield "Next", detail.cut(each.advice + page)


def _stacks(groups: Sequence[StackGroup], detail: Detail) -> str:
    """Where each group stands, and all calls as one tree."""
    places = "<br>".join(detail.cut(each.text) for each in groups[: detail.entries])
    calls = "\n".join(detail.cut(line) for line in tree(groups[: detail.entries]))
    return f"{places}<details><summary>Calls</summary><pre tabindex='0'>{calls}</pre></details>"


def _files(files: Sequence[EvidenceFile], detail: Detail) -> str:
    """Link the files relative to the folder of the run; name each folder once."""
    folders: dict[str, list[str]] = {}
    for each in files:
        folder, _, name = each.path[:1000].rpartition("/")
        link = esc(quote(each.path[:1000], errors="replace"))
        about = f" ({detail.cut(each.about)})" if each.about else ""
        shown = detail.cut(name)
        shown = f'<a href="{link}">{shown}</a>' if detail.has_links else shown
        folders.setdefault(folder, []).append(f"{shown}{about}")
    return "<br>".join(
        (f'<span class="dim">{detail.cut(folder)}/</span> ' if folder else "") + ", ".join(names)
        for folder, names in folders.items()
    )


def _detector(report: DetectorReport, detail: Detail) -> str:
    lines = "".join(_excerpt(each, detail) for each in report.evidence[: detail.excerpts])
    return (
        f'<p class="voice"><code>{detail.cut(report.detector)}</code> '
        f"{detail.cut(report.summary)}</p>" + (f'<pre tabindex="0">{lines}</pre>' if lines else "")
    )


def _excerpt(each: Evidence, detail: Detail) -> str:
    place = f"{each.file}:{each.line}" if each.file and each.line is not None else each.file or ""
    return f"<span><i>{detail.cut(place)}</i> {detail.cut(' '.join(each.text.split()))}</span>"
