# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a dashboard is made of, before it becomes Grafana's JSON.

A panel says what it shows in words (its description), in which unit, and which alerts it belongs
to: from those come the links to the runbooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["lines", "bars", "stacked", "band", "heat", "number", "totals", "table"]
"""band: states over time. heat: a row for each rank, a column for each moment.
totals: a bar for each series, of its value now."""


class Query(NamedTuple):
    expr: str
    legend: str = ""
    """Empty: the labels themselves. In a table: the name of the column."""
    unit: str | None = None
    """Of this column or line, where it differs from the panel's."""


class Step(NamedTuple):
    """A colour from this value on; None: from below everything."""

    value: float | None
    color: str


class State(NamedTuple):
    """What a number stands for."""

    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    kind: Kind
    queries: tuple[Query, ...]
    unit: str
    """Grafana's name of the unit."""
    description: str
    alerts: tuple[str, ...] = ()
    """Whoever is paged by one of these looks here."""
    steps: tuple[Step, ...] = ()
    """Bands of health: the ground is coloured by them."""
    states: Mapping[int, State] = field(default_factory=dict)
    """In place of numbers: 3 is shown as what it stands for."""
    width: int = 8
    """Of 24."""
    height: int = 7
    low: float | None = None
    high: float | None = None
    is_logarithmic: bool = False
    when_empty: str | None = None
    """Shown where there is no data, when that is what is usual."""


class Row(NamedTuple):
    title: str
    panels: tuple[Panel, ...]
    """Their widths fill lines of 24."""


class Annotation(NamedTuple):
    name: str
    expr: str
    title: str
    text: str
    color: str


@dataclass(frozen=True, slots=True)
class Board:
    name: str
    """Of the file."""
    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    many_runs: bool
    """Whether several runs can be looked at together."""
    has_pods: bool = False
    """Whether single pods can be picked."""
    annotations: tuple[Annotation, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)
