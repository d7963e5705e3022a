# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""File modes that hold for root too, so that tests of unreadable files run wherever CI is root.

Root reads every file by two capabilities. Giving them up for a while needs no other user: one
could perhaps not even start this interpreter, and would stop at the folder, not at the file.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522
_DAC_OVERRIDE = 1
_DAC_READ_SEARCH = 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def unprivileged() -> Iterator[None]:
    """Within it the modes of files hold for this thread, whoever it is."""
    before = _call("capget", (_Sets * 2)())
    modest = (_Sets * 2).from_buffer_copy(before)
    modest[0].effective &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    _call("capset", modest)
    try:
        yield
    finally:
        _call("capset", before)


def _call(name: str, sets: ctypes.Array[_Sets]) -> ctypes.Array[_Sets]:
    header = _Header(_VERSION_3, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(ctypes.byref(header), sets) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return sets
