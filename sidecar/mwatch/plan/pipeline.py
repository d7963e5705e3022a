# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pipeline stages: how many micro-batches one keeps at a time, and how long it stands idle.

The schedule is 1F1B, plain or interleaved (arXiv 2104.04473, sections 2.2.1 and 2.2.2).
"""

from __future__ import annotations

from mwatch.plan.layout import Layout


def in_flight(layout: Layout, stage: int) -> float:
    """Micro-batches whose activations the stage holds at most, in units of all its layers."""
    stages, count = layout.pipeline, layout.microbatches
    if stages == 1:
        return 1.0
    if layout.virtual is None:
        return float(min(count, stages - stage))
    chunks = 2 * (stages - stage - 1) + (layout.virtual - 1) * stages + 1
    return min(chunks, count * layout.virtual) / layout.virtual


def bubble(layout: Layout) -> float:
    """The share of a step in which a stage waits for others, of 0 to 1."""
    idle = (layout.pipeline - 1) / (layout.microbatches * (layout.virtual or 1))
    return idle / (1 + idle)
