# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Gotcha 28: lines that look like step lines and are not."""

from __future__ import annotations

import pytest

from mwatch.model.event import Batch, Iteration, Validation
from support.builders.events import arguments_block, log, many, none

FRIENDS = {
    "argument dump": arguments_block(loss_scale_window=1000, initial_loss_scale=4294967296),
    "skip argument": "  iterations_to_skip ............................... [10, 20]",
    "yaml echo": "train_iters: 500000\nlog_interval: 10\nloss_scale: 1.0\niteration: 5\n",
    "evaluation progress": "Evaluating iter 1/32",
    "validation result": (
        " validation loss at iteration 50 | lm loss value: 7.301873E+00 | lm loss PPL: 1.48E+03 | "
    ),
    "code in a traceback": '    log_string = f" iteration {iteration:8d}/{args.train_iters:8d} |"',
    "memory report": "[Rank 0] (after 1 iterations) memory (MB) | allocated: 584.37 |",
    "checkpoint": "saving checkpoint at iteration     163 to /ck in torch_dist format",
    "rerun": "Unexpected result nan on rank 0 at iteration #4 invocation #1 (message='found NaN')",
    "exit": "[exiting program at iteration 25] datetime: 2026-11-15 03:25:05.699027 ",
    "tqdm of a data set": "building index: 12%|#2        | 120/1000 [00:01<00:09, 99.1it/s]",
    "epoch bar without loss": "Epoch 0:   1%|          | 795/77225 [9:07:58<878:01:48, 41.36s/it]",
    "prose": "see iteration 10/100 of the tuning loop for details",
    "subword": " subiteration       20/ 1000000 | consumed samples:           80 |",
    "json": '{"iteration": 5, "total": 10, "loss": 3.2}',
    "sentence with step": "on step: 5 the loss: was high",
    "log_dist": "[INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=6, lr=[1e-4]",
    "micro step": "epoch=0/micro_step=10/global_step=5, RunningAvgSamplesPerSec=12.5",
    "batch size": "Train microbatch size will be decreased from 8 -> 4.",
}


@pytest.mark.parametrize("name", FRIENDS)
def test_it_gives_no_step(name: str) -> None:
    none(log(FRIENDS[name]), Iteration)
    none(log(FRIENDS[name]), Batch)


@pytest.mark.parametrize("name", FRIENDS)
def test_it_gives_no_step_behind_a_prefix(name: str) -> None:
    none(log(*(f"[default7]:{line}" for line in FRIENDS[name].splitlines())), Iteration)


def test_the_printer_of_nemo_is_read_once_although_it_contains_the_head_of_megatron() -> None:
    line = "Training epoch 0, iteration 120/149 | global_step: 120 | reduced_train_loss: 1.6"
    assert len(many(log(line), Iteration)) == 1


def test_a_validation_set_with_a_loss_in_its_name_is_one_validation() -> None:
    line = (
        " validation-loss loss at iteration 50 | lm loss value: 7.3E+00 | lm loss PPL: 1.48E+03 | "
    )
    assert len(many(log(line), Validation)) == 1
