# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a metric is called over OTLP, and in which unit.

Where Megatron itself sends a metric (`megatron.training.*`, 2026-08), the same quantity has its
name and its unit. Two things differ and are to be known: its step duration is a histogram of every
step and ours is the newest printed value; and `megatron.training.loss` has here the name of the
loss as an attribute, for there may be several. Its memory_allocated_gb is what torch has allocated,
which nobody outside of the process can see, so it is not sent.

All others are `mwatch.*`, without the unit in the name, so that a collector that turns them into
Prometheus' names arrives at those of our own scrape.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import NamedTuple

from mwatch.export.metrics import catalog
from mwatch.export.metrics.metric import Metric


class OtlpName(NamedTuple):
    name: str
    unit: str
    """UCUM; empty: a number without a unit."""
    factor: float = 1.0
    """From our unit to that one."""


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
_COUNTED = {
    "iterations": "{iteration}",
    "ranks": "{rank}",
    "samples": "{sample}",
    "incidents": "{incident}",
    "restarts": "{restart}",
    "errors": "{error}",
    "rows": "{row}",
    "packets": "{packet}",
    "threads": "{thread}",
    "communicators": "{communicator}",
    "operations": "{operation}",
    "lines": "{line}",
    "items": "{item}",
}
_WITH_UNIT = frozenset({catalog.GPU_THROTTLED_SECONDS.name, catalog.RANK_SECONDS.name})
"""Without it, the name would be that of another or of a group."""
_GROUPS = ("gpu_", "nccl_", "fabric_", "rank_")


@cache
def otlp_name(metric: Metric) -> OtlpName:
    known = _UPSTREAM.get(metric.name)
    if known is not None:
        return known
    stem = metric.name.removeprefix("mwatch_").removesuffix("_total")
    unit = _COUNTED.get(metric.unit, "")
    for suffix, its_unit in _SUFFIXES.items():
        if stem.endswith(suffix):
            unit = its_unit
            stem = stem if metric.name in _WITH_UNIT else stem.removesuffix(suffix)
            break
    for group in _GROUPS:
        if stem.startswith(group):
            stem = f"{group[:-1]}.{stem.removeprefix(group)}"
    return OtlpName(f"mwatch.{stem}", unit)


class SendOutcome(Enum):
    """What became of one request; apart from what sends it, which is dear to import."""

    TAKEN = "taken"
    LATER = "later"
    """It may be taken another time."""
    REFUSED = "refused"
    """The same bytes will never be taken."""
