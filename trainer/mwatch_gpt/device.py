# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The device of this process, Megatron-core without a GPU, and process groups.

Megatron's optimizer, gradient scaler, data-parallel wrapper and schedules name the device "cuda",
though they run anywhere. Here that name means the CPU; the alternative would be an optimizer of
our own. `prepare` must run before megatron's models are imported.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
from megatron.core.rerun_state_machine import RerunMode, initialize_rerun_state_machine
from torch.overrides import TorchFunctionMode

from mwatch_gpt.console import print_rank_0

_CPU = torch.device("cpu")


class _CudaIsCpu(TorchFunctionMode):  # type: ignore[misc]
    """Reads `device="cuda"`, `device=0` and `tensor.cuda()` as the CPU, in this thread."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            # Megatron sorts parameters by names like torch.cuda.HalfTensor.
            return func(*args).replace("torch.", "torch.cuda.")
        device = kwargs.get("device")
        if isinstance(device, int) or (device is not None and str(device).startswith("cuda")):
            kwargs = {**kwargs, "device": _CPU}
        return func(*args, **kwargs)


@functools.cache
def prepare() -> torch.device:
    """Choose the device and load Megatron for it, once per process."""
    if torch.cuda.is_available():
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        torch.cuda.set_device(rank % torch.cuda.device_count())
        return torch.device("cuda", torch.cuda.current_device())
    # More threads than cores make the ranks of one machine wait for each other.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    _cuda_means_cpu()
    with _no_compiler():
        importlib.import_module("megatron.core.models.gpt")
    return _CPU


def _cuda_means_cpu() -> None:
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    _CudaIsCpu().__enter__()
    torch.cuda.current_device = lambda: rank
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.get_rng_state = lambda *_: torch.empty(0, dtype=torch.uint8)
    torch.cuda.set_rng_state = lambda *_: None


@contextlib.contextmanager
def _no_compiler() -> Iterator[None]:
    """Disable torch.compile: at import Megatron compiles fused kernels, useless on a CPU."""
    compiler = torch.compile

    def unchanged(function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda inner: inner

    torch.compile = unchanged
    try:
        yield
    finally:
        torch.compile = compiler


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
