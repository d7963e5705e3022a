# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The person who stops a training for a while: with a signal, or with a debugger.

`python person.py stop|debugger PID SECONDS`. A stop reaches the whole command, as Ctrl-Z or
`kill -STOP` to its group does; a debugger holds the one process that it is attached to.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_ATTACH, _DETACH = 16, 17
"""Of ptrace(2)."""


def stop(pid: int, seconds: float) -> None:
    group = os.getpgid(pid)
    os.killpg(group, signal.SIGSTOP)
    time.sleep(seconds)
    os.killpg(group, signal.SIGCONT)


def debug(pid: int, seconds: float) -> None:
    _ptrace(_ATTACH, pid)
    os.waitpid(pid, 0)
    time.sleep(seconds)
    _ptrace(_DETACH, pid)


def _ptrace(request: int, pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, pid, None, None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    {"stop": stop, "debugger": debug}[sys.argv[1]](int(sys.argv[2]), float(sys.argv[3]))
