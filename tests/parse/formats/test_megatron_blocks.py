# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The printed argument block: parallel layout, intervals and precision."""

from __future__ import annotations

import pytest

from mwatch.model.event import Arguments, Iteration
from support.builders.events import arguments_block, events, log, megatron_line, one

VALUES = {
    "async_save": True, "bf16": True, "ckpt_format": "torch_dist", "context_parallel_size": 2,
    "data_parallel_size": 4, "error_injection_rate": 0, "eval_interval": 100, "exit_interval": None,
    "expert_model_parallel_size": 1, "fp16": False, "global_batch_size": 512,
    "initial_loss_scale": 4294967296, "load": "/ck", "log_interval": 10, "loss_scale_window": 1000,
    "micro_batch_size": 4, "params_dtype": "torch.bfloat16", "pipeline_model_parallel_size": 4,
    "save": "/my runs/ck", "save_interval": 500, "tensor_model_parallel_size": 8,
    "train_iters": 60, "world_size": 256,
}  # fmt: skip


def test_the_block_shows_layout_and_intervals() -> None:
    event = one(
        log("> Megatron-Core version ........ 0.20.0", arguments_block(**VALUES)), Arguments
    )
    assert (event.world_size, event.tensor_parallel, event.pipeline_parallel) == (256, 8, 4)
    assert (event.context_parallel, event.expert_parallel, event.data_parallel) == (2, 1, 4)
    assert (event.log_interval, event.save_interval, event.eval_interval) == (10, 500, 100)
    assert (event.train_iters, event.exit_interval) == (60, None)
    assert (event.global_batch_size, event.micro_batch_size) == (512, 4)
    assert (event.save, event.load, event.async_save) == ("/my runs/ck", "/ck", True)
    assert (event.precision, event.version, event.line) == ("bf16", "0.20.0", 2)


@pytest.mark.parametrize(
    ("bf16", "fp16", "precision"),
    [(True, False, "bf16"), (False, True, "fp16"), (False, False, "fp32")],
)
def test_the_precision_is_one_word(bf16: bool, fp16: bool, precision: str) -> None:
    block = arguments_block(bf16=bf16, fp16=fp16, params_dtype="torch.float32")
    assert one(log(block), Arguments).precision == precision


def test_an_argument_that_is_not_printed_is_null() -> None:
    event = one(log(arguments_block(world_size=1)), Arguments)
    assert (event.log_interval, event.save, event.async_save) == (None, None, None)
    assert event.precision is None


def test_a_long_name_has_two_blanks_instead_of_dots() -> None:
    block = arguments_block(world_size=8).replace(
        "  world_size",
        "  inference_dynamic_batching_cuda_graph_sizing_distribution  exponential\n  world_size",
    )
    assert one(log(block), Arguments).world_size == 8


def test_warnings_between_the_lines_do_not_end_the_block() -> None:
    lines = arguments_block(**VALUES).splitlines()
    lines[5:5] = ["/a/b.py:23: UserWarning: something", "  warnings.warn("]
    assert one(log(*lines), Arguments).world_size == 256


def test_a_block_behind_a_prefix_is_read() -> None:
    text = log(*(f"[default0]:{line}" for line in arguments_block(**VALUES).splitlines()))
    assert one(text, Arguments).world_size == 256


def test_iteration_lines_after_the_block_are_read() -> None:
    found = events(log(arguments_block(**VALUES), megatron_line(10)))
    assert [type(event) for event in found] == [Arguments, Iteration]


def test_a_block_that_was_cut_gives_what_was_there() -> None:
    block = arguments_block(world_size=8, zero_stage=1).splitlines()[:-1]
    assert one(log(*block), Arguments).world_size == 8


def test_secrets_in_the_block_do_not_reach_the_event() -> None:
    event = one(log(arguments_block(wandb_api_key="abcdef123456", world_size=8)), Arguments)
    assert "abcdef123456" not in repr(event)
