# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The charts of the page: loss, step time, gradient norm and loss scale over one axis.

Each chart is drawn twice, by time and by iteration; a switch on the page selects which is shown. A
curve shows the mean and the range of each bucket, with gaps where there is no value. Steps that a
later attempt repeated were lost, and are drawn as a separate curve. A chart is stretched to the
width of the page, so all text is HTML beside it, which keeps its size on a phone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from mwatch.report.html.scale import HEIGHT, Across, Tick, Up, labels_up, linear, logarithmic
from mwatch.report.html.text import DASH, count, esc, many, power_of_two, seconds, value
from mwatch.report.run_report import RunReport
from mwatch.report.series import Bucket, ValueRange, halved
from mwatch.stats import median, quantile

MAX_DRAWN = 2048
_TICK = 5.0

Pick = Callable[[Bucket], ValueRange | None]
Across_of = Callable[[Bucket], float]


class Curve(NamedTuple):
    """One curve as SVG path data."""

    kept: str
    lost: str
    ranges: str
    bad: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The data that all charts of a page share: the buckets and the two horizontal axes."""

    report: RunReport
    buckets: tuple[Bucket, ...]
    time: Across
    step: Across
    forks: dict[int, int]
    """By attempt: the iteration above which its steps were lost."""

    def is_lost(self, bucket: Bucket) -> bool:
        fork = self.forks.get(bucket.attempt)
        return fork is not None and bucket.first > fork

    def time_of(self, bucket: Bucket) -> float:
        return self.time.place((bucket.began_at + bucket.ended_at) / 2)

    def step_of(self, bucket: Bucket) -> float:
        return self.step.place((bucket.first + bucket.last) / 2)


def frame(report: RunReport, *, most: int = MAX_DRAWN) -> Frame:
    """Prepare the charts of a report. `most`: maximum number of points of a curve."""
    buckets = thinned(spread(report.series), most)
    moments = [report.started_at, report.ended_at]
    moments += [each for span in report.phases for each in (span.began_at, span.ended_at)]
    moments += [each for one in buckets for each in (one.began_at, one.ended_at)]
    known = [each for each in moments if each is not None] or [0.0]
    steps = [each for one in buckets for each in (one.first, one.last)]
    steps += [each.last_iteration for each in report.attempts if each.last_iteration is not None]
    return Frame(
        report,
        tuple(buckets),
        Across(min(known), max(known)),
        Across(float(min(steps, default=0)), float(max(steps, default=1))),
        _forks(report),
    )


def spread(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Spread lines with the same timestamp over the duration of their steps, but not back beyond
    the previous line."""
    placed: list[Bucket] = []
    for (attempt, at), group in groupby(buckets, key=lambda each: (each.attempt, each.ended_at)):
        batch = list(group)
        long = [_seconds(each) for each in batch]
        is_next = placed and placed[-1].attempt == attempt
        before = placed[-1].ended_at if is_next else at - sum(long)
        room = max(0.0, at - before)
        share = min(1.0, room / sum(long)) if sum(long) > 0 else 0.0
        left = sum(long) * share
        for each, length in zip(batch, long, strict=True):
            left -= length * share
            is_whole = each.began_at < each.ended_at or len(batch) == 1
            moved = replace(each, began_at=at - left, ended_at=at - left)
            placed.append(each if is_whole else moved)
    return placed


def _seconds(bucket: Bucket) -> float:
    span = bucket.step_seconds
    return 0.0 if span is None else max(0.0, span.mean) * max(1, bucket.last - bucket.first + 1)


def thinned(buckets: Sequence[Bucket], most: int) -> list[Bucket]:
    """Join neighbours of one attempt until there are at most `most` buckets."""
    kept = list(buckets)
    while len(kept) > most:
        fewer, _ = halved(kept)
        if len(fewer) == len(kept):
            return kept[-most:]
        kept = fewer
    return kept


def _forks(report: RunReport) -> dict[int, int]:
    """By attempt: the iteration from which a later attempt repeated its steps."""
    found: dict[int, int] = {}
    lowest: int | None = None
    for attempt in reversed(report.attempts):
        if lowest is not None:
            found[attempt.number] = lowest
        begun = attempt.resumed_from
        if begun is None and attempt.first_iteration is not None:
            begun = attempt.first_iteration - 1
        if begun is not None:
            lowest = begun if lowest is None else min(lowest, begun)
    return found


