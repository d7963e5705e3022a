# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A fleet of jobs as a table: one line each, the cause in colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mwatch.cli.formats import duration
from mwatch.cli.terminal import PIPED_WIDTH, Line

if TYPE_CHECKING:
    from mwatch.diagnose.fleet_status import Fleet, FleetLine

_HEAD = ("NAMESPACE", "JOB", "KIND", "MODE", "PHASE", "PODS", "ITERATION", "VERDICT", "SINCE")
_GOOD = ("healthy", "finished")
_DOUBT = ("unknown", "blind", "suspended", "slow", "checkpoint_overdue")
_MAX_NAME = 40
_VERDICT = _HEAD.index("VERDICT")
_LESSER = tuple(map(_HEAD.index, ("KIND", "MODE", "PHASE", "PODS", "ITERATION")))
"""Columns that a narrow terminal drops, in this order, to keep the verdict visible."""


def render(fleet: Fleet, *, with_namespace: bool, columns: int = PIPED_WIDTH) -> list[Line]:
    problems: list[Line] = [[(f"not read: {each}", "yellow")] for each in fleet.problems]
    if not fleet.lines:
        return [[("no watched job; mwatch inject adds the label mwatch.dev/watch", "")], *problems]
    rows = [_HEAD, *(_row(each, fleet.at) for each in fleet.lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = _shown(widths, columns, with_namespace=with_namespace)
    lines: list[Line] = [[(_joined(_HEAD, widths, [*shown, _VERDICT, _VERDICT + 1]), "bold")]]
    for row, each in zip(rows[1:], fleet.lines, strict=True):
        cause = row[_VERDICT].ljust(widths[_VERDICT])
        text = f"  {row[-1].ljust(widths[-1])}  {each.summary}".rstrip()
        before = _joined(row, widths, shown)
        lines.append([(f"{before}  ", ""), (cause, _style(each.cause)), (text, "dim")])
    return [*lines, *problems]


def _shown(widths: list[int], columns: int, *, with_namespace: bool) -> list[int]:
    """The columns before the verdict."""
    shown = list(range(0 if with_namespace else 1, _VERDICT))
    for each in _LESSER:
        if sum(widths[one] + 2 for one in (*shown, _VERDICT)) <= columns:
            break
        shown.remove(each)
    return shown


def _joined(row: tuple[str, ...], widths: list[int], shown: list[int]) -> str:
    return "  ".join(row[each].ljust(widths[each]) for each in shown)


def _row(line: FleetLine, now: float) -> tuple[str, ...]:
    running = "?" if line.pods_running is None else str(line.pods_running)
    wanted = "?" if line.pods_wanted is None else str(line.pods_wanted)
    total = "" if line.total_iterations is None else f"/{line.total_iterations}"
    return (
        line.namespace[:_MAX_NAME],
        line.name[:_MAX_NAME],
        line.kind,
        line.mode,
        line.phase or "-",
        f"{running}/{wanted}",
        "-" if line.iteration is None else f"{line.iteration}{total}",
        line.cause.replace("_", " "),
        "-" if line.since is None else duration(max(0.0, now - line.since)),
    )


def _style(cause: str) -> str:
    if cause in _GOOD:
        return "green"
    return "yellow" if cause in _DOUBT else "bold red"
