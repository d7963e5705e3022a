# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The text of a scrape is what prometheus_client would write, in both formats, and quick.

The library is the judge: the same values go through its own objects and its own writer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.registry import Collector

from mwatch.export.metrics.catalog import ALL
from mwatch.export.metrics.measure import measure
from mwatch.export.metrics.prometheus import Exporter
from mwatch.model.snapshot.pod import FabricPort
from mwatch.model.snapshot.snapshot import Numbers, RankSnapshot, Snapshot
from support.builders.snapshot import FACTS, GPU, busy_snapshot, empty_snapshot

OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ACCEPTED = {
    "plain": "text/plain;version=0.0.4",
    "nothing asked": "",
    "a browser": "text/html,*/*;q=0.8",
    "open metrics": OPEN_METRICS,
    "prometheus 2.42": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;"
    "version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "prometheus 3": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.2",
}
ODD = replace(
    busy_snapshot(),
    run='a "run"\\',
    numbers=Numbers(
        losses={'a "b"\n\\': float("nan"), "é": 1e-300, "big": 1.5e300},
        grad_norm=float("-inf"),
        learning_rate=123456789.125,
        loss_scale=2.0**40,
    ),
)


class ByTheLibrary(Collector):
    def __init__(self, *snapshots: Snapshot) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for metric in ALL:
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            name = metric.name.removesuffix("_total")
            families[metric.name] = kind(name, metric.help, labels=["run", *metric.labels])
        for snapshot in self._snapshots:
            for value in measure(snapshot):
                labels = [snapshot.run, *value.labels]
                families[value.metric.name].add_metric(labels, float(value.value))
        return [family for family in families.values() if family.samples]


def by_the_library(accept: str, *snapshots: Snapshot) -> tuple[str, bytes]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ByTheLibrary(*snapshots))
    encode, content_type = choose_encoder(accept)
    return content_type, encode(registry)


def big_pod() -> Snapshot:
    """Eight ranks on eight GPUs with eight network cards, all of it known."""
    return replace(
        busy_snapshot(),
        ranks=tuple(RankSnapshot(number, 10, 5.0, FACTS) for number in range(8)),
        gpus=tuple(structs.replace(GPU, number=n, rank=n, uuid=f"GPU-{n:032x}") for n in range(8)),
        fabric=tuple(
            FabricPort(f"mlx5_{n}/1", True, 10**12, 10**11, {f"error_{k}": k for k in range(12)})
            for n in range(8)
        ),
    )


@pytest.mark.parametrize("accept", ACCEPTED.values(), ids=ACCEPTED.keys())
@pytest.mark.parametrize("snapshot", [busy_snapshot(), empty_snapshot(), ODD, big_pod()])
def test_the_text_is_the_one_of_the_library(snapshot: Snapshot, accept: str) -> None:
    both = (snapshot, replace(snapshot, run="other"))
    assert Exporter(lambda: both).scrape(accept) == by_the_library(accept, *both)


@pytest.mark.parametrize("who", ["open metrics", "prometheus 2.42", "prometheus 3"])
def test_open_metrics_is_given_to_who_asks_for_it(who: str) -> None:
    scrape = Exporter(lambda: [ODD, busy_snapshot()]).scrape(ACCEPTED[who])
    assert scrape.content_type.startswith("application/openmetrics-text")
    assert scrape.body.endswith(b"# EOF\n")
    parsed = open_metrics(scrape.body.decode())  # type: ignore[no-untyped-call]
    families = {family.name: family.type for family in parsed}
    assert families == {each.name.removesuffix("_total"): each.kind for each in ALL}


def test_when_a_counter_was_made_is_not_sent() -> None:
    for accept in ("", OPEN_METRICS):
        assert b"_created" not in Exporter(lambda: [busy_snapshot()]).scrape(accept).body


def test_a_scrape_of_a_big_pod_is_quick() -> None:
    """The best of many, for other tests run beside this one; it is about a millisecond."""
    pod = big_pod()
    exporter = Exporter(lambda: [pod])
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        exporter.scrape()
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.020
