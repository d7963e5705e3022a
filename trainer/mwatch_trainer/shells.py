# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An ending signal for a command that is a shell goes to what the shell is waiting for.

| the shell | who gets the signal |
| --- | --- |
| waits for a program | the program: the shell would die of it at once, and the trainer unsaved |
| has a trap for it | the shell, as without us |
| runs nothing | the shell |
| waits for `trainer \\| tee` | the trainer: `tee` ends by itself when the trainer has |

Where the shell goes on for a while after that (a loop that starts training again), it gets the
signal too. What cannot be told apart: a helper that the script runs beside the trainer gets it.
"""

from __future__ import annotations

import contextlib
import os

from mwatch_trainer import processes
from mwatch_trainer.processes import Process
from mwatch_trainer.tree import send

SHELLS = ("bash", "sh", "dash", "ash", "busybox", "zsh", "ksh")
AFTERWARDS_SECONDS = 5.0
"""For what a script does after training: its last words, a copy of the log."""
_MAX_DEPTH = 16


class EndingSignal:
    """Of one child. Time is monotonic and comes in."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._pid, self._proc = pid, proc
        self._number: int | None = None
        self._told: list[Process] = []
        self._gone_at: float | None = None

    def send(self, number: int) -> None:
        """Raises nothing: a child that is gone needs no signal."""
        known = processes.everything(self._proc)
        told = behind(self._pid, known, number, self._proc)
        if not told or told[0].pid == self._pid:
            with contextlib.suppress(OSError):
                os.kill(self._pid, number)
            return
        for each in told:
            send(each, number, self._proc)
        self._number, self._told, self._gone_at = number, told, None

    def tick(self, now: float) -> None:
        """After the trainer: a shell that does not leave is told to."""
        if self._number is None or any(self._is_there(each) for each in self._told):
            return
        self._gone_at = now if self._gone_at is None else self._gone_at
        if now - self._gone_at < AFTERWARDS_SECONDS:
            return
        number, self._number = self._number, None
        known = processes.everything(self._proc)
        for each in behind(self._pid, known, number, self._proc):
            send(each, number, self._proc)
        with contextlib.suppress(OSError):
            os.kill(self._pid, number)

    def _is_there(self, process: Process) -> bool:
        now = processes.read(process.pid, self._proc)
        return now is not None and now.started == process.started and now.state not in "ZX"


def behind(pid: int, known: dict[int, Process], number: int, proc: str = "/proc") -> list[Process]:
    """Those that a signal for this process is for; itself, if it is no shell that waits."""
    return _behind(pid, known, number, proc, _MAX_DEPTH)


def _behind(
    pid: int, known: dict[int, Process], number: int, proc: str, depth: int
) -> list[Process]:
    process = known.get(pid)
    if process is None or process.state in "ZX":
        return []
    if depth == 0 or process.name not in SHELLS or _catches(pid, number, proc):
        return [process]
    children = [each for each in known.values() if each.ppid == pid and each.state not in "ZX"]
    outputs = {_pipe(each.pid, fd, proc) for each in children for fd in (1, 2)} - {None}
    sources = [each for each in children if _pipe(each.pid, 0, proc) not in outputs]
    found = [one for each in sources for one in _behind(each.pid, known, number, proc, depth - 1)]
    return found or [process]


def _catches(pid: int, number: int, proc: str) -> bool:
    """Whether it has a handler of its own: a shell has one for a trap."""
    try:
        with open(f"{proc}/{pid}/status", encoding="ascii", errors="replace") as file:
            masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
        return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError):
        return True  # not ours to see: it is asked itself


def _pipe(pid: int, fd: int, proc: str) -> str | None:
    try:
        target = os.readlink(f"{proc}/{pid}/fd/{fd}")
    except OSError:
        return None
    return target if target.startswith("pipe:") else None
