# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One run from start to end: build, load, train, evaluate, save, exit.

Functions have Megatron's names, so that stacks look the same. The device must be prepared before
this module is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.rerun_state_machine import RerunMode, get_rerun_state_machine
from megatron.core.timers import Timers

from mwatch_gpt import builders, progress
from mwatch_gpt.checkpointing import load_checkpoint, save_checkpoint
from mwatch_gpt.console import (
    ProgressLog,
    StepResult,
    TrainingLog,
    flops_of_one_iteration,
    open_writer,
    print_arguments,
    print_datetime,
    print_rank_0,
    print_rank_last,
    set_up_logging,
)
from mwatch_gpt.faults import Injector
from mwatch_gpt.run_state import RunState, SignalFlag

_LARGEST_EXPONENT = 20


def train(run: RunState, train_data: Any, valid_data: Any, writer: Any, started: float) -> None:
    args, timers = run.args, run.timers
    log = TrainingLog(args, timers, writer)
    run.model.train()
    get_rerun_state_machine().current_iteration = run.iteration
    timers("interval-time", log_level=0).start(barrier=True)
    print_datetime("before the start of training step", torch.distributed.barrier)
    progress.phase = "first-step"
    is_first = True
    while run.iteration < args.train_iters:
        run.saves.finish(blocking=False)
        if run.iteration in args.iterations_to_skip:
            _pass_over(run, train_data)
            continue
        began = time.monotonic()
        step = train_step(run, train_data, is_first=is_first)
        # Sleep as a CPU idles while a GPU works, because other processes need the cores.
        time.sleep(max(0.0, began + args.min_step_seconds - time.monotonic()))
        _count(run)
        progress.phase = "training"
        log.record(step, run.iteration, is_first=is_first)
        is_first = False
        if args.eval_iters and valid_data and run.iteration % args.eval_interval == 0:
            with _untimed(run):
                prefix = f"iteration {run.iteration}"
                evaluate_and_print_results(run, prefix, valid_data, writer)
        if (code := _checkpoint_and_decide_exit(run, started)) is not None:
            _leave(run, code)
    run.saves.finish(blocking=True)
    if writer:
        writer.flush()


def train_step(run: RunState, data_iterator: Any, *, is_first: bool) -> StepResult:
    args = run.args
    number = run.iteration + 1
    if is_first:
        run.faults.first_step(number)
    run.faults.before_step(number, run.model)
    machine = get_rerun_state_machine()
    while machine.should_run_forward_backward(data_iterator):
        run.model.zero_grad_buffer()
        run.optimizer.zero_grad()
        reports = pass_batch(run, data_iterator, forward_only=False)
    should_save, should_exit, code = machine.should_checkpoint_and_exit()
    if should_save and args.save:
        _save_and_time(run, data_iterator)
    if should_exit:
        _leave(run, code)
    run.timers("optimizer", log_level=1).start()
    is_updated, grad_norm, zeros = run.optimizer.step()
    run.timers("optimizer").stop()
    if is_updated:
        run.schedule.step(increment=args.global_batch_size)
    return StepResult(
        losses=_mean_losses(reports),
        learning_rate=run.optimizer.param_groups[0]["lr"],
        loss_scale=float(run.optimizer.get_loss_scale()),
        grad_norm=grad_norm,
        num_zeros=zeros,
        params_norm=_params_norm(run) if args.log_params_norm else None,
        is_skipped=not is_updated,
    )


def _mean_losses(reports: list[dict[str, Any]]) -> dict[str, float]:
    means = {}
    for name in reports[0]:
        pair = torch.vstack([report[name] for report in reports]).sum(dim=0)
        torch.distributed.all_reduce(pair, group=parallel_state.get_data_parallel_group())
        means[name] = float(pair[0] / pair[1])
    return means


def _params_norm(run: RunState) -> float:
    squares = torch.zeros(1, device=torch.cuda.current_device())
    for parameter in run.bare_model.parameters():
        if tensor_parallel.layers.param_is_not_tensor_parallel_duplicate(parameter):
            squares += parameter.detach().float().pow(2).sum()
    group = parallel_state.get_tensor_model_parallel_group()
    torch.distributed.all_reduce(squares, group=group)
    return float(squares.sqrt())


def _count(run: RunState) -> None:
    run.iteration += 1
    run.args.consumed_train_samples += run.args.global_batch_size
    run.flops += run.args.flops_per_iteration
    progress.iteration = run.iteration


def _pass_over(run: RunState, train_data: Any) -> None:
    """Consume the data of `--iterations-to-skip` without training or printing."""
    for _ in range(run.microbatches):
        get_batch(train_data)
    train_data.advance()
    run.args.skipped_train_samples += run.args.global_batch_size
    _count(run)


@contextlib.contextmanager
def _untimed(run: RunState) -> Iterator[None]:
    run.timers("interval-time").stop()
    yield
    run.timers("interval-time", log_level=0).start(barrier=True)


def _save_and_time(run: RunState, data_iterator: Any = None) -> None:
    with _untimed(run):
        run.timers("save-checkpoint", log_level=0).start(barrier=True)
        save_checkpoint(run, data_iterator)
        run.timers("save-checkpoint").stop(barrier=True)
        run.timers.log(["save-checkpoint"])
        samples = run.args.consumed_train_samples
        run.progress_log.saved(run.iteration, run.flops, samples, is_async=run.args.async_save)


