# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What losses show in the last lines of a log, in whatever form they are printed."""

from __future__ import annotations

import pytest

from mwatch.detect.shared.loss_lines import (
    bad_numbers,
    climbs,
    impossible_since_load,
    jumped,
    lost_at_once,
    lost_its_loss,
    never_falls,
    nothing_learnt,
    spiked,
    stays_high,
    worse_since_resume,
)
from mwatch.model.cause import Cause

_HIGH = "{{'loss': {:.4f}, 'learning_rate': 2e-05, 'epoch': {:.2f}}}"


def test_losses_that_stay_bad_are_seen_in_a_line_of_any_form() -> None:
    good, bad = "q9 step=1 loss=1.84 tgs=8", "q9 step=2 loss=nan tgs=8"
    found = bad_numbers(enumerate([good, bad, bad], 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.NAN, 2)
    assert bad_numbers(enumerate([bad, bad, good], 1)) is None
    assert bad_numbers(enumerate([good, bad], 1)) is None


@pytest.mark.parametrize(
    "line",
    [
        "Train: 1 [  50/2502 (  2%)]  Loss:       nan (   nan)  Time: 0.298s",
        "[32mloss:     nan  [33mmemory: 66.12GiB",
        " eval_ppl=tensor(nan) eval_epoch_loss=tensor(nan, device='cuda:0')",
        "WARNING: received a nan loss, setting loss value to 0",
        "(trainer:582) WARNING: The grad norm is nan. Skipping updating the model.",
    ],
)
def test_numbers_that_are_not_finite_are_seen_in_many_forms(line: str) -> None:
    bad = bad_numbers([(1, "loss=0.7"), (2, line), (3, line)])
    assert bad is not None
    assert (bad.cause, bad.line) == (Cause.NAN, 2)


def test_one_loss_that_is_bad_is_seen_beside_another_that_is_good() -> None:
    lines = ["val_loss: nan", "train_loss: 1.2", "val_loss: nan", "train_loss: 1.1"]
    bad = bad_numbers(enumerate(lines, 1))
    assert bad is not None
    assert bad.line == 1


def test_a_nan_that_is_followed_by_good_losses_is_over() -> None:
    warned = ["the grad norm is nan, skipped", "the grad norm is nan, skipped", "loss: 2.0"]
    assert bad_numbers(enumerate(warned, 1)) is None


def test_a_loss_and_a_gradient_of_zero_in_each_line_train_nothing() -> None:
    line = "{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 3e-08}"
    found = nothing_learnt(enumerate(["begin", line, line, line], 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.DATA, 2)
    assert nothing_learnt(enumerate([line, line], 1)) is None
    for other in (
        "{'loss': 0.1, 'grad_norm': 0.0}",
        "{'loss': 0.0, 'grad_norm': 0.02}",
        "{'loss': 0.0, 'grad_norm': 0.0, 'reward': 0.0}",
    ):
        assert nothing_learnt(enumerate([line, line, line, other], 1)) is None
    zero = "    train/CrossEntropyLoss=0.000"
    assert nothing_learnt(enumerate([zero] * 3, 1)) == (Cause.DATA, 1, zero.strip())
    alike = "{'loss': 0.0, 'grad_norm': 0.0, 'reward': 1.5, 'frac_reward_zero_std': 1.0}"
    assert nothing_learnt(enumerate([alike] * 3, 1)) == (Cause.LOSS_STUCK, 1, alike)


def test_a_loss_that_jumped_from_a_steady_level_is_a_spike_though_it_came_back() -> None:
    def spike(*losses: float) -> bool:
        found = spiked(enumerate((f"step {at} loss {loss}" for at, loss in enumerate(losses)), 1))
        assert found is None or found.cause is Cause.LOSS_SPIKE
        return found is not None

    assert spike(2.97, 2.96, 2.97, 5.88, 6.41, 5.1, 3.7, 3.2)
    assert spike(4.02, 4.01, 4.03, 5.12, 6.88, 7.44, 7.52), "within three lines"
    assert not spike(2.97, 2.96, 2.97, 5.88, 2.95, 2.96), "one line"
    assert not spike(2.97, 4.1, 2.2, 5.88, 6.41, 3.2), "never steady"
    assert not spike(0.11, 0.1, 0.11, 0.4, 0.5, 0.2), "small numbers"
    assert not spike(2.97, 2.96, 2.97, float("nan"), float("nan"), 2.9)


@pytest.mark.parametrize(
    "form",
    [
        "Epoch 1 | iter 12800 step 200 | loss train: {}, val: n/a",
        "{{'loss': {}, 'learning_rate': 1e-05, 'epoch': 0.1}}",
        "[update 12] Loss {} (2.0) lr 1e-4 loss_scale=1024",
    ],
)
def test_losses_that_jump_and_stay_are_seen_in_lines_of_any_form(form: str) -> None:
    fell = [4.2, 4.1, 4.0, 3.9, 3.8, 3.8]
    found = jumped(enumerate([form.format(loss) for loss in [*fell, 6.9, 7.4, 7.2, 7.3]], 1))
    assert found is not None
    assert (found.cause, found.line) == (Cause.LOSS_SPIKE, 7)


@pytest.mark.parametrize(
    "losses",
    [
        [4.2, 4.1, 4.0, 3.9, 3.8, 3.8, 7.4, 7.2, 4.1],
        [4.2, 4.1, 4.0, 3.9, 3.8, 3.8, 12.4, 9.2, 8.1],
        [0.01, 0.02, 0.01, 0.03, 0.01, 0.02, 0.2, 0.2, 0.2],
        [2.0, 9.0, 2.0, 9.0, 2.0, 9.0, 9.0, 9.0, 9.0],
        [4.0, 3.9, 8.0, 8.1, 8.0],
    ],
    ids=["back", "coming back", "next to nothing", "noise", "too few"],
)
def test_losses_that_come_back_or_are_noisy_have_not_jumped(losses: list[float]) -> None:
    assert jumped((n, f"loss: {loss}") for n, loss in enumerate(losses, 1)) is None


def test_one_evaluation_that_is_not_finite_is_enough() -> None:
    assert bad_numbers([(1, "{'eval_loss': nan}")]) is not None
    assert bad_numbers([(1, "{'loss': nan}")]) is None


_LOADED = "  successfully loaded checkpoint from /ckpt at iteration 1200"


@pytest.mark.parametrize("form", ["step 7 lm loss: {:.4E} |", "{{'loss': '{}', 'epoch': '0.4'}}"])
@pytest.mark.parametrize(
    "after", [[1.97, 1.95, 1.93, 1.91], [0.89, 1.97, 1.95, 1.93], [4.1, 3.0, 2.2, 1.7]]
)
def test_losses_that_are_higher_since_a_resume_are_a_bad_resume(
    form: str, after: list[float]
) -> None:
    before = [form.format(loss) for loss in (0.89, 0.90, 0.88)]
    since = [form.format(loss) for loss in after]
    found = worse_since_resume(enumerate([*before, _LOADED, *since], 1))
    high = next(place for place, loss in enumerate(after) if loss > 1)
    assert found == (Cause.RESUME_DIVERGED, 5 + high, since[high].strip())


def test_a_mean_over_some_steps_is_a_loss() -> None:
    form = "Step {}: grad_norm=0.08 avg_loss(100)={}"
    before = [form.format(1900, 0.2114), form.format(2000, 0.2098)]
    since = [form.format(2100, 0.4471), form.format(2200, 0.4389), form.format(2300, 0.4402)]
    found = worse_since_resume(enumerate([*before, _LOADED, *since], 1))
    assert found == (Cause.RESUME_DIVERGED, 4, since[0])


def test_a_loss_that_is_right_once_behind_a_load_and_then_far_off_is_lost() -> None:
    def lines(*losses: float) -> list[tuple[int, str]]:
        return list(enumerate([_LOADED, *(f"step {n} loss {n}" for n in losses)], 1))

    assert lost_at_once(lines(2.06, 9.82, 9.13, 8.56, 6.42)) == (
        Cause.LOSS_SPIKE,
        3,
        "step 9.82 loss 9.82",
    )
    assert lost_at_once(lines(2.06, 9.82, 9.13, 3.56, 2.42)) is None, "it comes back"
    assert lost_at_once(lines(2.06, 9.82, 9.13)) is None, "too few"
    assert lost_at_once(lines(2.06, 9.82, 9.13, 8.56, 6.42)[1:]) is None, "nothing was loaded"


def test_the_losses_before_may_be_pasted_below() -> None:
    since = [f"iteration {n}/ 200 | lm loss: 1.0{60 - n}E+01" for n in (41, 42, 43)]
    before = [f"iteration {n}/ 200 | lm loss: 3.{n}E-01" for n in (38, 39, 40)]
    found = worse_since_resume(enumerate([_LOADED, *since, "# before:", *before], 1))
    assert found == (Cause.RESUME_DIVERGED, 2, since[0])
    assert worse_since_resume(enumerate([_LOADED, *before, *since], 1)) is None


@pytest.mark.parametrize(
    "after",
    [
        [2.98, 2.95, 2.93, 2.92, 2.91],
        [2.54, 3.37, 2.49, 3.51, 2.63, 3.28],
    ],
    ids=["a little higher", "scattered"],
)
def test_after_steady_losses_less_is_enough(after: list[float]) -> None:
    def found(*before: float) -> bool:
        lines = [f"step 7 loss {loss}" for loss in before]
        lines += [_LOADED, *(f"step 8 loss {loss}" for loss in after)]
        return worse_since_resume(enumerate(lines, 1)) is not None

    assert found(2.716, 2.709, 2.713, 2.704)
    assert not found(2.716, 2.99, 2.45, 3.304)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([0.89, 0.90, 0.88], [0.89, 0.90, 0.91, 0.89]),
        ([0.89, 0.90, 0.88], [1.97, 1.2, 0.93, 0.91]),  # it came back
        ([0.89, 1.60, 0.88], [1.7, 1.6, 1.5, 1.4]),  # as noisy as before
        ([0.89, 0.90, 0.88], [0.89, 0.9, 0.88, 0.9, 0.89, 1.9, 1.9, 1.9]),  # long after it
        ([0.89], [1.97, 1.95, 1.93, 1.91]),
    ],
)
def test_losses_that_went_on_after_a_resume_are_fine(
    before: list[float], after: list[float]
) -> None:
    lines = [f"step 7 loss {loss}" for loss in before]
    lines += [_LOADED, *(f"step 8 loss {loss}" for loss in after)]
    assert worse_since_resume(enumerate(lines, 1)) is None


