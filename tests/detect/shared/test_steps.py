# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where a run of bad lines began."""

from __future__ import annotations

import math
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from mwatch.detect.shared.steps import (
    first_iteration,
    main_loss,
    main_name,
    skips_start,
    slide_start,
    streak_start,
)
from mwatch.model.step import Step
from support.builders.job import step


def lines(*skips: int) -> deque[Step]:
    return deque(step(n, skipped=skipped) for n, skipped in enumerate(skips, 1))


def is_skipped(line: Step) -> bool:
    return line.skipped > 0


@given(good=st.integers(0, 400), bad=st.integers(0, 400))
def test_the_beginning_of_one_run_is_exact(good: int, bad: int) -> None:
    assert streak_start(lines(*[0] * good, *[1] * bad), is_skipped) == good


def test_a_good_line_among_the_nearest_ends_the_run() -> None:
    assert streak_start(lines(1, 1, 0, 1, 1), is_skipped) == 3


def test_skips_with_short_pauses_are_one_slide() -> None:
    assert skips_start(lines(0, 0, 1, 0, 0, 1, 1), gap=5) == 2
    assert skips_start(lines(1, 0, 0, 0, 0, 1, 1), gap=2) == 5


def test_a_line_that_ends_with_a_skip_belongs_to_the_slide() -> None:
    few = step(100, covers=100, skipped=2, grad_norm=None)
    many = step(200, covers=100, skipped=100, grad_norm=None)
    assert skips_start(deque([step(0), few, many]), gap=20) == 1
    assert skips_start(deque([step(0), few._replace(grad_norm=1.0), many]), gap=20) == 2


def test_without_any_skip_it_is_the_newest_line() -> None:
    assert skips_start(lines(0, 0, 0), gap=1) == 2


def test_what_the_line_before_covered_is_not_covered_again() -> None:
    again = deque([step(10), step(12, covers=3)])
    assert first_iteration(again, 1) == 11
    assert first_iteration(deque([step(12, covers=3)]), 0) == 10


def test_a_slide_does_not_reach_back_over_steps_that_went_well() -> None:
    assert slide_start(lines(1, 1, 0, 0, 0, 1, 1, 1, 1), gap=20) == 5
    assert slide_start(lines(1, 1, 1, 1), gap=20) == 0


def test_a_few_skips_in_a_row_are_no_slide() -> None:
    for reported in (lines(0, 1, 0, 1, 0), lines(0, 1, 0, 1, 1)):
        assert slide_start(reported, gap=5) == skips_start(reported, gap=5)


def test_the_trained_loss_is_the_first_that_has_a_usual_name_or_none_of_the_side() -> None:
    assert main_name(step(1, losses={"aux_loss": 0.1, "pg_loss": 0.2, "vf_loss": 0.3})) == "pg_loss"
    assert main_name(step(1, losses={"pg_loss": 0.2, "loss": 0.3})) == "loss"
    assert main_name(step(1, losses={"loss": 0.3, "lm loss": 0.2})) == "lm loss"
    assert main_name(step(1, losses={"z_loss": 0.3})) is None


def test_a_nan_beside_a_finite_loss_and_finite_gradients_is_not_the_trained_loss() -> None:
    losses = {"kd_loss": math.nan, "aux_loss": 0.1, "ce_loss": 2.5}
    assert main_loss(step(1, losses=losses)) == 2.5
    assert main_name(step(1, losses=losses, grad_norm=math.nan)) == "kd_loss"
    assert main_name(step(1, losses=losses | {"ce_loss": math.nan})) == "kd_loss"
    assert main_name(step(1, losses={"kd_loss": math.nan, "aux_loss": 0.1})) == "kd_loss"
    assert main_name(step(1, losses={"loss": math.nan, "ce_loss": 2.5})) == "loss"
