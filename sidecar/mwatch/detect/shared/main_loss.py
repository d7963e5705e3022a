# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which of the printed losses is the one that is trained, and when it says nothing.

The key is the pretraining script's choice. Side losses of experts and extra predictions come and
go, and Megatron divides them by the wrong number when steps are skipped: they are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

from mwatch.model.job import Step

_USUAL = ("loss", "lm_loss", "lm-loss", "reduced_train_loss", "loss/train/total")
_SIDE = re.compile(r"balanc|\bz_?loss|aux|mtp|indexer|moe|router|expert", re.I)


@lru_cache(maxsize=1024)
def _is_side(name: str) -> bool:
    return _SIDE.search(name) is not None


def main_loss(step: Step) -> float | None:
    """As printed: NaN and infinity are values, None is "not printed"."""
    losses = step.losses
    found = losses.get("lm loss")
    return _of_other_name(losses) if found is None else found


def _of_other_name(losses: Mapping[str, float]) -> float | None:
    if not losses:
        return None
    for name in _USUAL:
        if name in losses:
            return losses[name]
    return next((value for name, value in losses.items() if not _is_side(name)), None)


def is_all_skipped(step: Step) -> bool:
    """No step of the line counted: its loss is absent (up to core_v0.16) or 0 (from 0.17 on)."""
    return 0 < step.covers <= step.skipped_printed


def printed_loss(step: Step) -> float | None:
    """The main loss where the line tells one: finite, and of steps that counted."""
    loss = main_loss(step)
    if loss is None or not math.isfinite(loss) or is_all_skipped(step):
        return None
    return loss