@pytest.mark.parametrize(
    "lines",
    [
        [f"iteration {n}00/9000 lm loss: 1.0912{n}E+01" for n in range(1, 12, 2)],
        [f"step {n} loss: {8.33 + 0.02 * n:.4f} grad_norm: 0.0000" for n in range(6)],
        [f"Step {n}, Loss: {1.1183 + 0.1 * (n % 3):.4f}" for n in range(9)],
        [f"Epoch {n} Loss: {4.852 + 0.002 * (n % 3):.6f}" for n in range(9)],  # ln 128
        [f"iter {500 * n + 1}: loss {10.987 - 0.05 * n:.4f}" for n in range(7)],
        [_HIGH.format(10.72 + 0.0037 * (n % 5), 0.1 * n) for n in range(13)],
        ["Train loss/train/total: 10.8237"] * 6,
        ["Epoch 0: loss=10.40"] * 20,
    ],
    ids=[
        "flat",
        "no gradient",
        "in turn",
        "chance",
        "as at first",
        "high for an epoch",
        "the same",
        "rough and the same",
    ],
)
def test_losses_that_stay_where_they_are_learn_nothing(lines: list[str]) -> None:
    assert never_falls(enumerate(lines, 1)) == (Cause.LOSS_STUCK, 1, lines[0])


