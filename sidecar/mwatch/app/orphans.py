# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of a training that has lost its wrapper: still ours to see, and to end.

They are told by the volume that their environment names, which every process of a training
inherits. One that was started with a cleared environment is not found.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from mwatch_trainer import contract

_PR_SET_CHILD_SUBREAPER = 36
_MAX_ENVIRON = 1 << 20
_KILL_SECONDS = 5.0


def adopt() -> None:
    """From now on orphans come to us: how they end can be known then, and only then."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def of(volume: Path) -> list[int]:
    """All that live, by pid."""
    return [pid for pid in _pids() if pid != os.getpid() and _belongs(pid, volume)]


def kill(volume: Path) -> None:
    """Stopped first, so that none can start another one meanwhile."""
    until = time.monotonic() + _KILL_SECONDS
    while (found := of(volume)) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.02)


class Orphan:
    """A training command whose wrapper is gone."""

    def __init__(self, pid: int, volume: Path) -> None:
        self.pid = pid
        self._volume = volume

    def exit_code(self, unknown: int) -> int | None:
        """None while it runs, as a shell tells it after that; `unknown` where nobody could see."""
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None if _belongs(self.pid, self._volume) else unknown
        if not ended:
            return None
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGTERM)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _belongs(pid: int, volume: Path) -> bool:
    """A zombie has no environment any more."""
    wanted = f"{contract.DIR_VARIABLE}={volume}".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return wanted in file.read(_MAX_ENVIRON).split(b"\0")
    except OSError:
        return False
