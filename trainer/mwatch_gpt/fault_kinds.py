# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How each fault is done. Nothing is pretended: see the reason beside each."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mwatch_gpt.fault_spec import Kind

_HALF = 2
_MORE_THAN_ANY_MACHINE_BYTES = 1 << 50


def wait(seconds: float) -> None:
    """Asleep, as in a lock that is never given back; other threads go on."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(left)


def stop(seconds: float) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hold_gil(seconds: float) -> None:
    """ctypes.PyDLL calls C without giving up the GIL: no Python thread of this process runs."""
    sleep = ctypes.PyDLL(None).usleep
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sleep(ctypes.c_uint(min(int(seconds * 1e6), 1_000_000_000)))


def kill(seconds: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exhaust_memory(seconds: float) -> None:
    """Asks torch for more than there is, and lets its own error out."""
    if not torch.cuda.is_available():
        torch.empty(_MORE_THAN_ANY_MACHINE_BYTES, dtype=torch.uint8)
    held = []
    while True:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))


def compute(seconds: float) -> None:
    """Work, not sleep: a slow rank is busy."""
    end = time.monotonic() + seconds
    block = torch.ones(64, 64)
    while time.monotonic() < end:
        block = (block @ block).clamp_(max=1.0)


def poison(model: Any) -> None:
    """One weight is enough: the next gradient is NaN, and after it all weights."""
    with torch.no_grad():
        list(model.parameters())[-1].view(-1)[0] = float("nan")


def die_in_the_middle_of(path: str) -> None:
    """The file is there and too short, the index of the checkpoint is not there at all."""
    with open(path, "wb") as file:
        file.write(os.urandom(4096))
        file.flush()
        os.fsync(file.fileno())
    os.kill(os.getpid(), signal.SIGKILL)


def fill_device_of(path: str) -> None:
    """The kernel itself says ENOSPC for what is written to /dev/full."""
    Path(path).unlink(missing_ok=True)
    os.symlink("/dev/full", path)


def cut_a_shard(folder: Path) -> None:
    shard = max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)
    os.truncate(shard, shard.stat().st_size // _HALF)


SUDDEN: Mapping[Kind, Callable[[float], None]] = {
    Kind.SIGSTOP: stop,
    Kind.GIL: hold_gil,
    Kind.KILL: kill,
    Kind.OOM: exhaust_memory,
}