@pytest.mark.parametrize(
    "lines",
    [
        [f"step {n} loss: {2.64 + 0.003 * (n % 3):.4f}" for n in range(8)],
        [f"step {n} loss: 0.01" for n in range(12)],  # too few digits to say that it is the same
        [f"step {n}00 loss: 1.0912{n}" for n in range(1, 16, 3)],
        [f"step {n} loss: 10.912{n}" for n in range(10, 90, 10)],
        [f"step {n} loss: {3.1 - 0.2 * n:.3f} load_balancing_loss: 1.00{n}" for n in range(8)],
        [f"epoch 1 step {n} loss: {9 - n / 8:.3f}" for n in range(8)] * 2,  # two runs
        [f"Epoch {n} Loss: {4.832 + 0.0013 * n:.6f}" for n in range(9)],
        [f"iter {500 * n + 1}: loss {10.987 - 0.06 * n:.4f}" for n in range(7)],
        [f"iter {100 * n + 1}: loss {10.987 - 0.05 * n:.4f}" for n in range(7)],
        [_HIGH.format(10.72 + 0.0037 * (n * 7 % 13), 0.01 * n) for n in range(13)],
    ],
    ids=[
        "noise",
        "rough",
        "few",
        "short",
        "part",
        "two runs",
        "near chance",
        "falls",
        "early",
        "high at the start",
    ],
)
def test_losses_that_move_are_not_stuck(lines: list[str]) -> None:
    assert never_falls(enumerate(lines, 1)) is None


