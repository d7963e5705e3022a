# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the run of bad lines, or of skips, that ends with the newest line began.

A dead run prints bad lines by the hundred thousand and is looked at after each. So only the
nearest lines are walked; further back the beginning is searched for by doubling strides, which
may step over a lone good line in a long bad run. Lines that the job no longer keeps are unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from mwatch.model.job import Step

_NEAR = 32
_FAR = 1100
_FEW = 20
_RUN = 4


def streak_start(steps: deque[Step], is_in: Callable[[Step], bool]) -> int:
    """Index of its first line; `len(steps)` when the newest line is not in it."""
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
    """`inside` is in the streak; halves the way to a line that is not."""
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
    """Index of the first line with many skips, before which `gap` iterations had few."""
    first = index = min(streak_start(steps, _has_many_skips), len(steps) - 1)
    clean = 0
    while index > max(0, len(steps) - _FAR) and clean <= gap:
        index -= 1
        if _has_many_skips(steps[index]):
            first, clean = index, 0
        else:
            clean += steps[index].new
    return _with_the_line_it_began_in(steps, first)


def slide_start(steps: deque[Step], gap: int) -> int:
    """Index of the line in which a run of little but skips began.

    A warm-down that ended shortly before, or skips that healed, are no part of it. Where there is
    no such run, or a short one, as `skips_start`.
    """
    first = streak_start(steps, _is_mostly_skipped)
    newest = islice(steps, max(first, len(steps) - _RUN), None)
    if sum(step.skipped for step in newest) < _RUN:
        return skips_start(steps, gap)
    return _with_the_line_it_began_in(steps, first)


def _with_the_line_it_began_in(steps: deque[Step], first: int) -> int:
    before = steps[first - 1] if first else None
    ends_with_one = before is not None and before.skipped > 0 and before.grad_norm is None
    return first - 1 if ends_with_one else first


def _is_mostly_skipped(step: Step) -> bool:
    return step.skipped * 2 > step.new


def _has_many_skips(step: Step) -> bool:
    """Ten times what a healthy scaler skips, and more."""
    return step.skipped * _FEW > step.new


def first_iteration(steps: deque[Step], index: int) -> int:
    """The first that the line covers, without those that the line before has spoken for."""
    first = steps[index].first_covered
    return max(first, steps[index - 1].iteration + 1) if index else first
