# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What was measured at each size, and how it grows from one size to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

_MIB = 1 << 20
_MOST_CPU = 1.0
_LARGE = 2048
_MOST_WITH_PAGES = 1.10
"""For fewer pods the controller does little, and the page is the larger part."""
_LEAST_POLLED = 0.98
"""All pods every 5 s, on one core: what the controller promises."""


@dataclass(frozen=True, slots=True)
class Figures:
    pods: int
    start_seconds: float
    """Until all pods of the job run: the operator's, the scheduler's and kwok's time."""
    seen_seconds: float | None
    """From the start of the controller until each pod has answered."""
    cpu: float
    """Of one core, at rest."""
    memory_bytes: int
    peak_bytes: int
    """To the last delete."""
    polls_per_second: float
    fleet_cpu: float
    """Of the process that plays the sidecars, on the other core."""
    calls_per_minute: float
    """To the API server, at rest; a watch is one call."""
    verdict_seconds: float | None
    """From the stop to the verdict that names the pod."""
    decided_seconds: float | None
    """From the stop to the decision to restart."""
    first_delete_seconds: float | None
    """From that decision; evidence is fetched in between."""
    last_delete_seconds: float | None
    acting_calls: int
    """From the stop to the last delete."""
    deletes: int
    most_calls: dict[str, int]
    delete_seconds: float | None = None
    """What the API server took for one delete, median: it has one core with all else."""
    page_cpu: float = 0.0
    """Of one core, with the pages of fleet and job open."""
    polled_share: float = 0.0
    """Of the polls that are due."""


Column = tuple[str, Callable[[Figures], float | None], str]
COLUMNS: tuple[Column, ...] = (
    ("CPU of one core at rest", lambda each: 100 * each.cpu, "{:.1f} %"),
    ("CPU, pages of fleet and job open", lambda each: 100 * each.page_cpu, "{:.1f} %"),
    ("CPU per 100 pods", lambda each: 1e4 * each.cpu / each.pods, "{:.2f} %"),
    ("polls answered, of those due", lambda each: 100 * each.polled_share, "{:.0f} %"),
    ("memory at rest", lambda each: each.memory_bytes / _MIB, "{:.0f} MiB"),
    ("memory, most", lambda each: each.peak_bytes / _MIB, "{:.0f} MiB"),
    ("API calls a minute at rest", lambda each: each.calls_per_minute, "{:.0f}"),
    ("start to all pods seen", lambda each: each.seen_seconds, "{:.1f} s"),
    ("stop to verdict", lambda each: each.verdict_seconds, "{:.1f} s"),
    ("stop to decision", lambda each: each.decided_seconds, "{:.1f} s"),
    ("decision to first delete", lambda each: each.first_delete_seconds, "{:.1f} s"),
    ("decision to last delete", lambda each: each.last_delete_seconds, "{:.1f} s"),
    ("API calls, stop to last delete", lambda each: each.acting_calls, "{:.0f}"),
    ("of them deletes", lambda each: each.deletes, "{:.0f}"),
    ("the API server's time for one", lambda each: each.delete_seconds, "{:.2f} s"),
    ("the fleet's own CPU", lambda each: 100 * each.fleet_cpu, "{:.1f} %"),
)


def table(every: Sequence[Figures]) -> str:
    """As Markdown: a line for each figure, a column for each size, and the growth."""
    steps = [f"{one.pods} to {two.pods}" for one, two in pairwise(every)]
    titles = ["", *(f"{each.pods:,} pods" for each in every), *steps]
    lines = [titles, ["---"] * len(titles)]
    for name, value, form in COLUMNS:
        values = [value(each) for each in every]
        shown = ["not seen" if each is None else form.format(each) for each in values]
        grown = [growth(one, two) for one, two in pairwise(values)]
        lines.append([name, *shown, *grown])
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "\n".join(
        "| " + " | ".join(map(str.ljust, line, widths)).rstrip() + " |" for line in lines
    )


def growth(one: float | None, two: float | None) -> str:
    if one is None or two is None or one <= 0:
        return ""
    return f"x {two / one:.1f}"


def missed(figures: Figures) -> Iterator[str]:
    """Targets: what is promised of the controller, and that the whole gang went."""
    if figures.cpu > _MOST_CPU or figures.polled_share < _LEAST_POLLED:
        words = f"{figures.polled_share:.0%} of the polls at {figures.cpu:.0%} of a core"
        yield f"{figures.pods} pods: {words}"
    if figures.pods >= _LARGE and figures.page_cpu > _MOST_WITH_PAGES * figures.cpu:
        yield f"{figures.pods} pods: the pages cost {figures.page_cpu / figures.cpu - 1:.0%} more"
    if figures.verdict_seconds is None:
        yield f"{figures.pods} pods: no verdict"
    if figures.last_delete_seconds is None:
        yield f"{figures.pods} pods: {figures.deletes} deleted"


def as_record(figures: Figures) -> dict[str, Any]:
    return asdict(figures)
