# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of metrics keeps the rules of its format, and the page is made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mwatch.export.metrics import documentation
from mwatch.export.metrics.catalog import ALL, Metric
from mwatch.export.otlp.send import otlp_name
from support.repository.metric_labels import LABELS

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
PROMISED = (
    "iteration", "loss", "loss_scale", "grad_norm", "step_seconds", "throughput_tflops",
    "tokens_per_second", "skipped_iterations_total", "nan_iterations_total", "phase",
    "last_progress_timestamp_seconds", "hang_deadline_seconds", "finding", "incidents_total",
    "restart_budget_remaining", "checkpoint_iteration", "checkpoint_timestamp_seconds",
    "goodput_ratio", "badput_seconds_total", "source_up", "blind",
)  # fmt: skip


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_a_metric_is_well_named(metric: Metric) -> None:
    assert re.fullmatch(r"mwatch_[a-z][a-z0-9_]*", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not metric.name.endswith(("_ms", "_age_seconds", "_percent", "_minutes"))
    assert set(metric.labels) <= LABELS
    assert metric.help.endswith(".")
    assert metric.unit
    assert "|" not in metric.help


def test_no_name_is_used_twice() -> None:
    names = [metric.name for metric in ALL]
    assert len(names) == len(set(names))


def test_what_was_promised_is_there() -> None:
    assert {f"mwatch_{name}" for name in PROMISED} <= {metric.name for metric in ALL}


def test_the_page_is_up_to_date() -> None:
    """Fix: python -m mwatch.export.metrics.documentation > docs/metrics.md"""
    assert PAGE.read_text("utf-8") == documentation.page()


def test_the_page_has_the_names_of_otlp() -> None:
    page = documentation.page()
    assert "| `mwatch_step_seconds` |" in page
    assert "| `megatron.training.step_duration_ms` (ms) |" in page
    assert all(f"`{otlp_name(metric).name}`" in page for metric in ALL)
