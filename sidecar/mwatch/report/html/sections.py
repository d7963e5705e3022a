# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The sections of the page around the charts: headline, key figures, attempts, goodput, sources,
timeline, and the ranks of a run in progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mwatch.model.snapshot.pod import Gpu
from mwatch.model.snapshot.snapshot import RankSnapshot, Snapshot
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

LARGE = 64
"""Above this many ranks, each is a small square and only those with a problem have a row."""
_MAX_RANKS = 8192
_MAX_ROWS = 16
_LEGEND = (
    '<ul class="legend"><li class="good">in step</li>'
    '<li class="warn">late, behind or waiting</li>'
    '<li class="bad">silent, or the culprit</li></ul>'
)
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
    is_good = not report.incidents and report.exit_code == 0
    text = f"{done} recovered from" if done else "nothing went wrong" if is_good else ""
    yield "Incidents", count(len(report.incidents)), text
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
    """Link the incident that ended the attempt; else the summary, unless it is the headline."""
    for number, incident in enumerate(report.incidents, 1):
        if incident.attempt == each.number and incident.cause == each.cause:
            return f'<a href="#incident-{number}">incident {number}</a>'
    return "" if each.summary == report.verdict.summary else detail.cut(each.summary)


def _iterations(each: AttemptReport, least: int, most: int) -> str:
    """Render first and last iteration, with a bar whose repeated part is pale."""
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
    """Render the sources that mwatch could read, and those that were missing."""
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


class _Judged(NamedTuple):
    rank: RankSnapshot
    silence: float
    """Seconds since the iteration changed, or, if there is none, since the probe last wrote."""
    tone: str
    why: str


class Ranks:
    """Renders the section of the ranks repeatedly.

    A square shows no changing numbers and is rendered again only when the state of its rank
    changes. So an update of thousands of ranks is cheap, and nothing is sent without a change."""

    def __init__(self) -> None:
        self._squares: dict[tuple[int, str, str, str, bool], str] = {}

    def render(
        self, snapshot: Snapshot | None, places: Mapping[int, str], count_of_all: int | None = None
    ) -> str:
        """`places`: pod and node of each rank; `count_of_all`: if the snapshot lacks some ranks."""
        if snapshot is None:
            return ""
        judged = _judged(snapshot)
        gpus = {each.rank: each for each in snapshot.gpus if each.rank is not None}
        if not judged:
            text = "No rank reports yet." if snapshot.phase else "Nothing is running yet."
            body = f'<p class="dim">{text}</p>'
        elif len(judged) <= LARGE:
            cards = "".join(_About(each, gpus, places).card() for each in judged)
            body = f'<ol class="ranks">{cards}</ol>'
        else:
            body = _standing_out(judged, gpus, places) + self._grid(judged, gpus, places)
        of = f" of {count(count_of_all)}" if (count_of_all or 0) > len(judged) else ""
        size = "" if not judged else f' <span class="dim">{count(len(judged))}{of}</span>'
        return (
            f'<section id="ranks"><h2>Ranks{size}</h2>{_LEGEND if judged else ""}{body}'
            f"{_other_gpus(snapshot)}</section>"
        )

    def _grid(
        self, judged: Sequence[_Judged], gpus: Mapping[int, Gpu], places: Mapping[int, str]
    ) -> str:
        lost = {rank for rank, gpu in gpus.items() if not gpu.is_up}
        before, squares = self._squares, {}
        for (rank, *_), _, tone, why in judged:
            key = rank, tone, why, places.get(rank, ""), rank in lost
            squares[key] = before.get(key) or _square(*key)
        self._squares = squares
        return f'<ol class="ranks many">{"".join(squares.values())}</ol>'


def _square(rank: int, tone: str, why: str, place: str, has_lost_gpu: bool) -> str:
    parts = f"rank {rank}", why or "in step", "GPU lost" * has_lost_gpu, place
    return f'<li class="{tone}" title="{esc(", ".join(filter(None, parts)))}"></li>'


