# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The loss is NaN, as Megatron hides it and as others print it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch.detect.loss_missing import DETECTOR
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.job import MAX_STEPS, Layout
from mwatch.model.step import Step
from support.builders.job import found, job, step, steps

NAN, INF = math.nan, math.inf


def missing(lines: list[Step], **more: Any) -> list[tuple[int | None, str]]:
    findings = found(DETECTOR, job(lines, **more))
    return [(finding.since_iteration, finding.severity) for finding in findings]


def test_a_loss_that_vanished_is_nan() -> None:
    (finding,) = found(DETECTOR, job(steps([2.1, 2.0, None, None])))
    assert (finding.cause, finding.severity) == (Cause.NAN, Severity.CRITICAL)
    assert finding.since_iteration == 3
    assert finding.since_time == step(3).at
    assert [each.line for each in finding.evidence] == [2, 3, 4]


def test_one_line_is_enough_and_a_loss_that_came_back_closes_it() -> None:
    assert missing(steps([2.1, None])) == [(2, "critical")]
    assert missing(steps([2.1, None, 2.0])) == []


def test_no_log_no_verdict() -> None:
    assert found(DETECTOR, job(steps([2.1, None]), sights=())) == []
    assert found(DETECTOR, job()) == []


def test_all_steps_skipped_says_nothing() -> None:
    old = step(20, loss=None, covers=10, skipped=10, loss_scale=8.0, grad_norm=None)
    new = step(20, loss=0.0, covers=10, skipped=10, loss_scale=8.0, grad_norm=None)
    for silent in (old, new):
        assert missing([step(10, covers=10), silent]) == []


def test_fewer_skips_than_steps_and_no_loss_is_nan() -> None:
    bad = step(20, loss=None, covers=10, skipped=9)
    assert missing([step(10, covers=10), bad]) == [(11, "critical")]


def test_lines_that_say_nothing_do_not_move_the_beginning() -> None:
    silent = [step(n, loss=None, skipped=1, grad_norm=None) for n in (3, 4)]
    lines = [*steps([2.1, 2.0]), *silent, step(5, loss=None)]
    assert missing(lines) == [(5, "critical")]
    assert missing([*lines, step(6, loss=None, skipped=1)]) == [(5, "critical")]


def test_the_first_step_of_a_process_is_not_blamed_twice() -> None:
    first = step(11, is_first_of_process=True)
    both = step(12, loss=None, covers=2, new=1)  # core_v0.16 on: speaks for 11 and 12
    assert missing([first, both]) == [(12, "critical")]


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
@pytest.mark.parametrize("flavour", ["megatron", "deepspeed", "torchtitan", "composer", "bridge"])
def test_a_printed_nan_or_infinity_is_believed_in_every_format(loss: float, flavour: str) -> None:
    lines = [*steps([2.0, 2.0], flavour=flavour), step(3, loss=loss, flavour=flavour)]
    assert missing(lines) == [(3, "critical")]


def test_a_scaler_outside_megatron_may_skip_a_nan() -> None:
    lines = steps([2.0, NAN, NAN, NAN], flavour="deepspeed", loss_scale=65536.0)
    assert missing(lines[:3]) == []
    assert missing(lines) == [(2, "critical")]
    composer = steps([2.0, NAN, NAN, NAN], flavour="composer", loss_scale=None)
    fp16 = Layout(precision="fp16")
    assert missing(composer[:3], layout=fp16) == []
    assert missing(composer, layout=fp16) == [(2, "critical")]


@pytest.mark.parametrize("flavour", ["composer", "torchtitan"])
def test_formats_that_print_nan_hide_nothing(flavour: str) -> None:
    assert missing(steps([2.0, 2.0, None, None], flavour=flavour)) == []


def test_side_losses_come_and_go() -> None:
    experts = {"lm loss": 2.0, "load_balancing_loss": 1.0}
    lines = [step(1, losses=experts), step(2, losses={"lm loss": 2.0})]
    assert missing(lines) == []
    assert missing([step(1, losses=experts), step(2, losses={"z_loss": 1.0})]) == [(2, "critical")]


@pytest.mark.parametrize("name", ["lm_loss", "reduced_train_loss", "reward", "sop loss"])
def test_the_key_is_the_scripts_choice(name: str) -> None:
    lines = [step(1, losses={name: 2.0}), step(2, losses={})]
    assert missing(lines) == [(2, "critical")]
    assert missing(lines[:1]) == []


