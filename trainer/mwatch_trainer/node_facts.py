# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A process beside the trainer that writes once a second what /proc and NVML show.

A sidecar often sees neither the trainer's processes nor the GPUs; this one does, for it is inside
the training container. It is nice, ends with the wrapper, and looks less often where a look is
dear. A GPU driver that hangs holds only the GPUs' thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from typing import Any, Callable, Mapping, Sequence

from mwatch_trainer import contract, processes
from mwatch_trainer.gpus import Gpus
from mwatch_trainer.linux import die_with_parent
from mwatch_trainer.processes import Process, Ranks

EVERY_SECONDS = 1.0
_LONGEST_SECONDS = 30.0
_SHARE = 0.02
_OWN = (b"mwatch_trainer.pump", b"mwatch_trainer.node_facts")


class ProcessFacts:
    """Of everything below the wrapper but mwatch's own processes."""

    def __init__(self, wrapper: int, proc: str = "/proc") -> None:
        self._wrapper, self._proc = wrapper, proc
        self._ranks = Ranks(proc)

    def sample(self) -> dict[str, Any]:
        known = processes.everything(self._proc)
        own = [each.pid for each in known.values() if self._is_own(each)]
        below = processes.descendants(self._wrapper, known, without=own)
        below = below[: processes.MAX_PROCESSES]
        ranks = self._ranks.of(below)
        return {
            "at": time.time(),
            "monotonic": time.monotonic(),
            "processes": [_described(each, *ranks[each.pid]) for each in below],
        }

    def _is_own(self, process: Process) -> bool:
        if process.ppid != self._wrapper:
            return False
        try:
            with open(f"{self._proc}/{process.pid}/cmdline", "rb") as file:
                words = file.read(4096).split(b"\0")
        except OSError:
            return False
        return any(each in words for each in _OWN)


def _described(process: Process, rank: int | None, is_rank: bool) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "ppid": process.ppid,
        "rank": rank,
        "is_rank": is_rank,
        "name": process.name,
        "state": process.state,
        "cpu_seconds": process.cpu_seconds,
        "rss_bytes": process.rss_bytes,
        "threads": process.threads,
        "started": process.started,
    }


def put(path: str, document: Mapping[str, Any]) -> None:
    """In one step, but not forced to the disk: it is replaced a second later. Raises OSError."""
    text = json.dumps({"version": contract.VERSION, **document})
    if len(text) > contract.MAX_JSON_BYTES:
        raise OSError(f"{len(text)} bytes are too many")
    temporary = path + ".tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    os.replace(temporary, path)


def keep_sampling(sample: Callable[[], Mapping[str, Any]], path: str) -> None:
    """For ever; a disk that is full leaves the file as old as it is, which its reader sees."""
    while True:
        began, cpu = time.monotonic(), time.thread_time()
        with contextlib.suppress(OSError):
            put(path, sample())
        cost = time.thread_time() - cpu
        pause = min(max(EVERY_SECONDS, cost / _SHARE), _LONGEST_SECONDS)
        time.sleep(max(pause - (time.monotonic() - began), 0.1))


def main(arguments: Sequence[str]) -> None:
    """DIRECTORY WRAPPER-PID"""
    directory, wrapper = arguments[0], int(arguments[1])
    die_with_parent(signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(10)
    folder = os.path.join(directory, contract.NODE_FOLDER)
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    works = (
        (ProcessFacts(wrapper).sample, contract.NODE_PROCESSES),
        (_gpu_sample(), contract.NODE_GPUS),
    )
    for sample, name in works:
        path = os.path.join(folder, name)
        threading.Thread(target=keep_sampling, args=(sample, path), daemon=True).start()
    while os.getppid() == wrapper:  # also where the kernel does not tell us of its end
        time.sleep(EVERY_SECONDS)


def _gpu_sample() -> Callable[[], Mapping[str, Any]]:
    """Starts NVML at the first call, in the thread that may hang."""
    found: list[Gpus] = []

    def sample() -> Mapping[str, Any]:
        if not found:
            found.append(Gpus())
        return found[0].sample()

    return sample
