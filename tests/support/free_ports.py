# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A port of this machine on which nobody listens, for a program that is started with its number.

Not one that the kernel gives out by itself: between this and the start of the program any
connection, or a rank of another job that listens, may be given the same. Nor one of another worker
of the same tests, which may have found it free in the same moment.
"""

from __future__ import annotations

import os
import random
import socket

_WORKERS = 16
_EACH = 15_000 // _WORKERS
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_BELOW_THE_KERNELS_OWN = range(15_000 + _WORKER * _EACH, 15_000 + (_WORKER + 1) * _EACH)
_given: set[int] = set()


def free_port() -> int:
    for port in random.sample(_BELOW_THE_KERNELS_OWN, 200):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise AssertionError(f"no free port among 200 of {_BELOW_THE_KERNELS_OWN}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