def curve(frame: Frame, pick: Pick, up: Up, across: Across_of) -> Curve:
    kept: list[str] = []
    lost: list[str] = []
    ranges: list[str] = []
    for run in _runs(frame, pick):
        points = [(across(bucket), span) for bucket, span in run]
        is_lost = frame.is_lost(run[-1][0])
        (lost if is_lost else kept).append(_line(points, up))
        if any(span.high > span.low for _, span in points):
            ranges.append(_area(points, up))
    bad = (f"M{across(each):g} {HEIGHT:g}v-{_TICK:g}" for each in frame.buckets if each.bad)
    return Curve("".join(kept), "".join(lost), "".join(ranges), "".join(bad))


def _runs(frame: Frame, pick: Pick) -> Iterator[list[tuple[Bucket, ValueRange]]]:
    """Split into continuous lines: one attempt, no gaps, either all lost or all kept."""
    run: list[tuple[Bucket, ValueRange]] = []
    for bucket in frame.buckets:
        span = pick(bucket)
        last = run[-1][0] if run else None
        if last is not None and (span is None or last.attempt != bucket.attempt):
            yield run
            run = []
        elif last is not None and frame.is_lost(last) != frame.is_lost(bucket):
            yield run
            run = run[-1:]  # the lost part starts where the kept one ends
        if span is not None:
            run.append((bucket, span))
    if run:
        yield run


def _line(points: Sequence[tuple[float, ValueRange]], up: Up) -> str:
    places = [f"{x:g} {up.place(span.mean):g}" for x, span in points]
    if len(places) == 1:
        return f"M{places[0]}h.01"  # a round cap makes it a dot
    return "M" + "L".join(places)


def _area(points: Sequence[tuple[float, ValueRange]], up: Up) -> str:
    above = [f"{x:g} {up.place(span.high):g}" for x, span in points]
    below = [f"{x:g} {up.place(span.low):g}" for x, span in reversed(points)]
    return "M" + "L".join(above + below) + "Z"


_WIDE = 20.0
"""If the highest value exceeds this multiple of the median, the axis is logarithmic."""
_HIGHEST = 2.0
"""Steps longer than this multiple of the median are cut off, because the first ones are slow."""
_MOST_OF = 0.95
"""This share of the steps is never cut off, however long they are."""
_ROWS = 24


@dataclass(frozen=True, slots=True)
class Chart:
    id: str
    title: str
    short: str
    about: str
    pick: Pick
    name: Callable[[float], str] = value
    is_tall: bool = False


CHARTS = (
    Chart("loss", "Loss", "loss", "The training loss", attrgetter("loss"), is_tall=True),
    Chart(
        "step-time", "Step time", "seconds a step", "Seconds of one iteration",
        attrgetter("step_seconds"), seconds,
    ),
    Chart(
        "grad-norm", "Gradient norm", "gradient norm", "The norm of the gradients",
        attrgetter("grad_norm"),
    ),
    Chart(
        "loss-scale", "Loss scale", "loss scale", "The scale of the fp16 loss",
        attrgetter("loss_scale"), power_of_two,
    ),
)  # fmt: skip


def charts(frame: Frame, marks: str, below: str) -> Iterator[str]:
    """Draw the charts that have data, with `marks` behind each and `below` under the tall one."""
    for chart in CHARTS:
        spans = [span for each in frame.buckets if (span := chart.pick(each)) is not None]
        is_constant = chart.id == "loss-scale" and len({span.mean for span in spans}) < 2
        if spans and not is_constant:
            yield _figure(frame, chart, spans, marks, below if chart.is_tall else "")


def _axis(frame: Frame, chart: Chart, spans: list[ValueRange]) -> Up:
    checks = [each.loss for each in frame.report.validations] if chart.id == "loss" else []
    lows, highs = [each.low for each in spans] + checks, [each.high for each in spans] + checks
    middle = median([each.mean for each in spans])
    if chart.id == "loss-scale":
        return logarithmic(lows, highs, 1.6)
    if chart.id == "step-time":
        usual = max(_HIGHEST * middle, quantile([each.mean for each in spans], _MOST_OF))
        most = max(min(max(highs), usual), min(lows))
        return Up(0.0, most * 1.12 or 1.0)
    if min(lows) > 0 and max(highs) > _WIDE * middle:
        return logarithmic(lows, highs)
    return linear(lows, highs)


