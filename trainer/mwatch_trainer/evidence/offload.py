# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The control socket's `keep`: evidence from the volume to the checkpoints' storage.

A sidecar often may only read that storage; the training container can write there. Where to is the
wrapper's own knowledge and never the caller's. One copy at a time, in a process of its own; a
caller waits as long as it likes, and asking again for the same incident finds how it went. When
only observing, the folder of the checkpoints stays as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections import OrderedDict
from typing import Any, Callable

from mwatch_trainer import contract
from mwatch_trainer.checkpoint.save_dir import is_remote
from mwatch_trainer.evidence.bundle_copy import NotCopied
from mwatch_trainer.evidence.incident_dirs import MAX_BYTES, beside, is_incident_id
from mwatch_trainer.processes import helper_process
from mwatch_trainer.processes.reaper import Reaper

COPY_SECONDS = 60.0
_MAX_REMEMBERED = 16
_MAX_ANSWER = 1 << 16


class _Copy:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.answer: dict[str, Any] = {"ok": False, "error": "the copy was broken off"}


class Keeping:
    def __init__(
        self, directory: str, mode: str, reaper: Reaper, save: Callable[[], str | None]
    ) -> None:
        """`save`: where the attempt that runs saves; None: not known."""
        self._directory, self._mode = directory, mode
        self._reaper, self._save = reaper, save
        self._lock = threading.Lock()
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that copies now: it is no part of the trainer."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def keep(self, id: str, seconds: float) -> dict[str, Any]:
        """How it went, or that it goes on after so many seconds. Raises NotCopied and OSError."""
        if not is_incident_id(id):
            raise NotCopied(f"{id[:80]!r} is not the name of an incident")
        root = self._root()
        with self._lock:
            copy = self._copies.get(id)
            if copy is None or copy.done.is_set():
                if any(not each.done.is_set() for each in self._copies.values()):
                    raise NotCopied("another copy is under way")
                copy = self._begin(id, root)
        if not copy.done.wait(seconds):
            return {"state": "copying", "folder": os.path.join(root, id)}
        if not copy.answer:
            raise NotCopied("the copy ended before it was complete: ask again")
        if copy.answer.get("ok") is not True:
            raise NotCopied(str(copy.answer.get("error"))[:500])
        return {**copy.answer, "state": "kept"}

    def _root(self) -> str:
        save = self._save()
        if self._mode != contract.ACT:
            raise NotCopied("observing leaves the folder of the checkpoints as it is")
        if not save:
            raise NotCopied("it is not known where this job saves")
        if is_remote(save):
            raise NotCopied("this job saves to an object store")
        return beside(save)

    def _begin(self, id: str, root: str) -> _Copy:
        read_end, write_end = os.pipe()
        arguments = [self._directory, id, root, f"{COPY_SECONDS:g}", str(MAX_BYTES), str(write_end)]
        try:
            self._process = helper_process.start("evidence.bundle_copy", arguments, [write_end])
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._reaper.watch(self._process)
        copy = _Copy()
        self._copies[id] = copy
        while len(self._copies) > _MAX_REMEMBERED:
            self._copies.popitem(last=False)
        follow = threading.Thread(target=_follow, args=(copy, read_end), daemon=True)
        follow.start()
        return copy


def _follow(copy: _Copy, read_end: int) -> None:
    """Until the process has answered or is gone; storage that hangs holds it, and this thread."""
    with contextlib.suppress(OSError, ValueError), os.fdopen(read_end, "rb") as pipe:
        answer = json.loads(pipe.read(_MAX_ANSWER))
        if isinstance(answer, dict):
            copy.answer = answer
    copy.done.set()
