# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read the printed iteration lines: the trained loss, where a bad run began, unusually high values.

Detectors run after every line, so the searches sample or bisect instead of walking the history.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from mwatch.model.step import Step

# Losses of experts and extra predictions are not in every line, and Megatron divides them by the
# wrong number when steps are skipped: they are never the main loss.
_USUAL = ("lm loss", "loss", "lm_loss", "lm-loss", "reduced_train_loss", "loss/train/total")
_SIDE = re.compile(r"balanc|\bz_?loss|aux|mtp|indexer|moe|router|expert", re.I)
_NEAR = 32
_FAR = 1100
_FEW = 20
_RUN = 4
WINDOW = 400  # newest lines that define what is usual
Reading = Callable[[Step], float | None]
T = TypeVar("T")


@lru_cache(maxsize=1024)
def _is_side(name: str) -> bool:
    return _SIDE.search(name) is not None


def main_loss(step: Step) -> float | None:
    """Return the trained loss as printed: NaN and infinity are values, None is "not printed"."""
    loss = main_of(step.losses)
    if loss is None or math.isfinite(loss):
        return loss
    name = main_name(step)
    return None if name is None else step.losses[name]


def main_of(losses: Mapping[str, T]) -> T | None:
    """Return the main loss out of losses by name, or what the mapping holds for it."""
    found = losses.get("lm loss")
    if found is not None:
        return found
    name = _first_name(losses)
    return None if name is None else losses[name]


def main_name(step: Step) -> str | None:
    """Return the name of the trained loss.

    One of several losses may be NaN by design, as a mean over no values. If the gradients and
    another loss are finite, the NaN loss is not the trained one.
    """
    losses, norm = step.losses, step.grad_norm
    name = _first_name(losses)
    if name is None or name in _USUAL or math.isfinite(losses[name]):
        return name
    is_sound = norm is not None and math.isfinite(norm)
    return next(iter(finite_names(step)), name) if is_sound else name


def finite_names(step: Step, *, is_finite: bool = True) -> list[str]:
    """Return the names of losses that are finite, or of those that are not; no side losses."""
    found = (name for name, loss in step.losses.items() if math.isfinite(loss) is is_finite)
    return [name for name in found if not _is_side(name)]


def _first_name(losses: Mapping[str, T]) -> str | None:
    if not losses:
        return None
    for name in _USUAL:
        if name in losses:
            return name
    return next((name for name in losses if not _is_side(name)), None)


def is_all_skipped(step: Step) -> bool:
    """Whether no step counted: the loss is absent (up to core_v0.16) or 0 (from 0.17)."""
    return 0 < step.covers <= step.skipped_printed


def printed_loss(step: Step) -> float | None:
    """Return the main loss if it is finite and some step of the line was not skipped."""
    loss = main_loss(step)
    if loss is None or not math.isfinite(loss) or is_all_skipped(step):
        return None
    return loss


def streak_start(steps: deque[Step], is_in: Callable[[Step], bool]) -> int:
    """Return the index of the first line of the newest streak of lines that satisfy `is_in`.

    The result is `len(steps)` if the newest line does not.
    """
    index = len(steps)
    near = max(0, index - _NEAR)
    for step in reversed(steps):
        if not is_in(step):
            return index
        index -= 1
        if index == near:
            break
    return _far_start(steps, is_in, index)


def _far_start(steps: deque[Step], is_in: Callable[[Step], bool], inside: int) -> int:
    """Search by doubling strides; a single good line in a long bad run may be missed."""
    outside, stride = -1, _NEAR
    while inside > 0:
        probe = max(0, inside - stride)
        if not is_in(steps[probe]):
            outside = probe
            break
        inside, stride = probe, stride * 2
    while inside - outside > 1:
        middle = (inside + outside) // 2
        if is_in(steps[middle]):
            inside = middle
        else:
            outside = middle
    return inside


def skips_start(steps: deque[Step], gap: int) -> int:
    """Return the index of the first line with many skips after `gap` iterations with few."""
    first = index = min(streak_start(steps, _has_many_skips), len(steps) - 1)
    clean = 0
    while index > max(0, len(steps) - _FAR) and clean <= gap:
        index -= 1
        if _has_many_skips(steps[index]):
            first, clean = index, 0
        else:
            clean += steps[index].new
    return _including_partial_line(steps, first)


def slide_start(steps: deque[Step], gap: int) -> int:
    """Return the index of the line in which a run of mostly skipped steps began.

    Skips that ended before that run are left out. Without such a run, or with a short one, the
    result is that of `skips_start`.
    """
    first = streak_start(steps, lambda step: step.skipped * 2 > step.new)
    newest = islice(steps, max(first, len(steps) - _RUN), None)
    if sum(step.skipped for step in newest) < _RUN:
        return skips_start(steps, gap)
    return _including_partial_line(steps, first)


def _including_partial_line(steps: deque[Step], first: int) -> int:
    before = steps[first - 1] if first else None
    ends_with_one = before is not None and before.skipped > 0 and before.grad_norm is None
    return first - 1 if ends_with_one else first


def _has_many_skips(step: Step) -> bool:
    """Whether at least ten times as many steps were skipped as with a healthy loss scaler."""
    return step.skipped * _FEW > step.new


def first_iteration(steps: deque[Step], index: int) -> int:
    """Return the first iteration of the line that the line before does not cover."""
    first = steps[index].first_covered
    return max(first, steps[index - 1].iteration + 1) if index else first


def may_stand_out(steps: deque[Step], value: float, ratio: float, near: int, read: Reading) -> bool:
    """Return False if no sampled older line is low enough for `value` to stand out.

    Each sample is twice as far back as the one before, so one of them lies just before the rise;
    values further back may be higher, as at the start of training.
    """
    count = len(steps)
    back = max(1, near)
    while back < min(count, WINDOW):
        older = read(steps[-1 - back])
        if older is not None and value > ratio * older:
            return True
        back *= 2
    if near < count < WINDOW:
        first = read(steps[0])
        return first is not None and value > ratio * first
    return False


def window(steps: deque[Step]) -> list[Step]:
    newest = list(islice(reversed(steps), WINDOW))
    newest.reverse()
    return newest
