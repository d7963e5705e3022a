# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a metric is: its name, kind, unit, labels, and what it says.

One value of one metric: what every way out is given.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter"]
LABELS = frozenset(
    {
        "run", "rank", "gpu", "UUID", "device", "loss", "phase", "finding", "severity", "cause",
        "action", "reason", "kind", "source", "state", "resource",
    }
)  # fmt: skip
"""All that may ever be a label; a controller adds `run_namespace` and `run_pod`."""


class Metric(NamedTuple):
    name: str
    kind: Kind
    unit: str
    """Of the value, for people; the name carries it where Prometheus wants it to."""
    labels: tuple[str, ...]
    """After `run`, which all have."""
    help: str


def gauge(name: str, unit: str, help: str, *labels: str) -> Metric:
    return Metric(f"mwatch_{name}", "gauge", unit, labels, help)


def counter(name: str, unit: str, help: str, *labels: str) -> Metric:
    return Metric(f"mwatch_{name}_total", "counter", unit, labels, help)


class Value(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    """In the order of the metric's labels; `run` is not among them."""
    value: float
