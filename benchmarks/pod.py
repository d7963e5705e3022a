# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the volume of a training pod as wrapper and probes do: 8 ranks, 8 GPUs, a line a second.

`python -m benchmarks.pod FOLDER [LINES_PER_SECOND SECONDS]`; runs until it is killed, or for so
long. The log is rotated as the wrapper does it, by the wrapper's own code.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from mwatch_trainer import contract
from mwatch_trainer.gpu.sampler import put
from mwatch_trainer.output.log_copy import RotatedFile
from mwatch_trainer.probe.record_file import ProbeRecord, pack

RANKS = 8
_LOG_BYTES = 64 << 20
_LINE = (
    " [2026-11-15 09:00:00.000000] iteration {step:8d}/ 9000000 | consumed samples: {step:12d} |"
    " elapsed time per iteration (ms): 1000.0 | learning rate: 1.000000E-04 |"
    " global batch size:     8 | lm loss: 3.000000E+00 | loss scale: 1.0 | grad norm: 1.000 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
_NOISE = "WARNING:megatron.core.rerun_state_machine:step {step} of a loader that has much to say\n"


class Pod:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began = time.monotonic()
        self._log = RotatedFile(str(folder / contract.LOG), _LOG_BYTES)
        self.lines = 0
        for name in (contract.PROBE_FOLDER, contract.NODE_FOLDER):
            (folder / name).mkdir(parents=True, exist_ok=True)
        contract.write_json(str(folder / contract.ATTEMPT), _attempt())

    def second(self, step: int) -> None:
        """What is written once a second."""
        for rank in range(RANKS):
            record = ProbeRecord(
                1, 0, 100 + rank, 1000 + rank, rank, rank, RANKS, step, time.monotonic(),
                time.time(), step, 0, "collective" if step % 2 else "compute", f"{step:08x}",
                "training/training.py:2765 train",
            )  # fmt: skip
            path = self._folder / contract.PROBE_FOLDER / f"{contract.PROBE_PREFIX}{rank}"
            path.write_bytes(pack(record, 2 * step + 2))
        moment = {"at": time.time(), "monotonic": time.monotonic()}
        node = self._folder / contract.NODE_FOLDER
        put(str(node / contract.NODE_PROCESSES), {**moment, "processes": _processes(step)})
        gpus = [_gpu(index) for index in range(RANKS)]
        put(str(node / contract.NODE_GPUS), {**moment, "state": "ok", "reason": None, "gpus": gpus})

    def say(self, count: int, step: int) -> None:
        """An iteration line, and noise for the rest."""
        text = _LINE.format(step=step) + _NOISE.format(step=step) * (count - 1)
        self._log.write(text.encode())
        self.lines += count


def _attempt() -> dict[str, Any]:
    return {
        "attempt": 1, "mode": "observe", "started_at": time.time(), "pid": 99, "host": "bench",
        "node_rank": 0, "nnodes": 1, "argv": ["torchrun", "pretrain_gpt.py"], "changes": [],
        "resume_from": None, "resume_reason": None, "save": None, "exit": None, "final": False,
    }  # fmt: skip


def _processes(step: int) -> list[dict[str, Any]]:
    """Each rank with four data loaders below it."""
    found = []
    for rank in range(RANKS):
        for below in range(5):
            found.append(
                {
                    "pid": 100 + rank + 1000 * below, "ppid": 100 + rank if below else 99,
                    "rank": rank, "is_rank": not below, "name": "python", "state": "R",
                    "cpu_seconds": step * 0.9, "rss_bytes": 4 << 30, "threads": 40,
                    "started": 1000 + rank + below,
                }
            )  # fmt: skip
    return found


def _gpu(index: int) -> dict[str, Any]:
    return {
        "index": index, "uuid": f"GPU-{index:08d}-0000-0000-0000-000000000000",
        "name": "NVIDIA H200", "utilization": 1.0, "memory_used_bytes": 64 << 30,
        "memory_total_bytes": 140 << 30, "power_watts": 600.0 + time.time() % 50,
        "temperature_celsius": 60.0, "sm_clock_hz": 1.98e9, "throttle": [],
        "ecc_uncorrected": 0, "xid": None, "pids": [100 + index], "tensor_active": 0.5,
        "power_limit_watts": 700.0, "ecc_corrected": 0, "pcie_replays": 0,
    }  # fmt: skip


def main() -> None:
    pod = Pod(Path(sys.argv[1]))
    a_second = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else float("inf")
    turns = 10 if a_second > 10 else 1
    began, step = time.monotonic(), 0
    while step / turns < seconds and os.getppid() != 1:
        if step % turns == 0:
            pod.second(step // turns)
        pod.say(a_second // turns, step + 1)
        step += 1
        time.sleep(max(0.0, began + step / turns - time.monotonic()))
    print(pod.lines, flush=True)


if __name__ == "__main__":
    main()
