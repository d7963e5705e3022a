# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The rest of the page: headline, key figures, attempts, goodput, what was seen, what happened."""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.app.html_text import (
    DASH,
    Detail,
    cause_name,
    cause_tone,
    count,
    duration,
    esc,
    many,
    percent,
    steps,
    wait,
    when,
)
from mwatch.app.story import Story
from mwatch.app.story_parts import AttemptStory, SpentStory
from mwatch.stats import median

_SPENT = {
    "first_step": "first step",
    "hang_undetected": "hanging, not yet detected",
    "detecting": "hanging, being judged",
    "waiting_to_act": "hanging, waiting to act",
    "recomputed": "computing steps again",
    "training": "training (good)",
}
_SIGHTS = {
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
_ATTEMPTS = ("#", "Started", "Lasted", "Iterations", "Resumed from", "Done again", "Ended by")


def header(story: Story, title: str) -> str:
    tone = cause_tone(story.cause)
    name = "Running" if story.cause == "healthy" and not story.is_over else cause_name(story.cause)
    clock = story.clock
    span = ""
    if story.started_at is not None and story.ended_at is not None:
        zone = f" {clock.zone}" if clock.zone else ""
        begun = when(story.started_at, clock)
        span = f"{begun}{zone}, {duration(story.ended_at - story.started_at)}"
    command = f"<details><summary>Command</summary><code>{esc(story.command)}</code></details>"
    command = command if story.command else ""
    return (
        f'<header><p class="brand">{_MARK}mwatch</p><h1>{esc(title)}</h1>'
        f'<p class="state"><span class="pill {tone}">{esc(name)}</span> {esc(story.summary)}</p>'
        f'<p class="dim">{esc(span)}</p>{_lede(story)}{command}</header>'
    )


def _lede(story: Story) -> str:
    """What a reader in a hurry wants to know."""
    is_real = story.mode == "act"
    acted = [
        each
        for each in story.incidents
        if each.acted_at is not None or (each.action != "none" and not is_real)
    ]
    if not acted:
        return ""
    times = "once" if len(acted) == 1 else f"{len(acted)} times"
    text = f"mwatch acted {times}" if is_real else f"mwatch would have acted {times}"
    lost = sum(each.recomputed for each in story.attempts)
    if lost and story.wall_seconds > 0:
        spent = sum(each.seconds for each in story.spent if each.name == "recomputed")
        share = percent(spent / story.wall_seconds)
        text += f"; {steps(lost)} were done again, {share} of the time"
    back = sum(each.recovered_at is not None for each in acted)
    them = "all" if back == len(acted) else f"{back} of them"
    text += f"; {them} recovered from" if back else ""
    return f"<p>{esc(text)}.</p>"


def figures(story: Story) -> str:
    tiles = "".join(
        f'<div class="tile"><dt>{esc(name)}</dt><dd>{esc(big)}</dd><dd class="dim">{esc(small)}'
        "</dd></div>"
        for name, big, small in _figures(story)
    )
    return f'<dl class="tiles">{tiles}</dl>'


def _figures(story: Story) -> Iterator[tuple[str, str, str]]:
    if story.goodput is not None:
        yield "Goodput", percent(story.goodput), f"of {duration(story.wall_seconds)}"
    total = "" if story.total_iterations is None else f"of {count(story.total_iterations)}"
    yield "Iteration", count(story.iteration), total
    done = sum(each.recovered_at is not None for each in story.incidents)
    good = f"{done} recovered from" if done else "" if story.incidents else "nothing went wrong"
    yield "Incidents", count(len(story.incidents)), good
    waits = [
        each.detected_at - each.since_at
        for each in story.incidents
        if each.since_at is not None and each.severity == "critical"
    ]
    if waits:
        yield "Detected after", wait(median(waits)), f"at the most {wait(max(waits))}"
    again = sum(each.recomputed for each in story.attempts)
    yield "Attempts", count(len(story.attempts)), f"{steps(again)} done again" if again else ""
    if story.world_size:
        hours = sum(each.gpu_seconds for each in story.spent) / 3600
        yield "GPU-hours", f"{hours:,.2f}", f"on {many(story.world_size, 'rank')}"


def attempts(story: Story, detail: Detail) -> str:
    if not story.attempts:
        return ""
    head = "".join(f'<th scope="col">{each}</th>' for each in _ATTEMPTS)
    least = min((each.first_iteration or 0 for each in story.attempts), default=0)
    most = max((each.last_iteration or 0 for each in story.attempts), default=1)
    rows = "".join(_attempt(story, each, (least, most), detail) for each in story.attempts)
    return (
        '<section id="attempts"><h2>Attempts</h2>'
        f'<table class="cards"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        "</section>"
    )


def _attempt(story: Story, each: AttemptStory, reach: tuple[int, int], detail: Detail) -> str:
    ended = story.ended_at if each.ended_at is None else each.ended_at
    lasted = "?" if ended is None else duration(ended - each.started_at)
    cells = (
        f"<b>{each.number}</b>",
        esc(when(each.started_at, story.clock, with_date=False)),
        esc(lasted),
        _iterations(each, *reach),
        count(each.resumed_from),
        count(each.recomputed) if each.recomputed else DASH,
        f'<span class="{cause_tone(each.cause)}">{esc(cause_name(each.cause))}</span> '
        f'<span class="dim">{detail.cut(each.summary)}</span>',
    )
    return (
        "<tr>"
        + "".join(
            f'<td data-label="{name}"><div>{cell}</div></td>'
            for name, cell in zip(_ATTEMPTS, cells, strict=True)
        )
        + "</tr>"
    )


def _iterations(each: AttemptStory, least: int, most: int) -> str:
    """From where to where, with a bar: what was done again is pale."""
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


def goodput(story: Story) -> str:
    parts = sorted((each for each in story.spent if each.seconds > 0), key=lambda e: -e.seconds)
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
        f'<section id="goodput"><h2>Goodput <b class="big">{percent(story.goodput)}</b></h2>'
        '<p class="dim">The share of the wall time in which iterations were done for the first '
        "time, at the usual speed.</p>"
        '<svg class="stack" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">'
        f"{bar}</svg>"
        '<table class="spent"><thead><tr><th scope="col">Time went to</th><th></th>'
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


def seen(story: Story, detail: Detail) -> str:
    """What mwatch watched by, and what it could not see."""
    told = []
    for each in story.sights:
        name = _SIGHTS.get(each.name) or each.name[:60]
        if each.is_up:
            told.append(f'<li class="good">{esc(name)}</li>')
        elif each.since is None:
            told.append(f'<li class="dim">{esc(name)}: not seen</li>')
        else:
            since = when(each.since, story.clock, with_date=False)
            why = f", {each.reason}" * bool(each.reason)
            told.append(f'<li class="warn">{esc(name)}: lost at {detail.cut(since + why)}</li>')
    notes = "".join(f"<li>{detail.cut(note)}</li>" for note in story.notes[:64])
    files = "".join(f"<li><code>{detail.cut(file)}</code></li>" for file in story.sources[:64])
    return (
        '<section id="seen"><h2>What mwatch could see</h2>'
        f'<ul class="sights">{"".join(told)}</ul>'
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + (f"<details><summary>{many(len(story.sources), 'file')} read</summary>"
           f"<ul>{files}</ul></details>" if files else "")
        + "</section>"
    )  # fmt: skip


def happened(story: Story, detail: Detail) -> str:
    most = 10 * detail.entries
    told = story.happenings
    left_out = story.left_out + max(0, len(told) - most)
    kept = told if len(told) <= most else (*told[: most // 2], *told[-(most - most // 2) :])
    rows = "".join(
        f'<li class="h-{esc(each.kind[:20])}">'
        f"<time>{esc(when(each.at, story.clock, with_date=False))}</time> {detail.cut(each.text)}"
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
