# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A snapshot as the metrics of OpenTelemetry's SDK.

Everything has the moment of the snapshot. What is not in a snapshot is not sent, so a value that is
gone ends there. A counter also says since when it counts: the attempt or this watcher, where it
counts from those, else the moment it was first seen (which OTLP reads as "not known before").
Imports the SDK: only whoever sends may import this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from mwatch import __version__
from mwatch.export.metrics import catalog
from mwatch.export.metrics.measure import measure
from mwatch.export.metrics.metric import Metric as Described
from mwatch.export.metrics.outgoing import MonotonicCounters
from mwatch.export.otlp.names import otlp_name
from mwatch.model.snapshot.snapshot import Snapshot

_SCOPE = InstrumentationScope("mwatch", __version__)
_OF_ATTEMPT = frozenset(
    each.name
    for each in (
        catalog.SKIPPED, catalog.NAN, catalog.RANK_CPU, catalog.RANK_SECONDS,
    )
)  # fmt: skip
_OF_WATCHER = frozenset(
    each.name for each in (*catalog.OWN, catalog.INCIDENTS) if each.kind == "counter"
)

_Series = tuple[str, tuple[str, ...]]


class _Start(NamedTuple):
    """Of one counter: since when it counts, by whom that is known, and where it stood last."""

    at: float
    hint: float | None
    amount: float


class Points:
    def __init__(self, attributes: Mapping[str, str], clean: Callable[[str], str]) -> None:
        """`attributes` are of the resource, above those of OTEL_RESOURCE_ATTRIBUTES."""
        # It would print a resource attribute that it cannot read, whatever is in it.
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        own = {"service.name": "mwatch", "service.version": __version__}
        told = Resource(own).merge(OTELResourceDetector().detect()).merge(Resource(attributes))
        self._clean = clean
        self._about = {key: clean(str(value)) for key, value in told.attributes.items()}
        self._held = MonotonicCounters()
        self._starts: dict[str, dict[_Series, _Start]] = {}

    def data(self, snapshot: Snapshot) -> MetricsData:
        run = self._clean(snapshot.run)
        families: dict[Described, list[NumberDataPoint]] = {}
        before, now = self._starts.get(snapshot.run, {}), {}
        for value in measure(snapshot):
            amount, begun = self._held.amount(snapshot.run, value), None
            if value.metric.kind == "counter":
                series = (value.metric.name, value.labels)
                begun = now[series] = _begun(snapshot, value.metric, amount, before.get(series))
            labels = zip(value.metric.labels, map(self._clean, value.labels), strict=True)
            point = NumberDataPoint(
                attributes={"run": run, **dict(labels)},
                start_time_unix_nano=0 if begun is None else _nanoseconds(begun.at),
                time_unix_nano=_nanoseconds(snapshot.at),
                value=amount * otlp_name(value.metric).factor,
            )
            families.setdefault(value.metric, []).append(point)
        self._starts[snapshot.run] = now
        about = Resource({**self._about, "mwatch.run": run})
        found = [_metric(metric, points) for metric, points in families.items()]
        return MetricsData([ResourceMetrics(about, [ScopeMetrics(_SCOPE, found, "")], "")])

    def keep(self, runs: Iterable[str]) -> None:
        """Forgets all other runs."""
        kept = set(runs)
        self._held.keep(kept)
        self._starts = {run: starts for run, starts in self._starts.items() if run in kept}


def _begun(snapshot: Snapshot, metric: Described, amount: float, before: _Start | None) -> _Start:
    hint = None
    if metric.name in _OF_ATTEMPT:
        hint = snapshot.attempt_started_at
    elif metric.name in _OF_WATCHER and snapshot.own is not None:
        hint = snapshot.own.started_at
    if before is None or before.hint != hint:
        return _Start(snapshot.at if hint is None else min(hint, snapshot.at), hint, amount)
    has_gone_back = amount < before.amount
    return _Start(snapshot.at if has_gone_back else before.at, hint, amount)


def _metric(described: Described, points: list[NumberDataPoint]) -> Metric:
    named = otlp_name(described)
    data: Sum | Gauge = Gauge(points)
    if described.kind == "counter":
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Metric(named.name, described.help, named.unit, data)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e6) * 1000
