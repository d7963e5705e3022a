# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Three things of Linux that Python has no function for.

Each says whether it worked and never raises: a Python without ctypes, or a kernel that forbids
the call, costs a comfort and not the run.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_F_SETPIPE_SZ = 1031  # fcntl has the name from Python 3.10 on


def adopt_orphans() -> bool:
    """From now on what double-forks below this process becomes its child, not init's."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> bool:
    """Signal `number` comes when the thread that started this process is gone."""
    return _prctl(_PR_SET_PDEATHSIG, number)


def enlarge_pipe(fd: int, size: int) -> bool:
    """False also where the user's share of pipe memory is used up."""
    try:
        return fcntl.fcntl(fd, _F_SETPIPE_SZ, size) >= size
    except OSError:
        return False


def bytes_waiting(fd: int) -> int:
    """In a pipe. Raises OSError."""
    answer = fcntl.ioctl(fd, termios.FIONREAD, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes

        libc: Any = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False
