# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Step lines and end words of loops without a format of their own: Trainer, Lightning, verl."""

from __future__ import annotations

import math

import pytest

from mwatch.model.event import Checkpoint, Iteration, Overflow, Phase
from support.builders.events import events, log, many, megatron_line, none, one, only

STEPS = {
    "step 7 | epoch 0 | loss 1.4021 | grad_norm 3.0442 | lr 2.00e-07 | mem 58.31 GiB": 1.4021,
    "iter 7 step 1: loss 1.4021, iter time: 1101.20ms (optimizer.step)": 1.4021,
    "Epoch 1 | iter 7 step 1 | loss train: 1.4021, val: n/a | iter time: 99 ms": 1.4021,
    "2026-01-07 10:00:00 INFO Step 7/100, Loss: 1.4021, LR: 1e-4": 1.4021,
    "[step=7] train_loss=1.4021 val_loss=9.0": 1.4021,
    "| INFO | train_inner | epoch 001:   17 / 6547 loss=1.4021, num_updates=7, lr=9e-06": 1.4021,
    "Training Epoch:[0][7/9800] Loss:1.4021(1.9122) Top1:69.102(68.871%), lr=0.01": 1.4021,
    "Epoch 0:  13%|#  | 7/782 [00:10<01:11,  9.49it/s, v_num=5, train/loss=1.4021]": 1.4021,
    "Steps:   1%|  | 7/782 [00:10<01:11,  9.49it/s, loss=1.4021, lr=1e-4]": 1.4021,
    "Epoch 0: : 7it [00:10,  4.52it/s, loss=1.4021, v_num=w9ta]": 1.4021,
    "(TaskRunner pid=9001) step:7 - actor/entropy:0.311 - actor/pg_loss:1.4021": 1.4021,
    "{'loss': '1.4021', 'grad_norm': 2.6, 'learning_rate': 4.7e-05, 'step': 7}": 1.4021,
    '{"loss": 1.4021, "grad_norm": NaN, "global_step/max_steps": "7/110"}': 1.4021,
    '{"current_steps": 7, "total_steps": 3235, "loss": 1.4021, "eval_loss": null}': 1.4021,
    "{'step': 7, 'loss': 1.4021}": 1.4021,
    "1|7|Loss: 1.4021:   1%|  | 7/80 [00:31<41:20, 31.40s/it]": 1.4021,
    "2024-12-03 20:14:08,771 - mmdet - INFO - Iter [7/168780]\tlr: 3.6e-04, loss: 1.4021": 1.4021,
    "12/03 20:14:08 - mmengine - INFO - Iter(train) [  7/9000]  lr: 1e-4  loss: 1.4021": 1.4021,
    "12/03 20:14:08 - mmengine - INFO - Epoch(train)  [0][  7/900]  lr: 1e-4  loss: 1.4021": 1.4021,
    "2024-12-19 03:40:02 Epoch[0/20][7/30477] eta: 9 days, time: 133.4, total_loss: 1.4021": 1.4021,
    "{'loss': '1.4021', 'learning_rate': 4.7e-05, 'iteration': '7/1240'}": 1.4021,
    "Epoch 1/2\n7/469 [>....] - ETA: 15s - loss: 1.4021 - accuracy: 0.91": 1.4021,
    "Epoch 1/2\n7/469 ━━━━━━━━ 21s 41ms/step - accuracy: 0.91 - loss: 1.4021": 1.4021,
    "  1%|  | 7/3100 [09:41<2:07:02,  2.65s/it]\n{'loss': 1.4021, 'epoch': 0.24}": 1.4021,
}


@pytest.mark.parametrize("text", STEPS)
def test_a_loop_prints_its_step_and_its_loss(text: str) -> None:
    step = only(events(log(text)), Iteration)[0]
    assert step.iteration == 7
    assert next(iter(step.losses.values())) == STEPS[text]
    assert step.flavour == "other"


