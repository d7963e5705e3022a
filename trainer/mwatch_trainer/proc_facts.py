# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What /proc says of a process that does not answer: its state, and where the kernel has it."""

from __future__ import annotations

from typing import Any

from mwatch_trainer.processes import Process

_MAX_BYTES = 16384
_WANTED = ("State", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "VmRSS")


def facts_of(process: Process, proc: str = "/proc") -> dict[str, Any]:
    """The name of the kernel function (`wchan`) is 0 or empty where the kernel keeps it secret."""
    return {
        "pid": process.pid,
        "ppid": process.ppid,
        "name": process.name,
        "state": process.state,
        "cpu_seconds": process.cpu_seconds,
        "started": process.started,
        "wchan": _text(f"{proc}/{process.pid}/wchan"),
        "syscall": _text(f"{proc}/{process.pid}/syscall"),
        "stack": _text(f"{proc}/{process.pid}/stack"),
        "status": _status(process.pid, proc),
    }


def catches(pid: int, number: int, proc: str = "/proc") -> bool:
    """Whether that signal has a handler: without one it would kill."""
    mask = _status(pid, proc).get("SigCgt", "0")
    try:
        return number > 0 and bool(int(mask, 16) >> (number - 1) & 1)
    except ValueError:
        return False


def _status(pid: int, proc: str) -> dict[str, str]:
    lines = (line.partition(":") for line in _text(f"{proc}/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in lines if name in _WANTED}


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