def test_a_loss_that_is_often_absent_is_not_missed() -> None:
    lines = steps([0.3, None, 0.2, None, 0.3, None, 0.1, None], grad_norm=1.0)
    assert missing(lines) == []


def test_a_loss_near_zero_may_have_turned_negative() -> None:
    assert missing(steps([0.04, 0.03, None])) == []
    assert missing([*steps([0.04, 0.03]), step(3, loss=None, grad_norm=NAN)]) == [(3, "critical")]


def test_a_loss_whose_noise_reaches_zero_may_have_turned_negative() -> None:
    """An objective of reinforcement learning: its sign means nothing."""
    policy = [0.52, 0.31, 0.74, 0.18, 0.45, 0.66, 0.23, 0.58, 0.12, 0.4]
    assert missing(steps([*policy, None])) == []
    assert missing(steps([*policy, None, None, None, 0.2, None])) == []
    bad = step(11, loss=None, grad_norm=NAN)
    assert missing([*steps(policy), bad]) == [(11, "critical")]
    language = [2.5 + 0.1 * loss for loss in policy]
    assert missing(steps([*language, None])) == [(11, "critical")]


def moving(count: int, first: int = 1, **change: Any) -> list[Step]:
    """Lines whose gradient norm is a measurement."""
    return [step(n, grad_norm=0.8 + 0.01 * (n % 7), **change) for n in range(first, first + count)]


def test_gradients_that_are_finite_and_move_show_that_the_loss_is_below_zero() -> None:
    before = moving(20, loss=2.0)
    for count in (1, 2):
        assert missing([*before, *moving(count, 21, loss=None)]) == [(21, "warning")]
    for count in (3, 50):
        assert missing([*before, *moving(count, 21, loss=None)]) == []
    poisoned = [step(n, loss=None, grad_norm=NAN) for n in (22, 23)]
    assert missing([*before, *moving(1, 21, loss=None), *poisoned]) == [(21, "critical")]


@pytest.mark.parametrize("norm", [0.8, 0.0, None])
def test_a_norm_that_does_not_move_shows_nothing(norm: float | None) -> None:
    bad = [step(n, loss=None, grad_norm=norm) for n in range(21, 30)]
    assert missing([*moving(20, loss=2.0), *bad]) == [(21, "critical")]


def test_an_objective_that_was_never_above_zero_is_not_nan() -> None:
    whole: dict[str, Any] = {"loss": None, "loss_scale": 1.0, "learning_rate": 1e-4}
    lines = moving(40, **whole)
    assert [missing(lines[:count]) for count in range(1, 41)] == [[]] * 40
    skipped = step(41, **whole | {"skipped": 1, "grad_norm": None})
    assert missing([*lines, skipped]) == []
    nan = [line._replace(grad_norm=NAN) for line in lines]
    assert missing(nan[:3]) == [(1, "critical")]


@pytest.mark.parametrize("norm", [0.8, 0.9])
def test_a_likelihood_that_falls_through_zero_is_not_nan(norm: float) -> None:
    falling = steps([3.2 - 0.3 * n for n in range(11)])
    assert missing([*falling, step(12, loss=None, grad_norm=norm)]) == []
    assert missing([*falling[:5], step(6, loss=None)]) == [(6, "critical")]  # still far from it
    assert missing([*falling, step(12, loss=None, grad_norm=NAN)]) == [(12, "critical")]


def test_a_resume_below_zero_is_held_against_the_norm_of_the_earlier_attempt() -> None:
    resumed = job(moving(1, 101, loss=None), number=2)
    resumed.earlier_steps = {line.iteration: line for line in moving(20, 81, loss=2.0)}
    (finding,) = found(DETECTOR, resumed)
    assert finding.severity is Severity.WARNING


def two(kd: float, ce: float = 2.5, **change: Any) -> list[Step]:
    orders: list[dict[str, float]] = [
        {"kd_loss": kd, "ce_loss": ce},
        {"ce_loss": ce, "kd_loss": kd},
    ]
    return [step(3, losses=losses, flavour="other", **change) for losses in orders]


@pytest.mark.parametrize("kd", [NAN, INF])
def test_a_loss_that_is_nan_by_design_is_worth_a_remark_in_any_place(kd: float) -> None:
    for line in two(kd):
        (finding,) = found(DETECTOR, job([line]))
        assert finding.severity is Severity.INFO
        assert finding.summary.startswith("kd_loss is ")


