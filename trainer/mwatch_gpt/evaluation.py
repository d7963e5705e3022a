# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluation between and after the training, and the lines that it prints."""

from __future__ import annotations

import math
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine

from mwatch_gpt import progress
from mwatch_gpt.console import print_rank_0, print_rank_last
from mwatch_gpt.forward import pass_batch
from mwatch_gpt.run_state import RunState

_LARGEST_EXPONENT = 20


def evaluate_and_print_results(
    run: RunState, prefix: str, data_iterator: Any, writer: Any = None, *, is_verbose: bool = False
) -> None:
    args = run.args
    with progress.during("evaluating"):
        losses = evaluate(run, data_iterator, is_verbose=is_verbose)
    text = f" validation loss at {prefix} | "
    for name, value in losses.items():
        perplexity = math.exp(min(_LARGEST_EXPONENT, value))
        text += f"{name} value: {value:.6E} | {name} PPL: {perplexity:.6E} | "
        if writer:
            writer.add_scalar(f"{name} validation", value, run.iteration)
            writer.add_scalar(f"{name} validation vs samples", value, args.consumed_train_samples)
            if args.log_validation_ppl_to_tensorboard:
                writer.add_scalar(f"{name} validation ppl", perplexity, run.iteration)
    rule = "-" * (len(text) + 1)
    for line in (rule, text, rule):
        print_rank_last(line)


def evaluate(run: RunState, data_iterator: Any, *, is_verbose: bool) -> dict[str, float]:
    """Mean losses over `--eval-iters` iterations, the same on every rank."""
    args = run.args
    run.timers("evaluate", log_level=0).start(barrier=True)
    machine = get_rerun_state_machine()
    mode = machine.get_mode()
    machine.set_mode(RerunMode.DISABLED)
    run.model.eval()
    sums: dict[str, Any] = {}
    if is_verbose:
        print_rank_0(f"Evaluating on {args.eval_iters * args.global_batch_size} samples")
    with torch.no_grad():
        for number in range(1, args.eval_iters + 1):
            if is_verbose:
                print_rank_0(f"Evaluating iter {number}/{args.eval_iters}")
            run.faults.in_evaluation(run.iteration)
            for report in pass_batch(run, data_iterator, forward_only=True):
                for name, pair in report.items():
                    sums[name] = sums.get(name, 0.0) + pair
            args.consumed_valid_samples += args.global_batch_size
    run.model.train()
    for pair in sums.values():
        torch.distributed.all_reduce(pair, group=parallel_state.get_data_parallel_group())
    run.timers("evaluate").stop()
    run.timers.log(["evaluate"])
    machine.set_mode(mode)
    return {name: float(pair[0] / pair[1]) for name, pair in sums.items()}
