# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer whose wrapper was killed goes on alone; before another attempt begins it must end.

Nobody else would stop it: the fence is looked at by the wrapper. Its processes are known by the
variables that the wrapper gave them. They are killed and not asked, for a last save of theirs would
fall into the new attempt. While that wrapper lives, or has noted an end, nothing is done.
"""

from __future__ import annotations

import os
import signal
import time

from mwatch_trainer import contract, processes
from mwatch_trainer.processes import Process
from mwatch_trainer.tree import send

_MAX_SECONDS = 10.0
_MAX_ENVIRON = 1 << 18


def end_abandoned(directory: str, proc: str = "/proc") -> int:
    """How many processes there were; none is left, but for one that the kernel does not let go."""
    document = contract.read_json(os.path.join(directory, contract.ATTEMPT))
    if document is None or document.get("exit") is not None or _lives(document, proc):
        return 0
    wanted = {
        f"{contract.DIR_VARIABLE}={directory}".encode("utf-8", "surrogateescape"),
        f"{contract.ATTEMPT_VARIABLE}={document.get('attempt')}".encode(),
    }
    first = found = _carrying(wanted, proc)
    until = time.monotonic() + _MAX_SECONDS
    while found and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in found:
                send(each, number, proc)
        time.sleep(0.05)
        found = _carrying(wanted, proc)
    return len(first)


def _lives(document: dict[str, object], proc: str) -> bool:
    pid, started = document.get("wrapper_pid"), document.get("wrapper_started")
    process = processes.read(pid, proc) if isinstance(pid, int) else None
    return process is not None and process.started == started and process.state not in "ZX"


def _carrying(wanted: set[bytes], proc: str) -> list[Process]:
    """Processes with all of these variables, without our own and what is above it."""
    known = processes.everything(proc)
    above = set()
    pid = os.getpid()
    while pid in known and pid not in above:
        above.add(pid)
        pid = known[pid].ppid
    others = (each for each in known.values() if each.pid not in above and each.state not in "ZX")
    return [each for each in others if wanted <= _variables(each.pid, proc)]


def _variables(pid: int, proc: str) -> set[bytes]:
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            return set(file.read(_MAX_ENVIRON).split(b"\0"))
    except OSError:
        return set()
