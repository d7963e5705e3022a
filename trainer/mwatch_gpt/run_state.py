# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The state of one training run: its components, asynchronous saves, and the SIGTERM flag."""

from __future__ import annotations

import argparse
import signal
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

from mwatch_gpt.console import ProgressLog
from mwatch_gpt.faults import Injector


class AsyncSaves:
    """Checkpoints written while training continues (`--async-save`).

    The state is copied immediately and written by a thread. The checkpoint becomes valid only when
    every rank has written: the ranks agree on that at the start of each iteration, as in Megatron.
    """

    def __init__(self) -> None:
        self._running: deque[tuple[threading.Thread, Any]] = deque()

    @property
    def is_idle(self) -> bool:
        return not self._running

    def start(self, request: Any) -> None:
        arguments = list(request.async_fn_args)
        if request.async_fn is not None:
            arguments[1] = [_copied(bucket) for bucket in request.preload_fn()]
        work = request.async_fn or (lambda: None)
        thread = threading.Thread(target=work, args=arguments, name="async-save", daemon=True)
        thread.start()
        self._running.append((thread, request))

    def finish(self, *, blocking: bool) -> None:
        """Finalize the saves that all ranks have written, oldest first. Every rank must call it."""
        while self._running:
            thread, request = self._running[0]
            if blocking:
                thread.join()
            if not blocking and not _all_agree(not thread.is_alive()):
                return
            self._running.popleft()
            for finalize in request.finalize_fns:
                finalize()


def _all_agree(mine: bool) -> bool:
    answer = torch.tensor([int(mine)], dtype=torch.int, device=torch.cuda.current_device())
    torch.distributed.all_reduce(answer, op=torch.distributed.ReduceOp.MIN)
    return bool(answer.item())


def _copied(bucket: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy the bucket: without a GPU it refers to the weights, which the next step changes."""
    path, key, (objects, tensors) = bucket
    return path, key, (objects, [(item, tensor.clone()) for item, tensor in tensors])


class SignalFlag:
    """SIGTERM as a request to exit; any rank's flag applies to all (`--exit-signal-handler`)."""

    def __init__(self) -> None:
        self._received = False

    def listen(self) -> None:
        def note(number: int, frame: Any) -> None:
            self._received = True

        signal.signal(signal.SIGTERM, note)

    def is_raised_anywhere(self) -> bool:
        """Whether any rank got the signal. Every rank must call it, so that all exit together."""
        flag = torch.tensor([int(self._received)], device=torch.cuda.current_device())
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        return bool(flag.item())


@dataclass(slots=True)
class RunState:
    args: argparse.Namespace
    model: Any  # wrapped for data parallelism
    config: Any
    optimizer: Any
    schedule: Any
    timers: Any
    faults: Injector
    progress_log: ProgressLog
    signal_flag: SignalFlag
    saves: AsyncSaves = field(default_factory=AsyncSaves)
    iteration: int = 0  # number of finished iterations
    flops: float = 0.0  # sum over all attempts

    saved_at: int | None = None  # iteration of this process's last save

    @property
    def microbatches(self) -> int:
        args = self.args
        together: int = args.micro_batch_size * args.data_parallel_size
        return int(args.global_batch_size // together)

    @property
    def bare_model(self) -> Any:
        inner = self.model.module
        return inner.module if hasattr(inner, "module") else inner
