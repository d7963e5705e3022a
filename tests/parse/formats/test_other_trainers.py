# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""NeMo's step lines, which count from zero."""

from __future__ import annotations

import math

import pytest

from mwatch.model.event import Iteration
from support.builders.events import log, megatron_line, one, steps

PRINTED = (
    "Training epoch 0, iteration 120/149 | lr: 3e-05 | consumed_samples: 121 |"
    " global_batch_size: 1 | global_step: 120 | reduced_train_loss: 1.643 |"
    " train_step_timing in s: 0.74567 | val_loss: 4.426"
)
BAR = (
    "Epoch 0:   1%|          | 795/77225 [9:07:58<878:01:48, 41.36s/it, loss=3.1, v_num=,"
    " reduced_train_loss=3.418, global_step=794.0, consumed_samples=1.78e+6]"
)


def test_the_progress_printer_gives_one_based_iterations() -> None:
    event = one(log(PRINTED), Iteration)
    assert (event.iteration, event.total_iterations, event.flavour) == (121, 150, "bridge")
    assert (event.learning_rate, event.consumed_samples, event.global_batch_size) == (3e-05, 121, 1)
    assert event.elapsed_ms == pytest.approx(745.67)
    assert event.losses == {"reduced_train_loss": 1.643}
    assert (event.extra["global_step"], event.extra["epoch"]) == (120, 0)
    assert event.extra["val_loss"] == 4.426


def test_a_later_epoch_counts_on_by_the_global_step() -> None:
    event = one(
        "(pretraining, pid=4112) Training epoch 1, iteration 0/999 | lr: 2.745e-06 |"
        " global_batch_size: 512 | global_step: 19 | reduced_train_loss: 14.24 |"
        " train_step_timing in s: 42.68 | consumed_samples: 10240\n",
        Iteration,
    )
    assert (event.iteration, event.rank) == (20, None)
    assert event.losses == {"reduced_train_loss": 14.24}
    assert event.extra["epoch"] == 1
    assert event.elapsed_ms == pytest.approx(42680.0)
    assert event.consumed_samples == 10240


def test_a_nan_loss_is_printed_and_read() -> None:
    event = one(PRINTED.replace("1.643", "nan"), Iteration)
    assert math.isnan(event.losses["reduced_train_loss"])


def test_each_line_is_read_once_and_not_as_a_megatron_line() -> None:
    text = log(PRINTED, PRINTED.replace("120", "121"), megatron_line(200))
    assert [(e.iteration, e.flavour) for e in steps(text)][:2] == [(121, "bridge"), (122, "bridge")]
    assert len(steps(text)) == 3


def test_the_printer_covers_what_lies_between_two_lines() -> None:
    text = log(*(PRINTED.replace("120", str(number)) for number in (109, 119, 129)))
    assert [event.covers for event in steps(text)] == [None, 10, 10]


def test_a_progress_bar_of_nemo_1_is_read() -> None:
    event = one(log(BAR), Iteration)
    assert (event.iteration, event.total_iterations) == (795, 77225)
    assert event.losses["reduced_train_loss"] == 3.418
    assert event.consumed_samples == 1780000
    assert event.elapsed_ms == pytest.approx(41360.0)


def test_a_bar_in_iterations_per_second_gives_milliseconds() -> None:
    event = one(BAR.replace("41.36s/it", " 1.25it/s"), Iteration)
    assert event.elapsed_ms == pytest.approx(800.0)


def test_bars_divided_by_carriage_returns_share_a_line() -> None:
    bars = "\r".join(BAR.replace("795", str(n)).replace("794.0", f"{n - 1}.0") for n in (7, 8, 9))
    text = bars + "\n" + log(megatron_line(10))
    assert [(event.iteration, event.line) for event in steps(text)] == [
        (7, 1),
        (8, 1),
        (9, 1),
        (10, 2),
    ]


def test_a_watchdog_message_glued_to_a_bar_is_no_obstacle() -> None:
    glued = (
        BAR + "[E ProcessGroupNCCL.cpp:474] [Rank 1] Watchdog caught collective operation timeout"
    )
    assert one(glued + "\n", Iteration).iteration == 795