@pytest.mark.parametrize(
    ("losses", "line"),
    [
        ([4.1, 4.1, 6.4, 5.2, 4.4, 4.1, 4.1, 4.0, 5.8, 4.6, 4.1, 4.0], 3),
        ([4.1, 4.1, 6.4, 5.2, 4.4, 4.1, 4.1, 4.0, 4.0, 4.0, 4.1, 4.0], None),
        ([4.1, 2.9, 6.4, 5.2, 3.4, 4.1, 2.1, 4.0, 5.8, 4.6, 4.1, 4.0], None),
    ],
    ids=["two", "one", "noisy"],
)
def test_several_short_spikes_are_a_spike(losses: list[float], line: int | None) -> None:
    lines = (f"iteration {n} | lm loss: {loss}" for n, loss in enumerate(losses, 1))
    found = spiked(enumerate(lines, 1))
    assert (found and found.line) == line


def test_a_loss_that_is_bad_again_and_again_is_seen_though_it_is_good_now() -> None:
    losses = ["0.4", "nan", "0.3", "nan", "nan", "0.4", "nan", "0.3"]
    lines = [f"loss_cls: 0.3, s1.loss_bbox: {each}" for each in losses]
    assert bad_numbers(enumerate(lines, 1)) == (Cause.NAN, 2, lines[1])
    assert bad_numbers(enumerate(lines[:5] + lines[5:6], 1)) is None


def test_a_loss_worse_than_chance_behind_a_load_does_not_fit_the_weights() -> None:
    loaded = "Loading checkpoint from /ckpt/step738020-unsharded..."
    lines = [f"    train/CrossEntropyLoss={loss}" for loss in (71.33, 70.90, 69.74)]
    found = impossible_since_load(enumerate([loaded, *lines], 1))
    assert found == (Cause.RESUME_DIVERGED, 2, lines[0].strip())
    assert impossible_since_load(enumerate(lines, 1)) is None
    assert impossible_since_load(enumerate([loaded, *lines, "lm_loss: 11.2"], 1)) is None


@pytest.mark.parametrize(
    ("losses", "is_high"),
    [
        ([3.31, 3.30, 5.94, 7.42, 7.40], True),
        ([3.31, 3.30, 7.42, 7.40], False),
        ([3.31, 2.10, 5.94, 7.42, 7.40], False),
        ([3.31, 3.30, 7.42, 5.4, 3.3], False),
    ],
    ids=["high", "too few", "noisy", "back"],
)
def test_losses_that_stay_high_after_a_few_steady_ones(losses: list[float], is_high: bool) -> None:
    lines = (f"loss/train/total: {loss}" for loss in losses)
    assert (stays_high(enumerate(lines, 1)) is not None) is is_high


def test_a_loss_that_falls_slowly_from_far_above_since_a_resume_is_a_bad_resume() -> None:
    before = [f"Iter {n} [Loss {loss}]" for n, loss in enumerate((2.217, 2.209))]
    since = [f"Iter {n} [Loss {loss}]" for n, loss in enumerate((4.9, 4.4, 4.1, 2.98, 2.70), 2)]
    assert worse_since_resume(enumerate([*before, _LOADED, *since], 1)) is not None
    over = [*since, "Iter 9 [Loss 2.3]"]
    assert worse_since_resume(enumerate([*before, _LOADED, *over], 1)) is None


