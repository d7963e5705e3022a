# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A fleet of jobs as a table: one line each, the cause in colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mwatch.cli.terminal import Line
from mwatch.cli.words import duration

if TYPE_CHECKING:
    from mwatch.app.fleet_line import FleetLine
    from mwatch.app.fleet_status import Fleet

_HEAD = ("NAMESPACE", "JOB", "KIND", "MODE", "PHASE", "PODS", "ITERATION", "VERDICT", "SINCE")
_GOOD = ("healthy", "finished")
_DOUBT = ("unknown", "blind", "suspended", "slow", "checkpoint_overdue")
_MAX_NAME = 40


def render(fleet: Fleet, *, with_namespace: bool) -> list[Line]:
    problems: list[Line] = [[(f"not seen: {each}", "yellow")] for each in fleet.problems]
    if not fleet.lines:
        return [[("no watched job; mwatch inject adds the label mwatch.dev/watch", "")], *problems]
    rows = [_HEAD, *(_row(each, fleet.at) for each in fleet.lines)]
    first = 0 if with_namespace else 1
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[Line] = [[(_joined(_HEAD, widths, first), "bold")]]
    for row, each in zip(rows[1:], fleet.lines, strict=True):
        before = _joined(row[:7], widths, first)
        cause = row[7].ljust(widths[7])
        text = f"  {row[8].ljust(widths[8])}  {each.summary}".rstrip()
        lines.append([(f"{before}  ", ""), (cause, _style(each.cause)), (text, "dim")])
    return [*lines, *problems]


def _joined(row: tuple[str, ...], widths: list[int], first: int) -> str:
    cells = zip(row[first:], widths[first:], strict=False)
    return "  ".join(text.ljust(width) for text, width in cells)


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
