# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One forward pass: a batch from the data loader, through the model, to the loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.rerun_state_machine import get_rerun_state_machine

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
