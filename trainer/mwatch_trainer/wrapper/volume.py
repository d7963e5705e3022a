# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What one wrapper keeps on its volume: log, `attempt.json`, control socket, node facts.

Each of them may fail on its own, and none of them is waited for longer than its bound.

`attempt.json`: what runs, since when, how it ended. Written by a thread: disks can hang.

Arguments may hold secrets: they are scrubbed here, and only here, before they are written.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from typing import Any, Callable, Mapping, Sequence

from mwatch_trainer import contract
from mwatch_trainer.attempt.plan import AttemptPlan
from mwatch_trainer.control.server import Control
from mwatch_trainer.control_requests import Asks
from mwatch_trainer.evidence.dumps import Dumps
from mwatch_trainer.evidence.offload import Keeping
from mwatch_trainer.output.log_copy import LogWriter
from mwatch_trainer.processes import helper_process, proc
from mwatch_trainer.processes.proc import Tree
from mwatch_trainer.processes.reaper import Reaper
from mwatch_trainer.reporting import say
from mwatch_trainer.scrub.environment import scrubbed
from mwatch_trainer.scrub.scrubber import Scrubber
from mwatch_trainer.wrapper.options import Options


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
    plan: AttemptPlan, mode: str, argv: Sequence[str], patterns: Sequence[str], pid: int | None
) -> dict[str, Any]:
    """Without the times and the exit, which come from the wrapper."""
    scrubber = Scrubber(patterns)
    myself = proc.read(os.getpid())
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


_WRITE_SECONDS = 2.0


class Volume:
    """Without a folder that can be used it is empty, and everything goes nowhere."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.directory = _made(options.directory)
        self.log: LogWriter | None = None
        self._attempt: AttemptFile | None = None
        self._control: Control | None = None
        self._sampler: subprocess.Popen[bytes] | None = None
        self._keeping: Keeping | None = None

    def open(
        self, tree: Tree, asks: Asks, reaper: Reaper, status: Callable[[], Mapping[str, Any]]
    ) -> None:
        directory = self.directory
        if directory is None:
            say("no folder to write to (set --dir or MWATCH_DIR): the output is not recorded")
            return
        self._attempt = AttemptFile(os.path.join(directory, contract.ATTEMPT))
        self.log = LogWriter(os.path.join(directory, contract.LOG), self._options.log_bytes)
        mode, patterns = self._options.mode, self._options.scrub_patterns
        self._keeping = Keeping(directory, mode, reaper, lambda: status().get("save"))
        dumps = Dumps(directory, tree, patterns=patterns)
        self._control = Control(directory, mode, asks, dumps, self._keeping, status)
        if self._options.with_node_facts:
            with contextlib.suppress(OSError):
                arguments = [directory, str(os.getpid())]
                self._sampler = helper_process.start("gpu.node_sampler", arguments, needs="pynvml")
                reaper.watch(self._sampler)

    @property
    def own_pids(self) -> list[int]:
        """Of processes of ours, which are no part of the trainer."""
        sampler = self._sampler.pid if self._sampler is not None else None
        keeper = self._keeping.pid if self._keeping is not None else None
        return [each for each in (sampler, keeper) if each is not None]

    def put(self, document: Mapping[str, Any]) -> None:
        """As `attempt.json`."""
        if self._attempt is not None:
            self._attempt.put(document)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._sampler is not None and self._sampler.returncode is None:
            with contextlib.suppress(OSError):
                self._sampler.kill()
        if self.log is not None:
            self.log.close(_WRITE_SECONDS)
        if self._attempt is not None:
            self._attempt.drain(_WRITE_SECONDS)


def _made(directory: str | None) -> str | None:
    if directory is None:
        return None
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        say(f"{directory} cannot be used: {error.strerror}")
        return None
    return directory
