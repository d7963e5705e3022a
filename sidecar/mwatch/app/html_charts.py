# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The charts of the report: loss, step time, gradient norm and loss scale over one axis.

Each is drawn twice, by time and by iteration; a choice on the page shows one of them. A chart
is stretched to the page, so all text stands beside it in HTML and keeps its size on a phone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mwatch.app.html_curves import (
    Curve,
    Frame,
    Pick,
    curve,
    of_grad_norm,
    of_loss,
    of_loss_scale,
    of_step_seconds,
)
from mwatch.app.html_scale import HEIGHT, Tick, Up, labels_up, linear, logarithmic
from mwatch.app.html_text import DASH, count, esc, many, power_of_two, seconds, value
from mwatch.app.story_series import Span
from mwatch.stats import median, quantile

_WIDE = 20.0
"""A range so many times the middle is told on a logarithmic axis."""
_HIGHEST = 2.0
"""Steps of more than so many times the usual are shown at the top: the first ones are slow."""
_MOST_OF = 0.95
"""Unless more than the rest are so long."""
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
    Chart("loss", "Loss", "loss", "The training loss", of_loss, is_tall=True),
    Chart(
        "step-time", "Step time", "seconds a step", "Seconds of one iteration", of_step_seconds,
        seconds,
    ),
    Chart("grad-norm", "Gradient norm", "gradient norm", "The norm of the gradients", of_grad_norm),
    Chart(
        "loss-scale", "Loss scale", "loss scale", "The scale of the fp16 loss", of_loss_scale,
        power_of_two,
    ),
)  # fmt: skip


def charts(frame: Frame, marks: str, below: str) -> Iterator[str]:
    """Those that have anything to show; `marks` is drawn behind each, `below` stands under the
    tall one."""
    for chart in CHARTS:
        spans = [span for each in frame.buckets if (span := chart.pick(each)) is not None]
        is_constant = chart.id == "loss-scale" and len({span.mean for span in spans}) < 2
        if spans and not is_constant:
            yield _figure(frame, chart, spans, marks, below if chart.is_tall else "")


def _axis(frame: Frame, chart: Chart, spans: list[Span]) -> Up:
    checks = [each.loss for each in frame.story.validations] if chart.id == "loss" else []
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


def _figure(frame: Frame, chart: Chart, spans: list[Span], marks: str, below: str) -> str:
    up = _axis(frame, chart, spans)
    ticks = labels_up(up, chart.name, 5 if chart.is_tall else 3)
    drawn = [curve(frame, chart.pick, up, across) for across in (frame.time_of, frame.step_of)]
    checks = _evaluations(frame, up) if chart.id == "loss" else ("", "")
    title, about = esc(chart.title), _about(frame, chart, spans)
    tall = " tall" if chart.is_tall else ""
    return (
        f'<figure class="chart" id="{chart.id}"><figcaption><b>{title}</b>'
        f"{_newest(chart, frame)}{_key(checks[0])}{_beyond(chart, spans, up)}</figcaption>"
        f'<div class="plot{tall}"><div class="clip">'
        f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none" role="img" '
        f'aria-labelledby="{chart.id}-t {chart.id}-d">'
        f'<title id="{chart.id}-t">{title}</title><desc id="{chart.id}-d">{esc(about)}</desc>'
        f"{_grid(ticks)}{marks}"
        f'<g class="by-time">{_paths(chart, drawn[0])}{checks[0]}</g>'
        f'<g class="by-step">{_paths(chart, drawn[1])}{checks[1]}</g></svg></div>'
        f"{_labels(ticks)}</div>{below}</figure>"
    )


def tables(frame: Frame) -> str:
    """The same numbers for those who cannot see the charts."""
    told = "".join(_table(frame, chart) for chart in CHARTS if any(map(chart.pick, frame.buckets)))
    if not told:
        return ""
    return f'<details class="numbers"><summary>The numbers as tables</summary>{told}</details>'


def _grid(ticks: list[Tick]) -> str:
    return f'<path class="grid" d="{"".join(f"M0 {tick.place:g}H1000" for tick in ticks)}"/>'


def _labels(ticks: list[Tick]) -> str:
    """Top of the page is 0 %."""
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
    """Dots, by time and by iteration."""
    told = frame.story.validations
    by_time = "".join(f"M{frame.time.place(e.at):g} {up.place(e.loss):g}h.01" for e in told)
    by_step = "".join(
        f"M{frame.step.place(float(e.iteration)):g} {up.place(e.loss):g}h.01" for e in told
    )
    if not told:
        return "", ""
    return f'<path class="eval" d="{by_time}"/>', f'<path class="eval" d="{by_step}"/>'


def _key(evaluations: str) -> str:
    return '<span class="key">evaluation</span>' if evaluations else ""


def _newest(chart: Chart, frame: Frame) -> str:
    newest = next(
        (span for each in reversed(frame.buckets) if (span := chart.pick(each)) is not None), None
    )
    return f' <span class="now">{esc(chart.name(newest.mean))}</span>' if newest else ""


def _beyond(chart: Chart, spans: list[Span], up: Up) -> str:
    above = [span.high for span in spans if span.high > up.high]
    if not above:
        return ""
    text = f"{many(len(above), 'value')} above, up to {chart.name(max(above))}"
    return f' <span class="dim">▲ {esc(text)}</span>'


def _about(frame: Frame, chart: Chart, spans: list[Span]) -> str:
    """For those who cannot see it."""
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
    """A few dozen of them."""
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
        f'<h3>{esc(chart.title)}</h3><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