def test_without_a_norm_it_is_a_warning_if_it_was_never_finite() -> None:
    actor = {"flavour": "other", "grad_norm": None}
    bad = [step(n, losses={"actor_loss": NAN, "critic_loss": 0.3}, **actor) for n in range(5, 40)]
    assert missing(bad) == [(5, "warning")]
    good = [step(n, losses={"actor_loss": 0.1, "critic_loss": 0.3}, **actor) for n in range(1, 5)]
    assert missing([*good, *bad]) == [(5, "critical")]


def test_without_sound_gradients_or_a_finite_loss_beside_it_it_is_the_end() -> None:
    assert missing(two(NAN, grad_norm=NAN)[:1]) == [(3, "critical")]
    for line in two(NAN, ce=NAN):
        assert missing([line]) == [(3, "critical")]
    total = step(3, losses={"loss": NAN, "ce_loss": 2.5}, flavour="other")
    assert missing([total]) == [(3, "critical")]


def test_a_line_that_was_cut_off_is_no_sign() -> None:
    cut = [step(n, loss=None, loss_scale=None, grad_norm=None) for n in (3, 4, 5)]
    assert missing([*steps([2.0, 2.0]), *cut[:2]]) == []
    assert missing([*steps([2.0, 2.0]), *cut]) == [(3, "critical")]


def test_nan_from_the_first_line_on_needs_its_gradients() -> None:
    assert missing(steps([None, None], grad_norm=NAN)) == [(1, "critical")]
    assert missing(steps([None, None])) == []  # a format that prints no loss at all


def test_complete_lines_that_never_had_a_loss_are_nan() -> None:
    whole = {"loss": None, "loss_scale": 1.0, "learning_rate": 1e-4, "batch_size": 64}
    lines = [step(number, **whole) for number in range(1, 5)]
    assert missing(lines) == [(1, "critical")]
    assert missing(lines[:2]) == []
    assert missing([line._replace(learning_rate=None) for line in lines]) == []
    assert missing([line._replace(flavour="bridge") for line in lines]) == []


def test_a_resume_from_poisoned_weights_is_held_against_the_earlier_attempt() -> None:
    resumed = job(steps([None], first=101), number=2)
    resumed.earlier_steps = {100: step(100)}
    (finding,) = found(DETECTOR, resumed)
    assert finding.since_iteration == 101


def test_a_bad_validation_alone_is_one_witness() -> None:
    assert missing(steps([2.0, 2.0]), bad_validation_at=2) == [(2, "warning")]
    assert missing([], bad_validation_at=5) == [(5, "warning")]


def test_a_finite_loss_after_it_blames_the_validation_data() -> None:
    assert missing(steps([2.0, 2.0, 2.0]), bad_validation_at=2) == [(2, "info")]


def test_a_bad_validation_before_the_first_bad_line_moves_the_beginning() -> None:
    lines = [step(100, covers=100), step(200, loss=None, covers=100, grad_norm=NAN)]
    assert missing(lines, bad_validation_at=150) == [(101, "critical")]
    assert missing(lines, bad_validation_at=100) == [(100, "critical")]
    assert missing(lines, bad_validation_at=50) == [(101, "critical")]
    assert missing(lines[1:], bad_validation_at=100) == [(100, "critical")]


def test_finite_gradients_lower_the_confidence() -> None:
    (sure,) = found(DETECTOR, job([step(1), step(2, loss=None, grad_norm=NAN)]))
    (less,) = found(DETECTOR, job([step(1), step(2, loss=None)]))
    assert sure.confidence > less.confidence


def test_a_long_dead_run_keeps_its_beginning() -> None:
    lines = [*steps([2.0] * 500), *steps([None] * 1400, first=501, grad_norm=NAN)]
    assert missing(lines) == [(501, "critical")]


def test_skips_only_for_ever_are_not_nan() -> None:
    lines = [*steps([2.0] * 10), *steps([None] * 100, first=11, skipped=1, grad_norm=None)]
    assert missing(lines) == []


@given(
    good=st.integers(1, 300),
    bad=st.integers(1, MAX_STEPS - 300),
    covers=st.sampled_from([1, 10, 100]),
)
def test_the_beginning_is_right_whatever_the_lengths(good: int, bad: int, covers: int) -> None:
    lines = [
        step(n * covers, covers=covers, loss=2.0 if n <= good else None)
        for n in range(1, good + bad + 1)
    ]
    assert missing(lines) == [(good * covers + 1, "critical")]


@given(st.lists(st.floats(0.06, 20.0), min_size=1, max_size=40))
def test_finite_losses_are_never_nan(losses: list[float]) -> None:
    assert missing(steps(losses)) == []
