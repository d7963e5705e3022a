# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluation between and after the training, and the lines that it prints.

One forward pass: a batch from the data loader, through the model, to the loss.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine

from mwatch_gpt import progress
from mwatch_gpt.console import print_rank_0, print_rank_last
from mwatch_gpt.run_state import RunState


class ForwardStep:
    """What Megatron's schedule calls for each micro-batch."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._factor = run.faults.loss_factor()

    def __call__(self, data_iterator: Any, model: Any) -> tuple[Any, Any]:
        batch = get_batch(data_iterator)
        mask = batch["loss_mask"]
        losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
        return losses, partial(self._loss, mask)

    def _loss(self, mask: Any, losses: Any) -> tuple[Any, Any, dict[str, Any]]:
        """The sum to differentiate, its number of tokens, and the pair to report."""
        total = torch.sum(losses.view(-1).float() * mask.view(-1).float())
        count = mask.sum().detach().to(torch.int)
        if self._run.args.check_for_nan_in_loss_and_grad and torch.is_grad_enabled():
            _validate(total)
        report = torch.stack([total.detach(), count.to(total.dtype)])
        return total * self._factor, count, {"lm loss": report}


def pass_batch(run: RunState, data_iterator: Any, *, forward_only: bool) -> Any:
    """One global batch through Megatron's schedule."""
    return get_forward_backward_func()(
        forward_step_func=ForwardStep(run),
        data_iterator=data_iterator,
        model=[run.model],
        num_microbatches=run.microbatches,
        seq_length=run.args.seq_length,
        micro_batch_size=run.args.micro_batch_size,
        forward_only=forward_only,
    )


def get_batch(data_iterator: Any) -> dict[str, Any]:
    batch = next(data_iterator)
    return {name: value.to(_device(), non_blocking=True) for name, value in batch.items()}


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _validate(loss: Any) -> None:
    """Megatron's guard against a loss that is no number: run again, then save and leave."""
    for name, is_rejected in (("NaN", torch.isnan), ("Inf", torch.isinf)):
        get_rerun_state_machine().validate_result(
            result=loss,
            rejection_func=is_rejected,
            message=f"found {name} in local forward loss calculation",
            tolerance=0.0,
            fatal=True,
        )


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
