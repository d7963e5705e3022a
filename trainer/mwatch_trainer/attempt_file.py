# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`attempt.json`: what runs, since when, how it ended. Written by a thread: disks can hang.

Arguments may hold secrets: they are scrubbed here, and only here, before they are written.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, Mapping, Sequence

from mwatch_trainer import contract, processes
from mwatch_trainer.attempt import Plan
from mwatch_trainer.scrub import Scrubber
from mwatch_trainer.scrub_arguments import scrubbed


class AttemptFile:
    """`put` never waits; what is put while another is being written replaces the one before."""

    def __init__(self, path: str) -> None:
        self.error = ""
        self._path = path
        self._next: Mapping[str, Any] | None = None
        self._is_busy = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="mwatch-attempt", daemon=True).start()

    def put(self, document: Mapping[str, Any]) -> None:
        with self._changed:
            self._next = document
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._next is None and not self._is_busy, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._next is not None)
                document, self._next = self._next, None
                self._is_busy = True
            try:
                contract.write_json(self._path, document or {})
                self.error = ""
            except (OSError, ValueError) as error:
                self.error = str(error)


def log_place(directory: str | None) -> dict[str, int] | None:
    """Where the log of an attempt that begins now will begin; None: at the start of a file."""
    if directory is None:
        return None
    try:
        found = os.stat(os.path.join(directory, contract.LOG))
    except OSError:
        return None
    return {"inode": found.st_ino, "bytes": found.st_size}


def document(
    plan: Plan, mode: str, argv: Sequence[str], patterns: Sequence[str], pid: int | None
) -> dict[str, Any]:
    """Without the times and the exit, which come from the wrapper."""
    scrubber = Scrubber(patterns)
    myself = processes.read(os.getpid())
    return {
        "attempt": plan.number,
        "mode": mode,
        "pid": pid,
        "pgid": pid,  # it leads its own session
        "wrapper_pid": os.getpid(),
        "wrapper_started": myself.started if myself is not None else None,
        "host": socket.gethostname(),
        "node_rank": plan.node_rank,
        "nnodes": plan.nnodes,
        "argv": scrubbed(argv, scrubber),
        "ran": scrubbed(plan.argv, scrubber),
        "changes": [scrubber.text(each) for each in plan.changes],
        "resume_from": plan.resume_from,
        "resume_reason": scrubber.text(plan.resume_reason),
        "save": None if plan.save is None else scrubber.text(plan.save),
    }
