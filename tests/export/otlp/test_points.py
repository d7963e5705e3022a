# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What is sent over OTLP: names, units, times, and since when a counter counts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from msgspec import structs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from mwatch.export.metrics.catalog import ALL, Metric
from mwatch.export.otlp.send import Points, otlp_name
from mwatch.model.goodput import Spent
from mwatch.model.snapshot.snapshot import Numbers, OwnUsage, Snapshot
from support.builders.snapshot import busy_snapshot
from support.fakes.otlp_receiver import Point, Received, decoded

UPSTREAM = {
    "step_duration_ms", "loss", "throughput_tflops", "grad_norm", "skipped_iters", "learning_rate",
    "tokens_per_sec",
}  # fmt: skip
"""Of the eight that Megatron has (memory_allocated_gb is torch's own count)."""
UCUM = re.compile(r"|s|ms|By|W|Cel|Hz|1|\{\w+\}(/s)?")
IN_PROMETHEUS = {
    "s": "_seconds", "By": "_bytes", "W": "_watts", "Cel": "_celsius", "Hz": "_hertz",
    "1": "_ratio",
}  # fmt: skip


def sent(points: Points, snapshot: Snapshot) -> Received:
    return decoded("/", {}, encode_metrics(points.data(snapshot)).SerializeToString())


def points() -> Points:
    return Points({})


def one(received: Received, metric: str, *labels: str) -> Point:
    (found,) = (
        each
        for each in received.points
        if each.metric == metric and set(labels) <= set(each.attributes.values())
    )
    return found


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_metric_has_a_name_and_a_unit(metric: Metric) -> None:
    named = otlp_name(metric)
    assert re.fullmatch(r"(mwatch|megatron)\.[a-z][a-z0-9_.]*[a-z0-9]", named.name)
    assert UCUM.fullmatch(named.unit), named.unit


def test_no_name_is_used_twice_and_none_is_the_beginning_of_another() -> None:
    names = [otlp_name(metric).name for metric in ALL]
    assert len(names) == len(set(names))
    assert not [(a, b) for a in names for b in names if b.startswith(a + ".")]


def test_what_megatron_has_a_name_for_is_called_so() -> None:
    names = {otlp_name(metric).name for metric in ALL}
    theirs = {name for name in names if name.startswith("megatron.")}
    assert theirs == {f"megatron.training.{name}" for name in UPSTREAM}


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_collector_that_speaks_prometheus_arrives_at_the_name_of_our_own_scrape(
    metric: Metric,
) -> None:
    named = otlp_name(metric)
    if named.name.startswith("megatron."):
        return
    flat, unit = named.name.replace(".", "_"), IN_PROMETHEUS.get(named.unit, "")
    total = "_total" if metric.kind == "counter" else ""
    assert flat.removesuffix(unit) + unit + total == metric.name


def test_every_metric_of_the_catalogue_arrives() -> None:
    names = {each.metric for each in sent(points(), busy_snapshot()).points}
    assert names == {otlp_name(metric).name for metric in ALL}


def test_labels_are_attributes_and_every_point_has_the_moment_of_the_snapshot() -> None:
    snapshot = busy_snapshot()
    got = sent(points(), snapshot)
    (at,) = {each.at for each in got.points}
    assert at == pytest.approx(snapshot.at, abs=1e-5)
    power = one(got, "mwatch.gpu.power", "GPU-0")
    assert power.attributes == {"run": "run", "rank": "3", "gpu": "0", "UUID": "GPU-0"}
    assert (power.kind, power.unit, power.value) == ("gauge", "W", 612.5)
    step = one(got, "megatron.training.step_duration_ms")
    assert (step.unit, step.value) == ("ms", 1000 * (snapshot.numbers.step_seconds or 0))


def test_a_gauge_has_no_beginning() -> None:
    got = sent(points(), busy_snapshot())
    assert {each.since for each in got.points if each.kind == "gauge"} == {0.0}


def test_a_counter_of_an_attempt_counts_since_its_start() -> None:
    first = busy_snapshot()
    out = points()
    skipped = one(sent(out, first), "megatron.training.skipped_iters")
    assert (skipped.kind, skipped.value) == ("sum", 3)
    assert skipped.since == pytest.approx(first.attempt_started_at)
    again = replace(first, at=first.at + 60, attempt=2, skipped=0, attempt_started_at=first.at + 9)
    skipped = one(sent(out, again), "megatron.training.skipped_iters")
    assert skipped.value == 0
    assert skipped.since == pytest.approx(first.at + 9)


def test_a_counter_of_this_watcher_counts_since_it_was_started() -> None:
    snapshot = replace(busy_snapshot(), own=OwnUsage(77.0, 1.0, None, log_lines=5))
    got = sent(points(), snapshot)
    assert one(got, "mwatch.log_lines").since == 77.0
    assert one(got, "mwatch.incidents", "hang", "restart").since == 77.0


def test_a_counter_of_unknown_age_counts_since_it_was_seen_and_anew_when_it_falls() -> None:
    first = busy_snapshot()
    gpu, out = first.gpus[0], points()

    def replays(at: float, count: int) -> Point:
        seen = replace(first, at=at, gpus=(structs.replace(gpu, pcie_replays=count),))
        return one(sent(out, seen), "mwatch.gpu.pcie_replays")

    assert replays(1000.0, 6).since == 1000.0
    assert replays(1010.0, 8).since == 1000.0
    fallen = replays(1020.0, 1)
    assert (fallen.since, fallen.value) == (1020.0, 1)
    assert replays(1030.0, 2).since == 1020.0


def test_the_same_snapshot_twice_is_the_same_request() -> None:
    out, snapshot = points(), busy_snapshot()
    assert sent(out, snapshot) == sent(out, snapshot)


def test_time_that_the_ledger_moves_does_not_take_a_counter_back() -> None:
    first, out = busy_snapshot(), points()
    before = one(sent(out, first), "mwatch.badput", "saving")
    moved = replace(first, at=first.at + 1, spent_seconds={Spent.SAVING: 5.0})
    after = one(sent(out, moved), "mwatch.badput", "saving")
    assert (after.value, after.since) == (before.value, before.since)


def test_runs_that_are_gone_are_forgotten() -> None:
    out, first = points(), busy_snapshot()
    sent(out, first)
    out.keep({"other"})
    later = one(sent(out, replace(first, at=first.at + 60)), "mwatch.gpu.pcie_replays", "GPU-0")
    assert later.since == pytest.approx(first.at + 60)


def test_a_name_that_is_no_text_does_not_stop_the_others() -> None:
    odd = replace(busy_snapshot(), numbers=Numbers(losses={"bad \udcff loss": 1.0}))
    assert sent(points(), odd).values("megatron.training.loss") == {"bad ? loss": 1.0}


def test_a_number_that_is_none_arrives_as_such() -> None:
    odd = replace(busy_snapshot(), numbers=Numbers(grad_norm=float("inf")))
    assert one(sent(points(), odd), "megatron.training.grad_norm").value == float("inf")
