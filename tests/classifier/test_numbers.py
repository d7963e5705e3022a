# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the numbers in a log do, in the forms in which programs print them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from mwatch.classifier.numbers import shapes

MEGATRON = " iteration {n:8d}/ 100 | lm loss: {v:.6E} | loss scale: 1.0 | grad norm: 0.8 |"
TRAINER = "{{'loss': {v:.4f}, 'grad_norm': 0.8, 'epoch': 0.{n}}}"
PLAIN = "step {n} loss {v:.3f} | loss: {v:.3f}"
FORMS = (MEGATRON, TRAINER, PLAIN)


def log(form: str, values: Iterable[float]) -> list[str]:
    return [form.format(n=n, v=value) for n, value in enumerate(values, 1)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("course", "expected"),
    [
        (lambda n: 9.0 - n, "n:loss:times to 0.3"),
        (lambda n: 2.0 + n, "n:loss:rises"),
        (lambda n: 10.83, "n:loss:flat"),
        (lambda n: 9.9 if n == 5 else 2.0, "n:loss:peak 3.0"),
        (lambda n: 0.0, "n:loss:zero"),
    ],
)
def test_the_course_of_a_loss(form: str, course: Callable[[int], float], expected: str) -> None:
    assert expected in shapes(log(form, map(course, range(1, 9))))


def test_a_loss_that_is_not_finite() -> None:
    found = shapes(["step 1 loss: 2.0", "step 2 loss: nan", "step 3 loss: nan", "loss: nan"])
    assert {"n:loss:not finite", "n:loss:ends not finite", "n:loss:often not finite"} <= found
    assert "n:loss:never finite" not in found


def test_the_loss_of_all_stages_counts_where_this_one_has_none() -> None:
    line = "Epoch 0: 3%| | 5/200 [00:11<00:20, loss=nan, reduced_train_loss=3.94]"
    assert "n:loss:not finite" not in shapes([line])


def test_a_scale_is_no_loss_and_an_evaluation_is_aside() -> None:
    found = shapes(["loss scale: 1.0", "eval_loss: 3.1"])
    assert {"n:scale:to 1", "n:side:to 1"} <= found
    assert not any(each.startswith("n:loss:") for each in found)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step 100/100 loss: 1", "n:count:over 1"),
        ("step 50/100 loss: 1", "n:count:to 0.97"),
        ("step 1/100 loss: 1", "n:count:to 0.03"),
    ],
)
def test_how_far_the_run_came(line: str, expected: str) -> None:
    assert expected in shapes([line])


def test_counts_and_bars_that_do_not_move() -> None:
    bar = " 12%|#2   | 12/100 [00:12<01:28, 1.0it/s]"
    assert {"n:bar:stays", "n:bar:to 99"} <= shapes([bar] * 3)
    assert "n:count:goes back" in shapes(["step 9", "step 10", "step 4"])


def test_how_values_compare_with_those_above_a_load() -> None:
    before, after = log(TRAINER, (0.9, 0.91, 0.9)), log(TRAINER, (2.3, 2.2, 2.3))
    load = "Loading checkpoint-26000, global step 26000"
    assert "n:loss:since load to 3" in shapes([*before, load, *after])
    assert "n:loss:since load to 1.02" in shapes([*before, load, *before])
    assert "n:loss:loaded first" in shapes([load, *after])
    assert not any("load" in each for each in shapes([*before, *after]))


def test_how_a_series_came_to_its_last_values() -> None:
    rising = shapes(log(TRAINER, (4.0, 2.0, 1.0, 1.5, 2.0, 3.0, 5.0)))
    assert {"n:loss:rising at the end", "n:loss:longest rise to 4"} <= rising
    assert "n:loss:end over least to 5" in rising
    assert "n:loss:largest step up to 2.5" in rising
    assert "n:loss:end of most to 0.2" in shapes(log(TRAINER, (9.0, 9.0, 3.0, 1.5, 1.0, 1.0)))


def test_how_far_a_count_goes_back_and_over_how_many_steps_a_loss_stays() -> None:
    assert "n:count:goes back to the first" in shapes(["step 90", "step 1"])
    assert "n:count:goes back a little" in shapes(["step 90", "step 85"])
    assert "n:count:goes back far" in shapes(["step 900", "step 100"])
    flat = [f"step {n} loss: 6.9{n % 2}" for n in range(0, 1000, 100)]
    assert "n:loss:stays over to 3000" in shapes(flat)


def test_what_part_of_a_step_waits_for_data_and_how_the_speed_of_a_bar_changes() -> None:
    line = "Epoch 3 Time 1.000 (1.1) Data 0.{} (0.8)"
    assert "n:data share to 0.8" in shapes([line.format(n) for n in (70, 72, 74)])
    bars = [f" 9%|# | {n}/99 [00:12<01:28, {float(n)}s/it]" for n in (1, 2, 4)]
    assert "n:bar:time:over 3" in {each.replace("times ", "") for each in shapes(bars)}


def test_lines_below_the_last_step() -> None:
    steps = log(TRAINER, (2.0, 1.9))
    assert "n:below:to 0" in shapes(steps)
    assert "n:below:to 3" in shapes([*steps, "Killed", "$ dmesg"])
    assert "n:no steps" in shapes(["nothing here"])


@pytest.mark.parametrize("part", ["a", "1", "=1", "loss: ", "loss=1,", "| 1 ", "(((", "nan"])
def test_no_more_than_the_start_of_a_line_is_read(part: str) -> None:
    line = part * 2000
    assert shapes([line]) == shapes([line + "loss: nan"])
