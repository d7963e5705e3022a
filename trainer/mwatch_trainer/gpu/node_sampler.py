# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A helper process that samples /proc and NVML once a second inside the training container.

A sidecar often sees neither the trainer's processes nor the GPUs. It runs nice, ends with the
wrapper, and samples less often where that is expensive. A GPU driver that hangs blocks only the
GPUs' thread, and another thread reports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from typing import Any, Callable, Mapping, Sequence

from mwatch_trainer import contract
from mwatch_trainer.gpu.sampler import FAILED, GpuSampler, document
from mwatch_trainer.linux import die_with_parent
from mwatch_trainer.processes import proc as processes
from mwatch_trainer.processes.proc import Process, Ranks

EVERY_SECONDS = 1.0
_LONGEST_SECONDS = 30.0
_SHARE = 0.02
_SILENT_SECONDS = 10.0
"""Sampling eight GPUs takes 20 ms; the slowest call ever measured took 20 ms more."""
_OWN = tuple(
    b"mwatch_trainer." + each for each in (b"output.pump", b"gpu.node_sampler", b"evidence.offload")
)


class ProcessFacts:
    """All processes below the wrapper but mwatch's own."""

    def __init__(self, wrapper: int, proc: str = "/proc") -> None:
        self._wrapper, self._proc = wrapper, proc
        self._ranks = Ranks(proc)

    def sample(self) -> dict[str, Any]:
        known = processes.all_processes(self._proc)
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
                arguments = file.read(4096).split(b"\0")
        except OSError:
            return False
        return any(each in arguments for each in _OWN)


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


def put(path: str, facts: Mapping[str, Any], *, by: str = "") -> None:
    """Write atomically but unsynced: it is replaced a second later. Raises OSError.

    `by` tells apart the unfinished files of two threads that write the same path.
    """
    text = json.dumps({"version": contract.VERSION, **facts})
    if len(text) > contract.MAX_JSON_BYTES:
        raise OSError(f"{len(text)} bytes are too many")
    contract.replace_file(path, f"{text}\n".encode(), temporary=f"{path}{by}.tmp")


def keep_sampling(sample: Callable[[], Mapping[str, Any]], path: str) -> None:
    """Sample forever; on a full disk the file stays old, which its reader notices."""
    while True:
        began, cpu = time.monotonic(), time.thread_time()
        with contextlib.suppress(OSError):
            put(path, sample())
        cost = time.thread_time() - cpu
        pause = min(max(EVERY_SECONDS, cost / _SHARE), _LONGEST_SECONDS)
        time.sleep(max(pause - (time.monotonic() - began), 0.1))


def report_hang(waiting_seconds: Callable[[], float], path: str) -> bool:
    """Write that NVML hangs, in place of the GPUs' thread; return whether it does."""
    waited = waiting_seconds()
    if waited <= _SILENT_SECONDS:
        return False
    reason = f"NVML has not answered for {waited:.0f} s"
    with contextlib.suppress(OSError):
        put(path, document(FAILED, reason, None, []), by=".silent")
    return True


def keep_reporting_hangs(waiting_seconds: Callable[[], float], path: str) -> None:
    while True:
        time.sleep(EVERY_SECONDS)
        report_hang(waiting_seconds, path)


def main(arguments: Sequence[str]) -> None:
    """Run the sampler: DIRECTORY WRAPPER-PID."""
    directory, wrapper = arguments[0], int(arguments[1])
    die_with_parent(signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(10)
    folder = os.path.join(directory, contract.NODE_FOLDER)
    with contextlib.suppress(OSError):
        os.makedirs(folder, exist_ok=True)
    gpus = GpuSampler()
    of_processes = os.path.join(folder, contract.NODE_PROCESSES)
    of_gpus = os.path.join(folder, contract.NODE_GPUS)
    _start(keep_sampling, ProcessFacts(wrapper).sample, of_processes)
    _start(keep_sampling, gpus.sample, of_gpus)
    _start(keep_reporting_hangs, gpus.waiting_seconds, of_gpus)
    while os.getppid() == wrapper:  # prctl may have failed
        time.sleep(EVERY_SECONDS)


def _start(work: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=work, args=arguments, daemon=True).start()
