# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What one panel shows, as numbers: its queries, asked of Prometheus."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from monitoring.panel_queries import TIMES, PanelQuery
from monitoring.watched_run import Watched

_LABEL = re.compile(r"\{\{(\w+)\}\}")


class Series(NamedTuple):
    name: str
    times: list[float]
    """Seconds since the beginning."""
    values: list[float]


def series_of(watched: Watched, panel: dict[str, Any], run: str) -> list[Series]:
    """Of all queries of a panel, each series with its name in the legend."""
    found = []
    for target in panel["targets"]:
        query = PanelQuery("", panel["title"], "", target["expr"], target["instant"])
        legend = target.get("legendFormat", "")
        for each in watched.ask(query, run):
            found.append(_series(watched, each, legend))
    return found


def moments_of(watched: Watched, annotation: dict[str, Any], run: str) -> list[float]:
    """When each mark of this kind begins."""
    expr = PanelQuery("", "", "", annotation["expr"], False)
    moments: list[float] = []
    for each in watched.ask(expr, run):
        times = [float(at) - watched.began for at, _ in each["values"]]
        moments += [
            at for before, at in zip([None, *times], times, strict=False)
            if before is None or at - before > 1.5
        ]  # fmt: skip
    return moments


def columns_of(watched: Watched, panel: dict[str, Any], run: str) -> list[list[str]]:
    """The lines of a table, its heading first; numbers as text."""
    renamed = panel["transformations"][1]["options"]["renameByName"]
    # A table of labels has no column of values.
    names = [renamed.get(f"Value #{target['refId']}", "") for target in panel["targets"]]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    labels: tuple[str, ...] = ()
    for name, target in zip(names, panel["targets"], strict=True):
        expr = PanelQuery("", "", "", target["expr"], True).filled(
            run=run, namespace=".*", pod=".*", **TIMES
        )
        for each in watched.values(expr, is_instant=True):
            labels = tuple(sorted({*labels, *each["metric"]}))
            key = tuple(f"{name}={value}" for name, value in sorted(each["metric"].items()))
            lines.setdefault(key, {})[name] = each["value"][1]
    names = [name for name in names if name]
    heading = [*labels, *names]
    shown = [heading]
    for key, values in sorted(lines.items()):
        known = dict(each.split("=", 1) for each in key)
        shown.append(
            [known.get(label, "") for label in labels] + [values.get(n, "") for n in names]
        )
    return shown


def _series(watched: Watched, found: dict[str, Any], legend: str) -> Series:
    labels = found["metric"]
    if legend in ("", "__auto"):
        name = " ".join(labels.values())
    else:
        name = " ".join(_LABEL.sub(lambda label: labels.get(label[1], ""), legend).split())
    points = found.get("values") or [found["value"]]
    times = [float(at) - watched.began for at, _ in points]
    return Series(name, times, [float(value) for _, value in points])
