# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Linux calls that Python has no function for.

None of them raises where it fails: a Python without ctypes or a kernel that forbids the call must
not stop the run.
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
    """Make processes that double-fork below this one its children, not init's."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> bool:
    """Receive signal `number` when the thread that started this process is gone."""
    return _prctl(_PR_SET_PDEATHSIG, number)


def enlarge_pipe(fd: int, size: int) -> bool:
    """Return False also where the user's limit of pipe memory is reached."""
    try:
        return fcntl.fcntl(fd, _F_SETPIPE_SZ, size) >= size
    except OSError:
        return False


def bytes_waiting(fd: int) -> int:
    """Return the number of unread bytes in a pipe. Raises OSError."""
    answer = fcntl.ioctl(fd, termios.FIONREAD, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


def _prctl(option: int, value: int) -> bool:
    try:
        import ctypes

        libc: Any = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False
