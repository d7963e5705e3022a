# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`docs/metrics.md`, made from the table of metrics. `python -m mwatch.export.metrics_page` prints
it.
"""

from __future__ import annotations

import sys

from mwatch.export import catalog
from mwatch.export.metric import Metric

_HEAD = """\
# Metrics

<!-- Made by `python -m mwatch.export.metrics_page`; a test says when it is out of date. -->

Every metric also has the label `run`. A metric without a value is one that nobody knows: nothing
is made up. Counters of an attempt begin anew with the next one.

| name | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
"""


def page() -> str:
    rows = (
        f"| `{each.name}` | {each.kind} | {each.unit} | {_labels(each)} | {each.help} |\n"
        for each in catalog.ALL
    )
    return _HEAD + "".join(rows)


def _labels(metric: Metric) -> str:
    return " ".join(f"`{label}`" for label in metric.labels)


if __name__ == "__main__":
    sys.stdout.write(page())
