# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Chooses this process's device and makes Megatron-core run without a GPU.

Megatron's optimizer, gradient scaler, data-parallel wrapper and schedules hard-code the device
"cuda", though they run anywhere. Without a GPU, that name is mapped to the CPU; the alternative
would be our own optimizer. `prepare` must run before any part of megatron is imported, so this
module imports none at its top level.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class _CudaIsCpu(TorchFunctionMode):  # type: ignore[misc]
    """Maps `device="cuda"`, `device=0` and `tensor.cuda()` to the CPU, in this thread."""

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
            # Megatron sorts parameters by type names such as torch.cuda.HalfTensor.
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
    # With more threads than cores, the ranks of one machine would wait for each other.
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
    """Disable torch.compile: on import Megatron compiles fused kernels, which a CPU cannot use."""
    compiler = torch.compile

    def unchanged(function: Any = None, **_: Any) -> Any:
        return function if function is not None else lambda inner: inner

    torch.compile = unchanged
    try:
        yield
    finally:
        torch.compile = compiler
