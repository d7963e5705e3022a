# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The ten fields that both programs read, and the check that they read the same."""

from __future__ import annotations

import math
from collections.abc import Mapping

FIELDS = (
    "iteration",
    "total_iterations",
    "consumed_samples",
    "elapsed_ms",
    "learning_rate",
    "global_batch_size",
    "lm_loss",
    "loss_scale",
    "grad_norm",
    "skipped",
)
"""Each is the last value that was printed; `skipped` is the sum over all lines."""

Values = Mapping[str, float]


class Disagreement(RuntimeError):
    """The two programs read different values: their speeds must not be compared."""


def check_equal(ours: Values, theirs: Values, file: str) -> None:
    unequal = [name for name in FIELDS if not _equal(ours.get(name), theirs.get(name))]
    if unequal:
        pairs = (f"{name}: mwatch {ours.get(name)}, mtail {theirs.get(name)}" for name in unequal)
        raise Disagreement(f"{file} was not read alike: {'; '.join(pairs)}")


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return False
    return one == other or (math.isnan(one) and math.isnan(other))