@pytest.mark.parametrize(
    "text",
    [
        "step 7: val loss 2.33",
        "{'eval_loss': 1.2, 'eval_runtime': 10.0, 'epoch': 1.0}",
        "Loading checkpoint shards: 100%|###| 3/3 [00:10<00:00,  3.1s/it]",
        "epoch 7 begins; the loss of the last epoch is in the table",
        "step 7 of the loss function is skipped",
        "Result(metrics={'loss': 0.0417, 'epoch': 10}, path='/mnt/res')",
        '{"loss": 1.2, "epoch": 3}',
    ],
)
def test_other_lines_about_losses_are_not_steps(text: str) -> None:
    none(log(text), Iteration)


@pytest.mark.parametrize("value", ["nan", "nan.0", "NaN"])
def test_nan_is_a_value(value: str) -> None:
    bar = f"Epoch 8:  20%|##  | 101/500 [00:27<01:46,  3.74it/s, v_num=14, train_loss={value}]"
    step = only(events(log(bar)), Iteration)[0]
    assert math.isnan(step.losses["train_loss"])


def test_dicts_without_a_step_are_counted() -> None:
    lines = [f"{{'loss': 1.{number}, 'epoch': 0.{number}}}" for number in range(1, 6)]
    assert [step.iteration for step in many(log(*lines), Iteration)] == [1, 2, 3, 4, 5]


def test_a_count_that_begins_again_with_each_epoch_goes_on() -> None:
    lines = [f"epoch {epoch} step {step}: loss 2.0" for epoch in (0, 1, 2) for step in (10, 20)]
    counts = [step.iteration for step in many(log(*lines), Iteration)]
    assert counts == [10, 20, 30, 40, 50, 60]


def test_the_bar_of_each_epoch_goes_on() -> None:
    form = "Epoch {}: 50%|##  | {}/500 [00:27<01:46,  3.74it/s, train_loss=1.0]"
    lines = [form.format(epoch, done) for epoch in (0, 1) for done in (250, 500)]
    assert [step.iteration for step in many(log(*lines), Iteration)] == [250, 500, 750, 1000]


def test_a_bar_without_a_total_counts_over_epochs_and_ends_with_the_training() -> None:
    lines = [
        "Epoch 1: : 90it [11:40:02,  4.52it/s, loss=2.31]",
        "Epoch 2: : 21it [1:19:20,  4.50it/s, loss=2.22]wandb: Network error, entering retry loop.",
        "Epoch 2: : 81it [1:19:20,  4.50it/s, loss=2.22]Epoch 2, global step 171: 'val/AP' was 0.4",
        "`Trainer.fit` stopped: `max_steps=171` reached.",
        "Epoch 2: : 81it [7:18:11,  4.52it/s, loss=2.22]",
    ]
    found = events(log(*lines))
    assert [each.iteration for each in only(found, Iteration)] == [90, 111, 171, 171]
    assert len(only(found, Phase)) == 1


def test_the_trainer_of_hugging_face_says_what_it_resumes_from() -> None:
    lines = [
        "Loading model from out/checkpoint-26000.",
        "  Continuing training from global step 26000",
    ]
    found = only(events(log(*lines)), Checkpoint)
    assert [(each.op, each.edge, each.iteration) for each in found] == [
        ("load", "begin", 26000),
        ("load", "end", 26000),
    ]
    assert not only(events(log("Loading model from /models/checkpoint-best")), Checkpoint)


