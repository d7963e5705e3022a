# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What one wrapper keeps on its volume: log, `attempt.json`, control socket, node facts.

Each of them may fail on its own, and none of them is waited for longer than its bound.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Any, Callable, Mapping

from mwatch_trainer import contract, own_process
from mwatch_trainer.asks import Asks
from mwatch_trainer.attempt_file import AttemptFile
from mwatch_trainer.control import Control
from mwatch_trainer.dumps import Dumps
from mwatch_trainer.keeping import Keeping
from mwatch_trainer.log_writer import LogWriter
from mwatch_trainer.options import Options
from mwatch_trainer.reaper import Reaper
from mwatch_trainer.say import say
from mwatch_trainer.tree import Tree

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
            say("there is no folder to write to (--dir or MWATCH_DIR): output is only passed on")
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
                self._sampler = own_process.start("node_facts", arguments)
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
