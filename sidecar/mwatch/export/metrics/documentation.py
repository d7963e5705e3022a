# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Prints `docs/metrics.md`: `python -m mwatch.export.metrics.documentation`."""

from __future__ import annotations

import sys

from mwatch.export.metrics import catalog
from mwatch.export.metrics.catalog import Metric
from mwatch.export.otlp.names import otlp_name

_HEAD = """\
# Metrics

<!-- Made by `python -m mwatch.export.metrics.documentation`; a test compares it. -->

Every metric also has the label `run`. A metric is absent while its value is
unknown. Counters of an attempt start again with the next one.

The same values go out over OTLP when an endpoint is set: under the names in the last column, in the
unit beside them (UCUM), with the labels as attributes. `megatron.training.*` are Megatron's own
names for the same quantities; its step duration is a histogram of every step, ours the newest
printed value in milliseconds.

| name | type | unit | labels | meaning | OTLP name |
| --- | --- | --- | --- | --- | --- |
"""

_FLEET = """
## Of the controller

The controller serves the metrics of each watched job on :9402, with the label `run_namespace`
besides `run`: those of the whole job, joined over its pods. What is of single ranks, GPUs and
network cards is served by the sidecars alone. These are of the controller itself and have no label
`run`; they are not sent over OTLP.

| name | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    rows = (
        f"| `{each.name}` | {each.kind} | {each.unit} | {_labels(each)} | {each.help} "
        f"| {_otlp(each)} |\n"
        for each in catalog.ALL
    )
    return _HEAD + "".join(rows) + _FLEET + "".join(map(_of_controller, catalog.CONTROLLER))


def _of_controller(metric: Metric) -> str:
    labels = _labels(metric)
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |\n"


def _otlp(metric: Metric) -> str:
    named = otlp_name(metric)
    return f"`{named.name}`" + f" ({named.unit})" * bool(named.unit)


def _labels(metric: Metric) -> str:
    return " ".join(f"`{label}`" for label in metric.labels)


if __name__ == "__main__":
    sys.stdout.write(page())
