# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A volume of a pod on the machine's real clocks, written step by step as wrapper and probes do."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mwatch_trainer import contract
from mwatch_trainer.probe.record_file import ProbeRecord, pack
from support.builders.events import megatron_line
from support.builders.volume import gpu, process


class LiveVolume:
    def __init__(self, path: Path, ranks: int = 2) -> None:
        self.path = path
        self._ranks = ranks
        self._ticks = 0
        path.mkdir(exist_ok=True)

    def start(self, attempt: int = 1, **change: Any) -> None:
        usual: dict[str, Any] = {
            "attempt": attempt, "mode": "observe", "started_at": time.time(), "pid": 10,
            "host": "node-a", "node_rank": 0, "nnodes": 1, "argv": ["torchrun", "pretrain_gpt.py"],
            "changes": [], "resume_from": None, "resume_reason": None, "save": None, "exit": None,
            "final": False,
        }  # fmt: skip
        contract.write_json(str(self.path / contract.ATTEMPT), usual | change)

    def second(self, iteration: int, *, attempt: int = 1, silent: tuple[int, ...] = ()) -> None:
        """What is written once a second: a record of each rank, processes and GPUs."""
        self._ticks += 1
        folder = self.path / contract.PROBE_FOLDER
        folder.mkdir(exist_ok=True)
        for rank in range(self._ranks):
            if rank in silent:
                continue
            record = ProbeRecord(
                attempt, 0, 11 + rank, 1011 + rank, rank, rank, self._ranks, iteration,
                time.monotonic(), time.time(), self._ticks, 0, "compute", f"{self._ticks:08x}", "x",
            )  # fmt: skip
            file = folder / f"{contract.PROBE_PREFIX}{rank}"
            file.write_bytes(pack(record, 2 * self._ticks))
        self._node(silent)

    def beat(self, iteration: int, rank: int, world: int, *, attempt: int = 1) -> None:
        """One rank of a job of several pods."""
        self._ticks += 1
        folder = self.path / contract.PROBE_FOLDER
        folder.mkdir(exist_ok=True)
        record = ProbeRecord(
            attempt, 0, 11 + rank, 1011 + rank, rank, 0, world, iteration, time.monotonic(),
            time.time(), self._ticks, 0, "compute", f"{self._ticks:08x}", "x",
        )  # fmt: skip
        file = folder / f"{contract.PROBE_PREFIX}{rank}"
        file.write_bytes(pack(record, 2 * self._ticks))

    def say(self, *iterations: int) -> None:
        self.print(*(megatron_line(each) for each in iterations))

    def print(self, *lines: str) -> None:
        with (self.path / contract.LOG).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def _node(self, stopped: tuple[int, ...]) -> None:
        folder = self.path / contract.NODE_FOLDER
        folder.mkdir(exist_ok=True)
        moment = {"at": time.time(), "monotonic": time.monotonic()}
        processes = [
            process(11 + rank, rank=rank, state="T" if rank in stopped else "R")
            for rank in range(self._ranks)
        ]
        gpus = [gpu(rank, pids=[11 + rank]) for rank in range(self._ranks)]
        contract.write_json(
            str(folder / contract.NODE_PROCESSES), {**moment, "processes": processes}
        )
        contract.write_json(
            str(folder / contract.NODE_GPUS),
            {**moment, "state": "ok", "reason": None, "driver": "580.1", "gpus": gpus},
        )
