# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Data model of a dashboard: rows, panels, queries and thresholds.

Each panel has a description, a unit and the alerts that it belongs to; the links to the runbooks
follow from the alerts. `dashboards.grafana` turns the model into Grafana's JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["lines", "bars", "stacked", "band", "heat", "number", "totals", "table"]
"""band: states over time. heat: one row per rank, one column per point in time.
totals: one bar per series, with its current value."""


class Query(NamedTuple):
    expr: str
    legend: str = ""
    """Empty: the labels of the series. In a table: the column name."""
    unit: str | None = None
    """Unit of this column or line, if it differs from the panel's."""


class Step(NamedTuple):
    """A colour for values from `value` up; None is the lowest band."""

    value: float | None
    color: str


class State(NamedTuple):
    """Text and colour shown instead of a number."""

    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    kind: Kind
    queries: tuple[Query, ...]
    unit: str
    """Grafana's name for the unit."""
    description: str
    alerts: tuple[str, ...] = ()
    """Alerts that link to this panel's topic; the panel links to their runbooks."""
    steps: tuple[Step, ...] = ()
    """Healthy and unhealthy ranges, shown as background colours."""
    states: Mapping[int, State] = field(default_factory=dict)
    """Texts shown instead of numbers."""
    width: int = 8
    """In columns; a row has 24."""
    height: int = 7
    low: float | None = None
    high: float | None = None
    is_logarithmic: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    """Of a table of labels without values: the column name of each label, in order."""
    when_empty: str | None = None
    """Text shown without data, if no data is the normal case."""


class Row(NamedTuple):
    title: str
    panels: tuple[Panel, ...]
    """Their widths fill rows of 24 columns."""
    is_collapsed: bool = False
    """Its queries run only when somebody opens it: for details that are slow to draw."""


class Annotation(NamedTuple):
    name: str
    expr: str
    title: str
    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Board:
    name: str
    """Name of the JSON file."""
    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    many_runs: bool
    """Whether several runs can be selected."""
    has_pods: bool = False
    """Whether single pods can be selected."""
    annotations: tuple[Annotation, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)