def _checkpoint_and_decide_exit(run: RunState, started: float) -> int | None:
    """Save if due; return the exit code if this was the process's last iteration."""
    args, iteration = run.args, run.iteration
    reason = None
    if args.exit_signal_handler and run.signal_flag.is_raised_anywhere():
        reason = "exiting program after receiving SIGTERM."
    elif args.exit_duration_in_mins and _is_time_over(args.exit_duration_in_mins, started):
        reason = f"exiting program after {(time.time() - started) / 60.0} minutes"
    elif args.exit_interval and iteration % args.exit_interval == 0:
        reason = f"exiting program at iteration {iteration}"
    code = run.faults.exit_code(iteration)
    is_due = args.save_interval and iteration % args.save_interval == 0
    if args.save and (is_due or reason or code):
        _save_and_time(run)
    if reason:
        print_datetime(reason, torch.distributed.barrier)
        return 0
    return code


def _is_time_over(minutes: float, started: float) -> bool:
    is_over = int((time.time() - started) / 60.0 > minutes)
    answer = torch.tensor([is_over], device=torch.cuda.current_device())
    torch.distributed.all_reduce(answer, op=torch.distributed.ReduceOp.MAX)
    return bool(answer.item())


def _leave(run: RunState, code: int) -> None:
    run.saves.finish(blocking=True)
    torch.distributed.destroy_process_group()
    sys.exit(code)


class ForwardStep:
    def __init__(self, run: RunState) -> None:
        self._run = run
        self._factor = run.faults.loss_factor()

    def __call__(self, data_iterator: Any, model: Any) -> tuple[Any, Any]:
        batch = get_batch(data_iterator)
        mask = batch["loss_mask"]
        losses = model(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
        return losses, partial(self._loss, mask)

    def _loss(self, mask: Any, losses: Any) -> tuple[Any, Any, dict[str, Any]]:
        """Return the summed loss to differentiate, its number of tokens, and the pair to report."""
        total = torch.sum(losses.view(-1).float() * mask.view(-1).float())
        count = mask.sum().detach().to(torch.int)
        if self._run.args.check_for_nan_in_loss_and_grad and torch.is_grad_enabled():
            _validate(total)
        report = torch.stack([total.detach(), count.to(total.dtype)])
        return total * self._factor, count, {"lm loss": report}


def pass_batch(run: RunState, data_iterator: Any, *, forward_only: bool) -> Any:
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
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def _validate(loss: Any) -> None:
    """Apply Megatron's guard against a NaN or infinite loss: rerun, then save and exit."""
    for name, is_rejected in (("NaN", torch.isnan), ("Inf", torch.isinf)):
        get_rerun_state_machine().validate_result(
            result=loss,
            rejection_func=is_rejected,
            message=f"found {name} in local forward loss calculation",
            tolerance=0.0,
            fatal=True,
        )


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


def pretrain(args: argparse.Namespace, device: torch.device, started: float) -> None:
    """Build, load, train, evaluate, save and exit. `started`: epoch seconds at process start."""
    builders.check_implementation(args, device)
    flag = SignalFlag()
    if args.exit_signal_handler:
        flag.listen()
    set_up_logging(args)
    print_arguments(args)
    builders.initialize(args, device)
    print_rank_0(f"time to initialize megatron (seconds): {time.time() - started:.3f}")
    print_datetime("after megatron is initialized", torch.distributed.barrier)
    timers = Timers(args.timing_log_level, args.timing_log_option)
    timers("model-and-optimizer-setup", log_level=0).start(barrier=True)
    run = _set_up(args, device, timers, flag)
    timers("model-and-optimizer-setup").stop()
    print_datetime(
        "after model, optimizer, and learning rate scheduler are built", torch.distributed.barrier
    )
    timers("train/valid/test-data-iterators-setup", log_level=0).start(barrier=True)
    train_data, valid_data, test_data = builders.build_iterators(args, run.faults.before_sample)
    timers("train/valid/test-data-iterators-setup").stop()
    print_datetime("after dataloaders are built", torch.distributed.barrier)
    print_rank_0("done with setup ...")
    timers.log(["model-and-optimizer-setup", "train/valid/test-data-iterators-setup"], barrier=True)
    if args.skip_train:
        print_rank_0("skipping training (--skip-train is on) ...")
    else:
        print_rank_0("training ...")
        train(run, train_data, valid_data, open_writer(args), started)
        print_datetime("after training is done", torch.distributed.barrier)
        if args.save and run.iteration and run.saved_at != run.iteration:
            save_checkpoint(run)
            run.saves.finish(blocking=True)
    for name, data in (("validation", valid_data), ("test", test_data)):
        if data is not None and args.eval_iters:
            where = f"iteration {run.iteration} on {name} set"
            evaluate_and_print_results(run, where, data, is_verbose=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _set_up(
    args: argparse.Namespace, device: torch.device, timers: Any, flag: SignalFlag
) -> RunState:
    built, config = builders.build_model(args, device)
    optimizer, schedule = builders.build_optimizer(args, built)
    run = RunState(
        args, built, config, optimizer, schedule, timers, Injector(args), ProgressLog(args), flag
    )
    weights = sum(parameter.nelement() for parameter in run.bare_model.parameters())
    args.flops_per_iteration = flops_of_one_iteration(
        args, weights * args.tensor_model_parallel_size
    )
    config.timers = timers
    config.grad_scale_func = optimizer.scale_loss

    def join_gradients(*arguments: Any, **options: Any) -> None:
        run.faults.before_collective(run.iteration + 1)
        finalize_model_grads(*arguments, **options)

    config.finalize_model_grads_func = join_gradients
    if args.load or args.pretrained_checkpoint:
        timers("load-checkpoint", log_level=0).start(barrier=True)
        load_checkpoint(run)
        timers("load-checkpoint").stop(barrier=True)
        timers.log(["load-checkpoint"])
    progress.iteration = run.iteration
    run.progress_log.begin(run.flops)
    return run