def _judged(snapshot: Snapshot) -> list[_Judged]:
    blamed = {
        each.culprit.rank: each
        for each in snapshot.findings
        if each.culprit is not None and each.culprit.rank is not None
    }
    front, newest = max(((each.iteration or 0, each.beat_at) for each in snapshot.ranks),
                        default=(0, 0.0))  # fmt: skip
    step, limit = snapshot.numbers.step_seconds or float("inf"), snapshot.hang_deadline_seconds
    found = []
    for rank in snapshot.ranks[:_MAX_RANKS]:
        moved = None if rank.iteration is None else rank.progressed_at
        moved = rank.beat_at if moved is None else moved
        silence = max(0.0, snapshot.at - moved)
        tone, why = "good", ""
        if rank.rank in blamed:
            tone, why = "bad", f"culprit: {blamed[rank.rank].cause.value.replace('_', ' ')}"
        elif limit is not None and silence > limit:
            tone, why = ("warn", "waits") if blamed else ("bad", "silent")
        elif (
            rank.iteration is not None
            and rank.iteration < front - 1
            and rank.iteration < front - 1 - (newest - rank.beat_at) / step  # an older report
        ):
            tone, why = "warn", f"behind by {count(front - rank.iteration)}"
        elif limit is not None and silence > limit / 2:
            tone, why = "warn", "late"
        found.append(_Judged(rank, silence, tone, why))
    return found


class _About:
    """Everything known about one rank, for its square or row."""

    def __init__(self, judged: _Judged, gpus: Mapping[int, Gpu], places: Mapping[int, str]) -> None:
        self.rank, self.silence, self.tone, self.why = judged
        self._gpu = _gpu(gpus.get(self.rank.rank))
        self._place = places.get(self.rank.rank, "")

    def card(self) -> str:
        rank, state = self.rank, f'<em class="{self.tone}">{esc(self.why)}</em>' * bool(self.why)
        return (
            f'<li class="{self.tone}" id="rank-{rank.rank}"><b>{rank.rank}</b> {state}'
            f"<span>{esc(rank.phase or '')}</span><span>iteration {count(rank.iteration)}</span>"
            f'<span class="dim">{duration(self.silence)} ago</span><span>{self._gpu}</span>'
            + (f'<span class="dim">{esc(self._place)}</span>' if self._place else "")
            + "</li>"
        )

    def row(self) -> str:
        rank = self.rank
        parts = [
            f"rank {rank.rank}", self.why, rank.phase, f"iteration {count(rank.iteration)}",
            f"{duration(self.silence)} ago", self._gpu, self._place,
        ]  # fmt: skip
        text = ", ".join(part for part in parts if part)
        return f'<li><b class="{self.tone}">{esc(text)}</b></li>'


def _standing_out(
    judged: Sequence[_Judged], gpus: Mapping[int, Gpu], places: Mapping[int, str]
) -> str:
    """Render a row for each rank that is not in step, worst first."""
    odd = [each for each in judged if each.tone != "good"]
    odd.sort(
        key=lambda each: (each.tone != "bad", not each.why.startswith("culprit"), -each.silence)
    )
    if not odd:
        return '<p class="calm">All ranks are in step.</p>'
    rows = "".join(_About(each, gpus, places).row() for each in odd[:_MAX_ROWS])
    left = len(odd) - _MAX_ROWS
    more = f'<p class="dim">and {many(left, "more rank")}.</p>' if left > 0 else ""
    return f'<ol class="odd">{rows}</ol>{more}'


def _gpu(gpu: Gpu | None) -> str:
    if gpu is None:
        return ""
    if not gpu.is_up:
        return "GPU lost"
    use = "" if gpu.utilization is None else f"GPU {gpu.utilization:.0%}"
    heat = "" if gpu.temperature_celsius is None else f"{gpu.temperature_celsius:.0f} °C"
    return " ".join(part for part in (use, heat) if part)


def _other_gpus(snapshot: Snapshot) -> str:
    """List the GPUs whose rank is unknown."""
    known = {each.rank for each in snapshot.ranks}
    others = [each for each in snapshot.gpus if each.rank not in known][:LARGE]
    if not others:
        return ""
    shown = ", ".join(f"{each.number}: {_gpu(each) or DASH}" for each in others)
    return f'<p class="dim">GPUs without a known rank: {esc(shown)}</p>'
