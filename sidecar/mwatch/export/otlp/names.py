# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Names and units of the metrics over OTLP.

Where Megatron itself sends a metric (`megatron.training.*`, 2026-08), the same quantity has its
name and unit. Two things differ: Megatron's step duration is a histogram of every step, here it is
the newest printed value; and `megatron.training.loss` has the name of the loss as an attribute. All
others are `mwatch.*`, without the unit in the name, so that a collector that converts them to
Prometheus names arrives at those of our own scrape.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from mwatch.export.metrics import catalog
from mwatch.export.metrics.catalog import Metric


class OtlpName(NamedTuple):
    name: str
    unit: str
    """In UCUM; empty if there is none."""
    factor: float = 1.0
    """From the unit of the catalog to this one."""


_UPSTREAM: dict[str, OtlpName] = {
    catalog.LOSS.name: OtlpName("megatron.training.loss", "{nat}"),
    catalog.GRAD_NORM.name: OtlpName("megatron.training.grad_norm", ""),
    catalog.LEARNING_RATE.name: OtlpName("megatron.training.learning_rate", ""),
    catalog.STEP_SECONDS.name: OtlpName("megatron.training.step_duration_ms", "ms", 1000.0),
    catalog.THROUGHPUT.name: OtlpName("megatron.training.throughput_tflops", "{TFLOP}/s"),
    catalog.TOKENS.name: OtlpName("megatron.training.tokens_per_sec", "{token}/s"),
    catalog.SKIPPED.name: OtlpName("megatron.training.skipped_iters", "{iteration}"),
}

_SUFFIXES = {
    "_seconds": "s",
    "_bytes": "By",
    "_watts": "W",
    "_celsius": "Cel",
    "_hertz": "Hz",
    "_ratio": "1",
}
_COUNTED = frozenset(
    {
        "iterations", "ranks", "samples", "incidents", "restarts", "errors", "rows", "packets",
        "threads", "communicators", "operations", "lines", "items",
    }
)  # fmt: skip
_WITH_UNIT = frozenset({catalog.GPU_THROTTLED_SECONDS.name, catalog.RANK_SECONDS.name})
"""Without the unit, the name would collide with another metric or a group."""
_GROUPS = ("gpu_", "nccl_", "fabric_", "rank_")


@cache
def otlp_name(metric: Metric) -> OtlpName:
    known = _UPSTREAM.get(metric.name)
    if known is not None:
        return known
    stem = metric.name.removeprefix("mwatch_").removesuffix("_total")
    unit = f"{{{metric.unit[:-1]}}}" if metric.unit in _COUNTED else ""
    for suffix, its_unit in _SUFFIXES.items():
        if stem.endswith(suffix):
            unit = its_unit
            stem = stem if metric.name in _WITH_UNIT else stem.removesuffix(suffix)
            break
    for group in _GROUPS:
        if stem.startswith(group):
            stem = f"{group[:-1]}.{stem.removeprefix(group)}"
    return OtlpName(f"mwatch.{stem}", unit)
