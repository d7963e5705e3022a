# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs and runs, one line each: the table of `mwatch status` and the list of `mwatch top`.

On a narrow screen the summary is dropped first, then columns, then parts of names; the culprit is
cut last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mwatch.cli.shared.formats import duration
from mwatch.cli.shared.terminal import Line, is_bounded, plain, width
from mwatch_trainer.scrub.scrubber import scrub_text

if TYPE_CHECKING:
    from mwatch.diagnose.fleet_status import Fleet, FleetLine

_HEAD = (
    "NAMESPACE", "JOB", "KIND", "MODE", "PHASE", "PODS", "ITERATION", "VERDICT", "SINCE", "CULPRIT",
)  # fmt: skip
_JOB, _VERDICT, _CULPRIT = map(_HEAD.index, ("JOB", "VERDICT", "CULPRIT"))
_LESSER = tuple(
    map(_HEAD.index, ("KIND", "MODE", "PODS", "PHASE", "NAMESPACE", "ITERATION", "SINCE"))
)
"""Columns that a narrow screen drops, in this order."""
_MAX_NAME = 40
_MIN_NAME = 8
_MIN_SUMMARY = 12
_GAP = 2
NO_JOB = "no watched job; mwatch inject adds the label mwatch.dev/watch"
_GOOD = ("healthy", "finished")
_DOUBT = ("unknown", "blind", "suspended", "slow", "checkpoint_overdue")


def render_fleet(fleet: Fleet, *, with_namespace: bool) -> list[Line]:
    problems: list[Line] = [[(f"not read: {each}", "yellow")] for each in fleet.problems]
    if not fleet.lines:
        return [[(NO_JOB, "")], *problems]
    return [*render_jobs(fleet.lines, fleet.at, with_namespace=with_namespace), *problems]


def render_jobs(jobs: Sequence[FleetLine], now: float, *, with_namespace: bool) -> list[Line]:
    """The header of the table, then one line for each job, as wide as the screen."""
    rows = [_HEAD, *(_row(each, now) for each in jobs)]
    widths = [max(_cells(cell) for cell in column) for column in zip(*rows, strict=True)]
    shown = [each for each in range(len(_HEAD)) if with_namespace or each != 0]
    if is_bounded():
        shown = _fitted(shown, widths, width())
    room = width() - sum(widths[each] + _GAP for each in shown) if is_bounded() else None
    lines: list[Line] = [[(_joined(_HEAD, widths, shown), "bold")]]
    for row, each in zip(rows[1:], jobs, strict=True):
        at = shown.index(_VERDICT)
        before, after = shown[:at], shown[at + 1 : -1]
        lines.append(
            [
                (_joined(row, widths, before) + " " * _GAP, ""),
                (_cut(row[_VERDICT], widths[_VERDICT]), verdict_style(each.cause)),
                (" " * _GAP + "".join(_joined(row, widths, [one]) + "  " for one in after), ""),
                (_cut(row[_CULPRIT], widths[_CULPRIT]), "bold"),
                (_summary(each.summary, room), "dim"),
            ]
        )
    return lines


def _summary(text: str, room: int | None) -> str:
    """`room`: available columns; None: unlimited."""
    text = plain(scrub_text(text))
    if not text or (room is not None and room < _MIN_SUMMARY):
        return ""
    if room is None or _cells(text) <= room:
        return " " * _GAP + text
    from rich.cells import set_cell_size

    return f"{' ' * _GAP}{set_cell_size(text, room - 1)}…"


def _fitted(shown: list[int], widths: list[int], columns: int) -> list[int]:
    """Drop columns and narrow names until the table fits; changes `widths` in place."""

    def excess() -> int:
        return sum(widths[each] + _GAP for each in shown) - _GAP - columns

    widths[_JOB] = min(widths[_JOB], _MAX_NAME)
    for each in _LESSER:
        if excess() <= 0:
            return shown
        shown = [one for one in shown if one != each]
    for each in (_JOB, _VERDICT, _CULPRIT):
        widths[each] = max(min(widths[each], _MIN_NAME), widths[each] - max(0, excess()))
    return shown


def _row(line: FleetLine, now: float) -> tuple[str, ...]:
    running = "?" if line.pods_running is None else str(line.pods_running)
    wanted = "?" if line.pods_wanted is None else str(line.pods_wanted)
    total = "" if line.total_iterations is None else f"/{line.total_iterations}"
    cells = (
        line.namespace or "-",
        line.name,
        line.kind,
        line.mode,
        line.phase or "-",
        "-" if running == wanted == "?" else f"{running}/{wanted}",
        "-" if line.iteration is None else f"{line.iteration}{total}",
        line.cause.replace("_", " "),
        "-" if line.since is None else duration(max(0.0, now - line.since)),
        brief_culprit(line),
    )
    return tuple(plain(scrub_text(cell)) for cell in cells)


def brief_culprit(line: FleetLine) -> str:
    """The parts needed to act, such as `rank 3, node a-17`; opening the job shows the rest."""
    culprit = line.culprit
    if culprit is None:
        return "-"
    pod = None if culprit.node else culprit.pod
    gpu = None if culprit.rank is not None else culprit.gpu_uuid
    brief = replace(culprit, coordinates={}, state=None, place=None, pod=pod, gpu_uuid=gpu)
    return brief.label(" ") or culprit.label(" ") or "-"


def _joined(row: Sequence[str], widths: Sequence[int], shown: Sequence[int]) -> str:
    return (" " * _GAP).join(_cut(row[each], widths[each]) for each in shown)


def _cut(text: str, columns: int) -> str:
    """Pad or cut to exactly `columns`; cuts the middle, because names often differ at the end."""
    from rich.cells import set_cell_size

    if _cells(text) <= columns:
        return set_cell_size(text, columns)
    tail = text[-(columns // 3) :]
    while _cells(tail) > columns // 3:
        tail = tail[1:]
    return set_cell_size(text, columns - 1 - _cells(tail)) + "…" + tail


def _cells(text: str) -> int:
    from rich.cells import cell_len  # not needed for --help

    return cell_len(text)


def verdict_style(cause: str) -> str:
    return ("bold red", "yellow", "green")[_calm(cause)]


def _calm(cause: str) -> int:
    return 2 if cause in _GOOD else 1 if cause in _DOUBT else 0


def is_problem(line: FleetLine) -> bool:
    return _calm(line.cause) < 2


ORDERS: dict[str, Callable[[FleetLine], Any]] = {
    "worst first": lambda each: (_calm(each.cause), -(each.since or 0.0)),
    "name": lambda each: (),
    "newest problem": lambda each: -(each.since or 0.0),
    "progress": lambda each: -(each.iteration or 0) / (each.total_iterations or float("inf")),
    "verdict": lambda each: each.cause,
}
"""Sort keys of the jobs, by title; equal jobs are sorted by name."""


def arranged(
    jobs: Sequence[FleetLine], order: str, *, is_reversed: bool = False, wanted: str = ""
) -> list[FleetLine]:
    """The jobs that contain every word of `wanted`, sorted by the key named `order`."""
    words = wanted.lower().split()
    chosen = [each for each in jobs if all(word in _searched(each) for word in words)]
    chosen.sort(key=lambda each: (ORDERS[order](each), each.namespace, each.name))
    return chosen[::-1] if is_reversed else chosen


def _searched(line: FleetLine) -> str:
    whole = "" if line.culprit is None else line.culprit.label(" ") or ""
    return " ".join((*_row(line, 0.0)[:-2], whole, line.summary)).lower()
