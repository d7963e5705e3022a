# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Snapshots as a scrape: Prometheus text or OpenMetrics, whichever the scraper asks for.

Every scrape is built anew from the newest snapshot of each run, so a label that vanished is gone.
The ledger sometimes moves time from one kind to another; a counter that went back would look like
a restart of mwatch, so each is held at its highest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from mwatch.export import catalog
from mwatch.export.measure import measure
from mwatch.export.metric import Metric as Described
from mwatch.export.value import Value
from mwatch.model.snapshot import Snapshot
from mwatch_trainer.scrub import Scrubber

_TOTAL = "_total"
_MAX_NAMES = 8192
_HELD = frozenset({catalog.BADPUT.name})
"""The other counters begin anew with an attempt or a driver, as counters may."""

Snapshots = Callable[[], Iterable[Snapshot]]


class Scrape(NamedTuple):
    content_type: str
    body: bytes


class Exporter(Collector):
    """`snapshots` gives the newest of each run; it is called from the threads of the server."""

    def __init__(self, snapshots: Snapshots, patterns: Sequence[str] = ()) -> None:
        """`patterns` are the user's own secrets: names of losses and runs are not ours."""
        self._snapshots = snapshots
        self._clean = lru_cache(_MAX_NAMES)(lambda name: Scrubber(patterns).text(name))
        self._highest: dict[tuple[str, str, tuple[str, ...]], float] = {}
        self._lock = threading.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def scrape(self, accept: str = "") -> Scrape:
        """`accept`: the header of that name."""
        encode, content_type = choose_encoder(accept)
        return Scrape(content_type, encode(self._registry))

    def collect(self) -> Iterable[Metric]:
        families = {metric.name: _family(metric) for metric in catalog.ALL}
        for snapshot in self._snapshots():
            for value in measure(snapshot):
                amount = self._held(snapshot.run, value)
                labels = [self._clean(label) for label in (snapshot.run, *value.labels)]
                families[value.metric.name].add_metric(labels, amount)
        return [family for family in families.values() if family.samples]

    def _held(self, run: str, value: Value) -> float:
        if value.metric.name not in _HELD:
            return float(value.value)
        key = (run, value.metric.name, value.labels)
        with self._lock:
            self._highest[key] = max(value.value, self._highest.get(key, 0.0))
            return self._highest[key]


def _family(metric: Described) -> GaugeMetricFamily | CounterMetricFamily:
    labels = ["run", *metric.labels]
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name.removesuffix(_TOTAL), metric.help, labels=labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=labels)