@pytest.mark.parametrize(
    ("losses", "is_climbing"),
    [
        ([2.41, 2.44, 2.51, 2.58, 2.66, 2.70, 2.79, 2.90], True),
        ([2.41, 2.44, 2.51, 2.58, 2.66, 2.70, 2.79], False),
        ([2.41, 2.44, 2.31, 2.58, 2.66, 2.70, 2.79, 2.90], False),
        ([2.41, 2.42, 2.43, 2.44, 2.45, 2.46, 2.47, 2.48], False),
        ([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08], False),
        ([2.09, 4.91, 7.73, 8.92], True),
        ([2.09, 4.91, 5.73, 5.92], False),
    ],
    ids=["climbs", "too few", "falls between", "hardly", "a penalty", "explodes", "not so far"],
)
def test_a_loss_that_rises_from_line_to_line(losses: list[float], is_climbing: bool) -> None:
    lines = [f"Train loss/train/total: {loss}" for loss in losses]
    assert (climbs(enumerate(lines, 1)) is not None) is is_climbing
    rewarded = [f"{line} reward: 0.4" for line in lines]
    assert climbs(enumerate(rewarded, 1)) is None


def test_a_loss_that_is_zero_from_one_line_on_is_lost() -> None:
    lines = [f"step {n} loss: 0.4{n}" for n in range(1, 5)]
    zero = [f"step {n} loss: 0.0" for n in range(5, 9)]
    found = lost_its_loss(enumerate([*lines, *zero], 1))
    assert found is not None and (found.cause, found.line) == (Cause.LOSS_STUCK, 5)
    assert lost_its_loss(enumerate([*lines, *zero, "step 9 loss: 0.4"], 1)) is None
    assert lost_its_loss(enumerate([*lines, *(f"{line} reward: 0.5" for line in zero)], 1)) is None
    assert lost_its_loss(enumerate(zero, 1)) is None


def test_a_high_loss_that_is_the_same_after_a_long_training_is_stuck_in_few_lines() -> None:
    losses = (10.98812, 10.98794, 10.98821, 10.98803)
    lines = [f"iteration {500 * n} | lm loss: {loss}" for n, loss in enumerate(losses, 1)]
    assert never_falls(enumerate(lines, 1)) is not None
    assert never_falls(enumerate([line.replace("10.98", "1.98") for line in lines], 1)) is None


@pytest.mark.parametrize(
    "form",
    [
        "iter {} step {}: loss 10.9127, iter time: 308.93ms",
        "train  Epoch 0:  3%|| {}/3710 [05:10<3:01:12, 3.01s/ba, loss/train/total=10.9127]  {}",
    ],
)
def test_iterations_are_counted_from_zero_and_in_bars(form: str) -> None:
    counts = [0, 1, 2, 3, 2812, 2813, 2814]
    lines = [*(form.format(count, count) for count in counts), "loss/train/total 10.9127"]
    found = never_falls(enumerate(lines, 1))
    assert found is not None and found.cause is Cause.LOSS_STUCK
    assert never_falls(enumerate(lines[:4], 1)) is None


def test_a_loss_of_few_digits_is_stuck_after_many_iterations_not_many_lines() -> None:
    bar = "Epoch 0:  9%| | {}/3125 [14:09<2:18:44, 2.74s/it, loss=10.40]"
    assert never_falls(enumerate([bar.format(300 + n) for n in range(20)], 1)) is not None
    assert never_falls(enumerate([bar.format(300 + n % 2) for n in range(20)], 1)) is None


def test_lines_above_a_gap_that_was_left_out_do_not_hide_a_rise() -> None:
    losses = (3.32, 3.34, 3.91, 5.61, 7.18, 7.48, 7.50, 7.49)
    begun = [(at, f"iteration {at} | lm loss: 12.6{at}") for at in (1, 2)]
    later = [
        (3 + at, f"iteration {2600 + 20 * at} | lm loss: {loss}") for at, loss in enumerate(losses)
    ]
    assert climbs(begun) is None
    for lines in (later, [*begun, *later]):
        found = climbs(lines)
        assert found is not None
        assert (found.cause, found.line) == (Cause.LOSS_SPIKE, 3)
