# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are written while the training goes on (`--async-save`).

A copy of the state is taken at once; a thread writes it. The checkpoint counts only when every rank
has written: they agree on that at the start of each iteration, as Megatron's ranks do.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, NamedTuple

import torch


class _Running(NamedTuple):
    thread: threading.Thread
    request: Any


class AsyncSaves:
    def __init__(self) -> None:
        self._running: deque[_Running] = deque()

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
        self._running.append(_Running(thread, request))

    def finish(self, *, blocking: bool) -> None:
        """Completes what all ranks have written, oldest first. Every rank must call this."""
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
    """Without a GPU the bucket holds the weights themselves, and the next step changes them."""
    path, key, (objects, tensors) = bucket
    return path, key, (objects, [(item, tensor.clone()) for item, tensor in tensors])