def test_several_writers_of_one_loop_are_one() -> None:
    form = "(RayTrainWorker pid={}, ip=10.0.0.1) step {}: loss 2.0"
    order = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (2, 3)]
    lines = [form.format(*each) for each in order]
    assert [step.iteration for step in many(log(*lines), Iteration)] == [1, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "{'train_runtime': 811.902, 'train_steps_per_second': 0.69, 'train_loss': 0.4505}",
        "`Trainer.fit` stopped: `max_epochs=10` reached.",
        "`Trainer.fit` stopped: `max_steps=1000` reached.",
        "    Message:               MPIJob ml/mnist-gpu successfully completed.",
        "[rank0]:[titan] 2024-12-12 10:00:00,123 - root - INFO - Training completed",
        "Training completed after 10 iterations at 2025-04-24 09:39:44. Total running time: 41min",
        "2026-01-07 10:00:00 INFO Training finished",
        "20260423-14:53:11.402 StatsLogger INFO: Training completes! Total time elapsed 402.18.",
        "***** train metrics *****",
        "Max number of steps has been reached, stopping training early",
        "[2026-01-07 10:00:00,123] [INFO] [axolotl.train] Training Completed!!! Saving model",
    ],
)
def test_the_words_of_a_normal_end(text: str) -> None:
    end = only(events(log(text)), Phase)[0]
    assert (end.name, end.edge) == ("training", "end")


@pytest.mark.parametrize(
    "text", ["Tokenizer Training completed", "Training done step 5 of 10", "training is done later"]
)
def test_other_words_are_not_an_end(text: str) -> None:
    none(log(text), Phase)


def test_deepspeed_and_megatron_print_the_same_steps_once() -> None:
    lines = [
        text
        for number in range(1, 6)
        for text in (f"steps: {number} loss: 7.4 iter time (s): 35.4", megatron_line(number, 100))
    ]
    steps = many(log(*lines), Iteration)
    assert [step.iteration for step in steps] == [1, 1, 2, 3, 4, 5]
    assert [step.first_of_process for step in steps] == [True, False, False, False, False, False]


def test_apex_prints_the_scale_after_an_overflow() -> None:
    text = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.5"
    overflow = only(events(log(text)), Overflow)[0]
    assert (overflow.scale_before, overflow.scale_after) == (1.0, 0.5)


def test_the_bars_of_keras_go_on_over_epochs() -> None:
    bar = "469/469 [====] - 21s 41ms/step - loss: 0.3 - val_loss: 0.2"
    lines = ["Epoch 1/2", bar, "Epoch 2/2", bar]
    assert [step.iteration for step in many(log(*lines), Iteration)] == [469, 938]


def test_fairseq_prints_the_new_scale() -> None:
    old = "| WARNING: overflow detected, setting loss scale to: 0.25"
    new = "NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 32.0"
    found = many(log(old, new), Overflow)
    assert [(each.scale_before, each.scale_after) for each in found] == [(0.5, 0.25), (64.0, 32.0)]


@pytest.mark.parametrize(("words", "steps"), [(140, 1), (200, 0)])
def test_a_loss_far_behind_the_word_step_is_of_something_else(words: int, steps: int) -> None:
    text = f"step 12 {'x' * words} loss: 2.5"
    assert len([each for each in events(log(text)) if isinstance(each, Iteration)]) == steps


def test_a_block_of_olmo_is_a_step() -> None:
    head = "2023-07-31 21:11:00.199\tnode-2:0\tolmo.train:671\tINFO\t[step=69920/739328]\n"
    block = (
        "    train/CrossEntropyLoss=2.280\n"
        "    optim/total_grad_norm=0.41\n"
        "    throughput/device/tokens_per_second=9,177\n"
    )
    event = one(head + block, Iteration)
    assert (event.iteration, event.total_iterations) == (69920, 739328)
    assert event.losses == {"train/CrossEntropyLoss": 2.28} and event.grad_norm == 0.41
    later = head.replace("739328]", "739328,epoch=1]")
    assert one(later + block, Iteration).iteration == 69920


@pytest.mark.parametrize("line", ["Training time: 341283.71s", ">> Training took: 0:05:42.77"])
def test_the_time_of_the_whole_training_is_its_end(line: str) -> None:
    assert one(line + "\n", Phase).edge == "end"
    assert not many("Training time per step: 3 s\n", Phase)
