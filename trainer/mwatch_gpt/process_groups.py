# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Process groups, random seeds and the global state that Megatron-core expects before a model."""

from __future__ import annotations

import argparse
import os
import random
from datetime import timedelta

import numpy
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.rerun_state_machine import RerunMode, initialize_rerun_state_machine

from mwatch_gpt.console import print_rank_0


def initialize(args: argparse.Namespace, device: torch.device) -> None:
    init_num_microbatches_calculator(
        args.rank, None, args.global_batch_size, args.micro_batch_size, args.data_parallel_size
    )
    initialize_rerun_state_machine(mode=RerunMode(args.rerun_mode), **_tracker_functions())
    print_rank_0("> initializing torch distributed ...")
    _join(args, device)
    parallel_state.initialize_model_parallel(
        args.tensor_model_parallel_size, distributed_timeout_minutes=_timeout_seconds(args) / 60
    )
    print_rank_0(f"> initialized tensor model parallel with size {args.tensor_model_parallel_size}")
    print_rank_0("> initialized pipeline model parallel with size 1")
    print_rank_0(f"> setting random seeds to {args.seed} ...")
    random.seed(args.seed)
    numpy.random.seed(args.seed)
    torch.manual_seed(args.seed)
    if device.type == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(args.seed)


def _join(args: argparse.Namespace, device: torch.device) -> None:
    backend = args.distributed_backend or ("nccl" if device.type == "cuda" else "gloo")
    # Without a launcher there are no peers, and no port is needed.
    alone = {} if "MASTER_ADDR" in os.environ else {"store": torch.distributed.HashStore()}
    torch.distributed.init_process_group(
        backend,
        rank=args.rank,
        world_size=args.world_size,
        timeout=timedelta(seconds=_timeout_seconds(args)),
        **alone,
    )


def _timeout_seconds(args: argparse.Namespace) -> float:
    return float(args.distributed_timeout_seconds or 60 * args.distributed_timeout_minutes)


def _tracker_functions() -> dict[str, object]:
    """Save and restore Megatron's per-rank random state when a step is rerun."""
    tracker = tensor_parallel.get_cuda_rng_tracker

    def save() -> dict[str, object]:
        return {"rng_tracker_states": tracker().get_states()}

    def restore(state: dict[str, object]) -> None:
        if state["rng_tracker_states"]:
            tracker().set_states(state["rng_tracker_states"])

    return {"state_save_func": save, "state_restore_func": restore}
