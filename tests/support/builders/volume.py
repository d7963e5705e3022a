# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a shared volume, as the wrapper and the probe write them, built by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mwatch_trainer import contract
from mwatch_trainer.probe.record_file import ProbeRecord, pack

WALL = 1_700_000_000.0
"""Wall time of the moment that the monotonic clock says 0."""


class ManualClock:
    """A monotonic clock that stands still until it is told."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL + self.now


def process(pid: int, rank: int | None = None, **change: Any) -> dict[str, Any]:
    """A rank's main process, or (without a rank) the launcher above it."""
    usual: dict[str, Any] = {
        "pid": pid,
        "ppid": 1 if rank is None else 10,
        "rank": rank,
        "is_rank": rank is not None,
        "name": "python",
        "state": "S",
        "cpu_seconds": 0.0,
        "rss_bytes": 1 << 30,
        "threads": 30,
        "started": 1000 + pid,
    }
    return usual | change


def write_processes(volume: Path, at: float, *processes: dict[str, Any]) -> None:
    _write_node(volume, contract.NODE_PROCESSES, at, {"processes": list(processes)})


def gpu(index: int = 0, **change: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H200",
        "utilization": 1.0,
        "memory_used_bytes": 64 << 30,
        "memory_total_bytes": 140 << 30,
        "power_watts": 600.0,
        "temperature_celsius": 60.0,
        "sm_clock_hz": 1.98e9,
        "throttle": [],
        "ecc_uncorrected": 0,
        "xid": None,
        "pids": [],
    }
    return usual | change


def write_gpus(volume: Path, at: float, *gpus: dict[str, Any], **more: Any) -> None:
    body = {"state": "ok", "reason": None, "driver": "580.1", "gpus": list(gpus)} | more
    _write_node(volume, contract.NODE_GPUS, at, body)


def _write_node(volume: Path, name: str, at: float, body: dict[str, Any]) -> None:
    folder = volume / contract.NODE_FOLDER
    folder.mkdir(exist_ok=True)
    contract.write_json(str(folder / name), {"at": WALL + at, "monotonic": at, **body})


def write_attempt(volume: Path, attempt: int = 1, **change: Any) -> None:
    usual: dict[str, Any] = {
        "attempt": attempt,
        "mode": "act",
        "started_at": WALL + attempt,
        "started_monotonic": float(attempt),
        "pid": 10,
        "pgid": 10,
        "wrapper_pid": 9,
        "host": "node-a",
        "node_rank": 0,
        "nnodes": 1,
        "argv": ["torchrun", "pretrain_gpt.py"],
        "ran": ["torchrun", "pretrain_gpt.py"],
        "changes": [],
        "resume_from": None,
        "resume_reason": None,
        "save": "/ckpt",
        "exit": None,
        "final": False,
    }
    contract.write_json(str(volume / contract.ATTEMPT), usual | change)


def write_probe(volume: Path, rank: int, iteration: int = 7, sequence: int = 2) -> None:
    folder = volume / contract.PROBE_FOLDER
    folder.mkdir(exist_ok=True)
    record = ProbeRecord(
        1,
        0,
        100 + rank,
        5,
        rank,
        rank,
        2,
        iteration,
        50.0,
        WALL,
        40,
        12,
        "collective",
        "ab",
        "wait",
    )
    (folder / f"{contract.PROBE_PREFIX}{rank}").write_bytes(pack(record, sequence))
