# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""From start to end: build, load, train, evaluate, save, leave.

The device must be prepared before this module is imported.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.timers import Timers

from mwatch_gpt import datasets, model, parallel, progress
from mwatch_gpt.checkpointing import load_checkpoint, save_checkpoint
from mwatch_gpt.console import print_arguments, print_datetime, print_rank_0, set_up_logging
from mwatch_gpt.evaluation import evaluate_and_print_results
from mwatch_gpt.faults import Injector
from mwatch_gpt.progress_log import ProgressLog
from mwatch_gpt.run_state import RunState
from mwatch_gpt.signals import SignalFlag
from mwatch_gpt.tensorboard import open_writer
from mwatch_gpt.training import train
from mwatch_gpt.training_log import flops_of_one_iteration


def pretrain(args: argparse.Namespace, device: torch.device, started: float) -> None:
    """`started`: when the process began, in seconds since the epoch."""
    model.refuse_what_is_not_there(args, device)
    flag = SignalFlag()
    if args.exit_signal_handler:
        flag.listen()
    set_up_logging(args)
    print_arguments(args)
    parallel.initialize(args, device)
    print_rank_0(f"time to initialize megatron (seconds): {time.time() - started:.3f}")
    print_datetime("after megatron is initialized")
    timers = Timers(args.timing_log_level, args.timing_log_option)
    timers("model-and-optimizer-setup", log_level=0).start(barrier=True)
    run = _set_up(args, device, timers, flag)
    timers("model-and-optimizer-setup").stop()
    print_datetime("after model, optimizer, and learning rate scheduler are built")
    timers("train/valid/test-data-iterators-setup", log_level=0).start(barrier=True)
    train_data, valid_data, test_data = datasets.build_iterators(args, run.faults.before_sample)
    timers("train/valid/test-data-iterators-setup").stop()
    print_datetime("after dataloaders are built")
    print_rank_0("done with setup ...")
    timers.log(["model-and-optimizer-setup", "train/valid/test-data-iterators-setup"], barrier=True)
    if args.skip_train:
        print_rank_0("skipping training (--skip-train is on) ...")
    else:
        print_rank_0("training ...")
        train(run, train_data, valid_data, open_writer(args), started)
        print_datetime("after training is done")
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
    built, config = model.build_model(args, device)
    optimizer, schedule = model.build_optimizer(args, built)
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
