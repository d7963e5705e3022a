# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The wrapper's files and services on its volume: log, `attempt.json`, control socket, node facts.

Each may fail without the others, and each is waited for only within a time limit.
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
from mwatch_trainer.control.server import ControlServer
from mwatch_trainer.control_requests import RequestQueue
from mwatch_trainer.evidence.dumps import Dumps
from mwatch_trainer.evidence.offload import EvidenceOffload
from mwatch_trainer.output.log_copy import LogWriter
from mwatch_trainer.processes import proc
from mwatch_trainer.processes.children import Reaper, start_helper
from mwatch_trainer.processes.proc import Tree
from mwatch_trainer.reporting import report
from mwatch_trainer.scrub.scrubber import Scrubber, scrubbed
from mwatch_trainer.wrapper.options import Options


class AttemptFile:
    """Writes `attempt.json` in a thread, because disks can hang; only the latest is written."""

    def __init__(self, path: str) -> None:
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
            with contextlib.suppress(OSError, ValueError):
                contract.write_json(self._path, document or {})


def log_position(directory: str | None) -> dict[str, int] | None:
    """Return where the log of an attempt starting now begins; None: at the start of a file."""
    if directory is None:
        return None
    try:
        found = os.stat(os.path.join(directory, contract.LOG))
    except OSError:
        return None
    return {"inode": found.st_ino, "bytes": found.st_size}


def attempt_document(
    plan: AttemptPlan, mode: str, argv: Sequence[str], patterns: Sequence[str], pid: int | None
) -> dict[str, Any]:
    """Describe the attempt for `attempt.json`, scrubbed, without its times and exit."""
    scrubber = Scrubber(patterns)
    wrapper = proc.read(os.getpid())
    return {
        "attempt": plan.number,
        "mode": mode,
        "pid": pid,
        "pgid": pid,  # it leads its own session
        "wrapper_pid": os.getpid(),
        "wrapper_started": wrapper.started if wrapper is not None else None,
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
    """Does nothing where no folder can be used."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.directory = _created(options.directory)
        self.log: LogWriter | None = None
        self._attempt: AttemptFile | None = None
        self._control: ControlServer | None = None
        self._sampler: subprocess.Popen[bytes] | None = None
        self._offload: EvidenceOffload | None = None

    def open(
        self,
        tree: Tree,
        requests: RequestQueue,
        reaper: Reaper,
        status: Callable[[], Mapping[str, Any]],
    ) -> None:
        directory = self.directory
        if directory is None:
            report("no folder to write to (set --dir or MWATCH_DIR): the output is not recorded")
            return
        self._attempt = AttemptFile(os.path.join(directory, contract.ATTEMPT))
        self.log = LogWriter(os.path.join(directory, contract.LOG), self._options.log_bytes)
        mode, patterns = self._options.mode, self._options.scrub_patterns
        self._offload = EvidenceOffload(directory, mode, reaper, lambda: status().get("save"))
        dumps = Dumps(directory, tree, patterns=patterns)
        self._control = ControlServer(directory, mode, requests, dumps, self._offload, status)
        if self._options.with_node_facts:
            with contextlib.suppress(OSError):
                arguments = [directory, str(os.getpid())]
                self._sampler = start_helper("gpu.node_sampler", arguments, needs="pynvml")
                reaper.watch(self._sampler)

    @property
    def helper_pids(self) -> list[int]:
        sampler = self._sampler.pid if self._sampler is not None else None
        offload = self._offload.pid if self._offload is not None else None
        return [each for each in (sampler, offload) if each is not None]

    def write_attempt(self, document: Mapping[str, Any]) -> None:
        if self._attempt is not None:
            self._attempt.put(document)
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


def _created(directory: str | None) -> str | None:
    if directory is None:
        return None
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        report(f"{directory} cannot be used: {error.strerror}")
        return None
    return directory
