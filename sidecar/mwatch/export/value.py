# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One value of one metric: what every way out is given."""

from __future__ import annotations

from typing import NamedTuple

from mwatch.export.metric import Metric


class Value(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    """In the order of the metric's labels; `run` is not among them."""
    value: float
