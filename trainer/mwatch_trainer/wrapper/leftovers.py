# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Processes that are still running after the command exited, and whether they are still training.

If the command exited by itself and will not be restarted, the wrapper leaves them alone: a script
may start training in the background and exit. Before a restart, and after a requested stop, the
wrapper ends them, because two attempts would overwrite each other's checkpoints.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Mapping, Sequence

from mwatch_trainer import contract
from mwatch_trainer.exits.explain import POLICY
from mwatch_trainer.output.forwarder import Output
from mwatch_trainer.output.pump import CHUNK_BYTES
from mwatch_trainer.processes.proc import Process
from mwatch_trainer.scrub.known_good import scrubbed
from mwatch_trainer.scrub.scrubber import Scrubber

_MAX_SHOWN = 8
_MAX_ARGUMENTS = 16
_MAX_COMMAND = 160
_MAX_BYTES = 4096


def end_with_wrapper(environ: Mapping[str, str]) -> bool:
    """Whether the kernel kills the leftovers when the wrapper, as main process, exits."""
    return os.getpid() == 1 or POLICY in environ


def shown(processes: Sequence[Process], scrubber: Scrubber) -> list[dict[str, Any]]:
    """Describe some of the processes for `attempt.json`, parents first."""
    pids = {each.pid for each in processes}
    ordered = sorted(processes, key=lambda each: (each.ppid in pids, each.started, each.pid))
    return [
        {"pid": each.pid, "started": each.started, "command": _command(each, scrubber)}
        for each in ordered[:_MAX_SHOWN]
    ]


def listed(found: Sequence[Mapping[str, Any]], count: int) -> str:
    names = [f"{each['pid']} ({each['command']})" for each in found]
    more = count - len(found)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")


def _command(process: Process, scrubber: Scrubber) -> str:
    line = contract.read_bytes(f"/proc/{process.pid}/cmdline", _MAX_BYTES) or b""
    first, *others = line.decode("utf-8", "replace").rstrip("\0").split("\0")
    words = first.split() + others  # a process title set by the program is one argument
    text = " ".join(scrubbed(words[:_MAX_ARGUMENTS], scrubber)) if words else process.name
    return " ".join(scrubber.text(text).split())[:_MAX_COMMAND]


class Pace:
    """The last printed iteration and the average seconds between iteration lines."""

    def __init__(self, iteration: Callable[[], int | None]) -> None:
        self._iteration = iteration
        self._last: int | None = None
        self._first_at = self._last_at = 0.0
        self._lines = 0

    def look(self) -> int | None:
        found = self._iteration()
        if found is not None and found != self._last:
            self._last, self._last_at = found, time.monotonic()
            self._first_at = self._first_at or self._last_at
            self._lines += 1
        return found

    @property
    def seconds(self) -> float:
        return (self._last_at - self._first_at) / max(self._lines - 1, 1)


_AFTER_SECONDS = 1.0


class OwnOutput:
    """Whether the command's own output has been forwarded, even while leftover processes keep
    printing: a pipe holds at most `CHUNK_BYTES`."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._since = time.monotonic()
        tee = output.tee
        self._read = [each.read for each in tee.counts()] if tee is not None else []

    def is_read(self) -> bool:
        """Whether the wrapper's own reader has also received it."""
        tee = self._output.tee
        return tee is None or (tee.is_copied and (tee.is_passed_on or self.is_passed_on()))

    def is_passed_on(self) -> bool:
        tee = self._output.tee
        if tee is None or time.monotonic() - self._since < _AFTER_SECONDS:
            return tee is None
        for read, now in zip(self._read, tee.counts()):
            done = now.passed + now.lost
            if done < read + CHUNK_BYTES and not (now.is_idle and done >= now.read):
                return False
        return True