def _figure(frame: Frame, chart: Chart, spans: list[ValueRange], marks: str, below: str) -> str:
    up = _axis(frame, chart, spans)
    ticks = labels_up(up, chart.name, 5 if chart.is_tall else 3)
    drawn = [curve(frame, chart.pick, up, across) for across in (frame.time_of, frame.step_of)]
    checks = _evaluations(frame, up) if chart.id == "loss" else ("", "")
    title, about = esc(chart.title), _about(frame, chart, spans)
    tall = " tall" if chart.is_tall else ""
    grid = "".join(f"M0 {tick.place:g}H1000" for tick in ticks)
    key = '<span class="key">evaluation</span>' if checks[0] else ""
    return (
        f'<figure class="chart" id="{chart.id}"><figcaption><b>{title}</b>'
        f"{_newest(chart, frame)}{key}{_beyond(chart, spans, up)}</figcaption>"
        f'<div class="plot{tall}"><div class="clip">'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{chart.id}-t {chart.id}-d">'
        f'<title id="{chart.id}-t">{title}</title><desc id="{chart.id}-d">{esc(about)}</desc>'
        f'<path class="grid" d="{grid}"/>{marks}'
        f'<g class="by-time">{_paths(chart, drawn[0])}{checks[0]}</g>'
        f'<g class="by-step">{_paths(chart, drawn[1])}{checks[1]}</g></svg></div>'
        f"{_labels(ticks)}</div>{below}</figure>"
    )


def tables(frame: Frame) -> str:
    """The data of the charts as tables, for readers who cannot see the charts."""
    body = "".join(_table(frame, chart) for chart in CHARTS if any(map(chart.pick, frame.buckets)))
    if not body:
        return ""
    return f'<details class="numbers"><summary>The numbers as tables</summary>{body}</details>'


def _labels(ticks: list[Tick]) -> str:
    return "".join(
        f'<span class="y" style="top:{tick.place / HEIGHT:.2%}">{esc(tick.label)}</span>'
        for tick in ticks
    )


def _paths(chart: Chart, drawn: Curve) -> str:
    named = [("range", drawn.ranges), ("lost", drawn.lost), ("line", drawn.kept)]
    if chart.id in ("loss", "grad-norm"):
        named.append(("nan", drawn.bad))
    return "".join(f'<path class="{name}" d="{data}"/>' for name, data in named if data)


def _evaluations(frame: Frame, up: Up) -> tuple[str, str]:
    """Return the validation losses as dots: by time, and by iteration."""
    every = frame.report.validations
    by_time = "".join(f"M{frame.time.place(e.at):g} {up.place(e.loss):g}h.01" for e in every)
    by_step = "".join(
        f"M{frame.step.place(float(e.iteration)):g} {up.place(e.loss):g}h.01" for e in every
    )
    if not every:
        return "", ""
    return f'<path class="eval" d="{by_time}"/>', f'<path class="eval" d="{by_step}"/>'


def _newest(chart: Chart, frame: Frame) -> str:
    newest = next(
        (span for each in reversed(frame.buckets) if (span := chart.pick(each)) is not None), None
    )
    return f' <span class="now">{esc(chart.name(newest.mean))}</span>' if newest else ""


def _beyond(chart: Chart, spans: list[ValueRange], up: Up) -> str:
    above = [span.high for span in spans if span.high > up.high]
    if not above:
        return ""
    text = f"{many(len(above), 'value')} above, up to {chart.name(max(above))}"
    return f' <span class="dim">▲ {esc(text)}</span>'


def _about(frame: Frame, chart: Chart, spans: list[ValueRange]) -> str:
    """Return a text description of the chart, for readers who cannot see it."""
    low, high = min(each.low for each in spans), max(each.high for each in spans)
    bad = sum(each.bad for each in frame.buckets)
    text = (
        f"{chart.about}, iteration {count(int(frame.step.low))} to {count(int(frame.step.high))}: "
        f"first {chart.name(spans[0].mean)}, last {chart.name(spans[-1].mean)}, "
        f"lowest {chart.name(low)}, highest {chart.name(high)}."
    )
    if bad and chart.id in ("loss", "grad-norm"):
        text += f" {many(bad, 'line')} without a finite number."
    return text


def _table(frame: Frame, chart: Chart) -> str:
    every = max(1, -(-len(frame.buckets) // _ROWS))
    rows = []
    for bucket in frame.buckets[::every]:
        span = chart.pick(bucket)
        low, mean, high = (
            (DASH,) * 3 if span is None else map(chart.name, (span.low, span.mean, span.high))
        )
        where = f"{bucket.first:,}" + f"{DASH}{bucket.last:,}" * (bucket.last > bucket.first)
        cells = (bucket.attempt, where, low, mean, high)
        rows.append("<tr>" + "".join(f"<td>{esc(each)}</td>" for each in cells) + "</tr>")
    head = "".join(
        f'<th scope="col">{each}</th>'
        for each in ("Attempt", "Iterations", "Lowest", "Mean", "Highest")
    )
    return (
        f'<h3>{esc(chart.title)}</h3><div class="scroll" tabindex="0"><table><thead><tr>{head}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
