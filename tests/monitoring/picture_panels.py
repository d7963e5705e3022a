# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One panel, drawn into a part of a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from monitoring.picture_data import Series, columns_of, series_of
from monitoring.picture_words import COLORS, LINES, color_of, state_of, told
from monitoring.watched_run import Watched

MAX_LEGEND = 6
MAX_ROWS = 14
_SMALL = 6.0


class Canvas(NamedTuple):
    axes: Axes
    panel: dict[str, Any]
    watched: Watched
    run: str
    marks: dict[str, list[float]]
    """Moments by colour."""

    @property
    def unit(self) -> str:
        unit: str = self.panel["fieldConfig"]["defaults"]["unit"]
        return unit

    def series(self) -> list[Series]:
        return series_of(self.watched, self.panel, self.run)


def draw(canvas: Canvas) -> None:
    axes, panel = canvas.axes, canvas.panel
    axes.set_title(panel["title"], loc="left", fontsize=7.5, fontweight="bold", pad=3)
    for side in axes.spines.values():
        side.set_color("#d0d0d0")
    axes.tick_params(labelsize=_SMALL, length=2, color="#d0d0d0")
    _DRAWN[panel["type"]](canvas)


def _lines(canvas: Canvas) -> None:
    axes, custom = canvas.axes, canvas.panel["fieldConfig"]["defaults"]["custom"]
    found = canvas.series()
    is_stacked = custom.get("stacking", {}).get("mode") == "normal"
    is_bars = custom.get("drawStyle") == "bars"
    for number, each in enumerate(found):
        color = LINES[number % len(LINES)]
        name = each.name if number < MAX_LEGEND else None
        if is_bars:
            axes.bar(each.times, each.values, width=0.9, color=color, label=name, alpha=0.7)
        elif not is_stacked:
            axes.step(each.times, each.values, color=color, lw=1.1, label=name, where="post")
    if is_stacked:
        _stack(axes, found)
    _scale(canvas)
    _bands(canvas)
    if found:
        axes.legend(fontsize=5.5, loc="best", frameon=False, handlelength=1)


def _stack(axes: Axes, found: list[Series]) -> None:
    times = sorted({time for each in found for time in each.times})
    known = [dict(zip(each.times, each.values, strict=True)) for each in found]
    values = [[each.get(time, 0.0) for time in times] for each in known]
    names = [each.name for each in found]
    axes.stackplot(times, values, labels=names, colors=LINES, alpha=0.6)


def _scale(canvas: Canvas) -> None:
    axes, defaults = canvas.axes, canvas.panel["fieldConfig"]["defaults"]
    low, high = axes.get_ylim()
    is_logarithmic = defaults["custom"].get("scaleDistribution", {}).get("type") == "log"
    if is_logarithmic and low > 0 and high / low > 8:
        axes.set_yscale("log", base=2)
    _time_axis(canvas)
    axes.yaxis.set_major_formatter(lambda value, _: told(value, canvas.unit))
    axes.grid(color="#eeeeee", lw=0.5)
    axes.set_axisbelow(True)


def _bands(canvas: Canvas) -> None:
    """The ground by the bands of health, within what is shown anyway."""
    defaults = canvas.panel["fieldConfig"]["defaults"]
    if defaults["custom"].get("thresholdsStyle", {}).get("mode") != "area":
        return
    low, high = canvas.axes.get_ylim()
    steps = defaults["thresholds"]["steps"]
    starts = [low if step["value"] is None else step["value"] for step in steps]
    for step, start, end in zip(steps, starts, [*starts[1:], high], strict=True):
        bottom, top = max(low, start), min(high, end)
        if bottom < top:
            canvas.axes.axhspan(bottom, top, color=COLORS[step["color"]], alpha=0.13, lw=0)
    canvas.axes.set_ylim(low, high)


def _time_axis(canvas: Canvas) -> None:
    watched = canvas.watched
    canvas.axes.set_xlim(0, watched.ended - watched.began)
    canvas.axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    for color, moments in canvas.marks.items():
        for at in moments:
            canvas.axes.axvline(at, color=COLORS[color], lw=0.8, ls="--", alpha=0.8)


