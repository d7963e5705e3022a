# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Renders snapshots for a scrape, in Prometheus text format or OpenMetrics as requested.

Every scrape is built from the newest snapshot of each run, so that series which no longer exist
disappear. The text is rendered here because prometheus_client takes four times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from mwatch.export.metrics import catalog
from mwatch.export.metrics.catalog import Metric, Value
from mwatch.export.metrics.measure import clean_name, counter_value, measure
from mwatch.model.snapshot.snapshot import Snapshot
from mwatch.stats import MonotonicCounters

_OPEN = "application/openmetrics-text"
_TOTAL = "_total"
_MAX_SERIES = 65_536

_number: Callable[[float], str] = floatToGoString

Snapshots = Callable[[], Iterable[Snapshot]]


class Scrape(NamedTuple):
    content_type: str
    body: bytes


class Exporter:
    """Renders scrapes. `snapshots` returns each run's newest; server threads call it."""

    def __init__(
        self,
        snapshots: Snapshots,
        *,
        besides: Mapping[str, str] | None = None,
        own: Callable[[], Iterable[Value]] | None = None,
    ) -> None:
        """`besides`: labels added to all series of runs. `own`: values that belong to no run."""
        self._snapshots = snapshots
        self._besides = dict(besides or {})
        self._own = own
        self._held = MonotonicCounters()
        self._labels = lru_cache(_MAX_SERIES)(self._written_labels)

    def scrape(self, accept: str = "") -> Scrape:
        _, content_type = choose_encoder(accept)
        is_open = content_type.startswith(_OPEN)
        found = self._series()
        parts: list[str] = []
        for metric in (*catalog.ALL, *catalog.CONTROLLER):
            series = found.get(metric.name)
            if series:
                parts.append(_head(metric, is_open))
                parts += [f"{metric.name}{key} {value}\n" for key, value in series.items()]
        if is_open:
            parts.append("# EOF\n")
        return Scrape(content_type, "".join(parts).encode())

    def _series(self) -> dict[str, dict[str, str]]:
        """Return values by metric and labels. Two names may be equal after scrubbing: the first
        stays, as a duplicate series invalidates the whole scrape."""
        found: dict[str, dict[str, str]] = {}
        runs = set()
        for snapshot in self._snapshots():
            run = snapshot.run
            runs.add(run)
            for value in measure(snapshot):
                key = self._labels(value.metric.labels, run, value.labels)
                amount = _number(counter_value(self._held, run, value))
                found.setdefault(value.metric.name, {}).setdefault(key, amount)
        self._held.keep(runs)
        for value in () if self._own is None else self._own():
            pairs = zip(value.metric.labels, value.labels, strict=True)
            key = self._written(pairs) if value.labels else ""
            found.setdefault(value.metric.name, {}).setdefault(key, _number(value.value))
        return found

    def _written_labels(self, names: tuple[str, ...], run: str, values: tuple[str, ...]) -> str:
        pairs = zip(("run", *names), (run, *values), strict=True)
        return self._written((*pairs, *self._besides.items()))

    def _written(self, pairs: Iterable[tuple[str, str]]) -> str:
        inner = ",".join(f'{name}="{_escaped(clean_name(value))}"' for name, value in sorted(pairs))
        return f"{{{inner}}}"


@lru_cache(2 * len(catalog.ALL + catalog.CONTROLLER))
def _head(metric: Metric, is_open: bool) -> str:
    """Return HELP and TYPE. OpenMetrics omits the `_total` of the samples from the name."""
    name = metric.name.removesuffix(_TOTAL) if is_open else metric.name
    help = _escaped(metric.help) if is_open else metric.help.replace("\\", r"\\")
    return f"# HELP {name} {help}\n# TYPE {name} {metric.kind}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
