# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All processes of the trainer, and signals for them.

torchrun starts every rank in a session of its own, so a process group is not the trainer. Orphans
come to the wrapper (it adopts them), so everything below the wrapper that is not a process of
mwatch belongs to the trainer. Where the wrapper could not adopt, orphans are not seen.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Callable, Collection

from mwatch_trainer import processes
from mwatch_trainer.processes import Process, Ranks


class Tree:
    def __init__(self, own: Callable[[], Collection[int]], proc: str = "/proc") -> None:
        """`own`: the wrapper's other children, which are no part of the trainer."""
        self._own = own
        self._proc = proc
        self._ranks = Ranks(proc)

    def processes(self) -> list[Process]:
        """Alive, parents first."""
        found = processes.descendants(
            os.getpid(), processes.everything(self._proc), without=self._own()
        )
        return [each for each in found if each.state not in ("Z", "X")]

    def ranks(self) -> list[Process]:
        alive = self.processes()
        standing = self._ranks.of(alive)
        return [each for each in alive if standing[each.pid][1]]

    def signal(self, number: int) -> int:
        """How many there were."""
        alive = self.processes()
        for each in alive:
            send(each, number, self._proc)
        return len(alive)

    def kill(self) -> int:
        """SIGKILL; stopped first, so that none can start another one meanwhile."""
        alive = self.processes()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in alive:
                send(each, number, self._proc)
        return len(alive)


def send(process: Process, number: int, proc: str = "/proc") -> bool:
    """Only to the process that was seen: its pid may belong to another by now."""
    now = processes.read(process.pid, proc)
    if now is None or now.started != process.started:
        return False
    with contextlib.suppress(OSError):
        os.kill(process.pid, number)
        return True
    return False
