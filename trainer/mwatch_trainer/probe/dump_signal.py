# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A signal that makes a rank write the stacks of its threads even while its GIL is held.

A real-time signal that nobody has taken, handled by faulthandler in C. Whoever sends it looks
first whether the process still catches it (`SigCgt` in `/proc/PID/status`): after an exec, or at
the end of the interpreter, it would kill.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Any

from mwatch_trainer.contract import DUMPS_FOLDER

_MAX_BYTES = 1 << 20


def stacks_name(rank: int) -> str:
    """In the folder of dumps: where the handler of the dump signal writes, each time at the end."""
    return f"rank-{rank}.signal.txt"


class DumpSignal:
    """A signal that makes this process write its stacks, also while the GIL is held."""

    def __init__(self, folder: str, rank: int) -> None:
        self._path = os.path.join(folder, DUMPS_FOLDER, stacks_name(rank))
        self._file: Any = None
        self.number = 0

    def set_up(self) -> None:
        """Leaves `number` at 0 where no signal is free. Raises OSError."""
        number = free_signal()
        if not number:
            return
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o644)
        os.fchmod(fd, 0o644)
        self._file = os.fdopen(fd, "wb", buffering=0)
        faulthandler.register(number, file=self._file, all_threads=True, chain=False)
        self.number = number

    def keep_small(self) -> None:
        if self._file is not None and os.fstat(self._file.fileno()).st_size > _MAX_BYTES:
            os.ftruncate(self._file.fileno(), 0)


def free_signal() -> int:
    """From the top of the real-time signals, which the C library's users count from below."""
    taken = _taken_signals()
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if not taken >> (number - 1) & 1 and signal.getsignal(number) == signal.SIG_DFL:
            return number
    return 0


def _taken_signals() -> int:
    """A bit for each signal that is caught, ignored or blocked; all of them where unknown."""
    taken = 0
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:")):
                    taken |= int(line.split()[1], 16)
    except (OSError, ValueError):
        return -1
    return taken
