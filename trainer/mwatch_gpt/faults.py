# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Injects the requested faults, each once in the lifetime of a job, by actually causing them.

NaN, overflow and slowness last until the process ends, since only a restart fixes them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from mwatch_gpt.fault_spec import FaultSchedule, Kind

_HALF = 2
_MORE_THAN_ANY_MACHINE_BYTES = 1 << 50


def hold_gil(seconds: float) -> None:
    """Block every Python thread: ctypes.PyDLL calls C without releasing the GIL."""
    sleep = ctypes.PyDLL(None).usleep
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sleep(ctypes.c_uint(min(int(seconds * 1e6), 1_000_000_000)))


def exhaust_memory(seconds: float) -> None:
    if not torch.cuda.is_available():
        torch.empty(_MORE_THAN_ANY_MACHINE_BYTES, dtype=torch.uint8)
    held = []
    while True:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))


def compute(seconds: float) -> None:
    """Compute instead of sleeping, because a slow rank is busy."""
    end = time.monotonic() + seconds
    block = torch.ones(64, 64)
    while time.monotonic() < end:
        block = (block @ block).clamp_(max=1.0)


def poison(model: Any) -> None:
    """Set one weight to NaN: the next gradients are NaN, and then all weights."""
    with torch.no_grad():
        list(model.parameters())[-1].view(-1)[0] = float("nan")


def die_in_the_middle_of(path: str) -> None:
    """Kill this process with the file partially written and the checkpoint without its index."""
    with open(path, "wb") as file:
        file.write(os.urandom(4096))
        file.flush()
        os.fsync(file.fileno())
    os.kill(os.getpid(), signal.SIGKILL)


def fill_device_of(path: str) -> None:
    """Make the kernel return ENOSPC by linking the path to /dev/full."""
    Path(path).unlink(missing_ok=True)
    os.symlink("/dev/full", path)


def cut_a_shard(folder: Path) -> None:
    shard = max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)
    os.truncate(shard, shard.stat().st_size // _HALF)


SUDDEN: Mapping[Kind, Callable[[float], None]] = {
    Kind.SIGSTOP: lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    Kind.GIL: hold_gil,
    Kind.KILL: lambda _: os.kill(os.getpid(), signal.SIGKILL),
    Kind.OOM: exhaust_memory,
}


_OVERFLOW = 2.0**60  # overflows half precision at every loss scale


class Injector(FaultSchedule):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self._batch = args.global_batch_size

    def before_sample(self, number: int) -> None:
        """Called by the data loader, with the sample's number because workers prefetch."""
        self._wait_if_due(Kind.DATA, number // self._batch + 1)

    def first_step(self, step: int) -> None:
        self._wait_if_due(Kind.HANG_FIRST_STEP, step)

    def before_step(self, step: int, model: Any) -> None:
        for kind, act in SUDDEN.items():
            if fault := self.take(kind, step):
                act(fault.lasts_seconds)
        if self.take(Kind.NAN, step):
            poison(model)
        self.take(Kind.LOSS_SCALE_COLLAPSE, step)
        self.take(Kind.SLOW, step)
        for fault in self.begun:
            if fault.kind is Kind.SLOW:
                compute(fault.lasts_seconds)

    def before_collective(self, step: int) -> None:
        self._wait_if_due(Kind.HANG_COLLECTIVE, step)

    def loss_factor(self) -> float:
        collapses = any(fault.kind is Kind.LOSS_SCALE_COLLAPSE for fault in self.begun)
        return _OVERFLOW if collapses else 1.0

    def in_evaluation(self, step: int) -> None:
        self._wait_if_due(Kind.HANG_EVAL, step)

    @contextlib.contextmanager
    def writing(self, path: str, step: int) -> Iterator[None]:
        self._wait_if_due(Kind.HANG_SAVE, step)
        if self.take(Kind.HALF_CHECKPOINT, step):
            die_in_the_middle_of(path)
        is_full = self.take(Kind.DISK_FULL, step) is not None
        if is_full:
            fill_device_of(path)
        try:
            yield
        finally:
            if is_full:
                Path(path).unlink(missing_ok=True)

    def saved(self, folder: Path, step: int) -> None:
        if self.take(Kind.CORRUPT_CHECKPOINT, step):
            cut_a_shard(folder)

    def exit_code(self, step: int) -> int | None:
        if self.take(Kind.EXIT_16, step):
            return 16
        return 0 if self.take(Kind.EXIT_0, step) else None

    def _wait_if_due(self, kind: Kind, step: int) -> None:
        """Sleep if the fault is due, like waiting for a lock; other threads continue."""
        if fault := self.take(kind, step):
            time.sleep(fault.lasts_seconds)