def _rows(canvas: Canvas) -> None:
    """States and heat maps: a row for each series."""
    found = canvas.series()[:MAX_ROWS]
    for row, each in enumerate(found):
        for at, value in zip(each.times, each.values, strict=True):
            color = color_of(value, canvas.panel)
            canvas.axes.barh(row, 1.02, left=at, height=0.8, color=color, lw=0)
        _state_words(canvas, row, each)
    _names(canvas, found)
    canvas.axes.set_ylim(max(len(found), 1) - 0.4, -0.6)
    _time_axis(canvas)
    if not found:
        _say(canvas, canvas.panel["fieldConfig"]["defaults"].get("noValue", "no data"))


def _names(canvas: Canvas, found: list[Series]) -> None:
    """Inside, at the left: there is no room outside for long ones."""
    canvas.axes.set_yticks([])
    where = canvas.axes.get_yaxis_transform()
    box = {"facecolor": "white", "alpha": 0.75, "lw": 0, "pad": 0.8}
    for row, each in enumerate(found):
        canvas.axes.text(
            0.004, row, each.name, transform=where, fontsize=5.5, va="center", bbox=box, zorder=5
        )


def _state_words(canvas: Canvas, row: int, each: Series) -> None:
    """What a state is called, written where it begins, where there is room."""
    last, since = None, -10.0
    for at, value in zip(each.times, each.values, strict=True):
        state = state_of(value, canvas.panel)
        if canvas.panel["type"] == "state-timeline" and state and state["text"] != last:
            if at - since > 4:
                canvas.axes.text(at + 0.2, row, state["text"], fontsize=5, va="center")
                since = at
            last = state["text"]


def _number(canvas: Canvas) -> None:
    found = canvas.series()
    canvas.axes.set_xticks([])
    canvas.axes.set_yticks([])
    if not found:
        _say(canvas, "no data")
    for number, each in enumerate(found[:3]):
        value = each.values[-1]
        state = state_of(value, canvas.panel)
        words = state["text"] if state else told(value, canvas.unit)
        color = color_of(value, canvas.panel) if len(_steps(canvas)) > 1 or state else "#333333"
        height = 0.5 if len(found) == 1 else 0.78 - 0.3 * number
        size = 15 if len(found) == 1 else 10
        name = "" if len(found) == 1 else f"  {each.name}"
        canvas.axes.text(
            0.5, height, words + name, transform=canvas.axes.transAxes, ha="center", va="center",
            fontsize=size, color=color,
        )  # fmt: skip


def _steps(canvas: Canvas) -> list[Any]:
    steps: list[Any] = canvas.panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    return steps


def _totals(canvas: Canvas) -> None:
    found = canvas.series()[:MAX_ROWS]
    values = [each.values[-1] for each in found]
    canvas.axes.barh(range(len(found)), values, color=LINES[0], height=0.6)
    _names(canvas, found)
    for row, value in enumerate(values):
        canvas.axes.text(value, row, f" {told(value, canvas.unit)}", fontsize=_SMALL, va="center")
    canvas.axes.set_xlim(0, max([*values, 1e-9]) * 1.25)
    canvas.axes.set_xticks([])
    canvas.axes.invert_yaxis()


def _table(canvas: Canvas) -> None:
    canvas.axes.axis("off")
    lines = columns_of(canvas.watched, canvas.panel, canvas.run)
    overrides = {
        each["matcher"]["options"]: {one["id"]: one["value"] for one in each["properties"]}
        for each in canvas.panel["fieldConfig"]["overrides"]
    }
    heading = lines[0]
    shown = [
        [_cell(text, overrides.get(name)) for name, text in zip(heading, line, strict=True)]
        for line in lines[1:MAX_ROWS]
    ]
    if not shown:
        _say(canvas, "no data")
        return
    drawn = canvas.axes.table(cellText=shown, colLabels=heading, loc="upper center")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(_SMALL)
    for cell in drawn.get_celld().values():
        cell.set_edgecolor("#d0d0d0")


def _cell(text: str, override: dict[str, Any] | None) -> str:
    if not text or override is None:
        return text
    for mapping in override.get("mappings", []):
        if state := mapping["options"].get(text):
            return str(state["text"])
    return told(float(text), override["unit"])


def _say(canvas: Canvas, words: str) -> None:
    canvas.axes.text(
        0.5, 0.5, words, transform=canvas.axes.transAxes, ha="center", va="center", fontsize=7,
        color="#8e8e8e",
    )  # fmt: skip


_DRAWN: dict[str, Callable[[Canvas], None]] = {
    "timeseries": _lines,
    "state-timeline": _rows,
    "status-history": _rows,
    "stat": _number,
    "bargauge": _totals,
    "table": _table,
}
