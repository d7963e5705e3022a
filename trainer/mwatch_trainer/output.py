# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The output of one attempt: through the pump to where it would have gone, and into the log.

Without a pump (no process can be had) the child keeps the wrapper's own stdout and stderr: nothing
is copied then, and nothing else is lost.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Sequence

from mwatch_trainer.line_copy import LineCopy
from mwatch_trainer.log_writer import LogWriter
from mwatch_trainer.reaper import Reaper
from mwatch_trainer.say import say
from mwatch_trainer.scrub import Scrubber
from mwatch_trainer.tee import Tee

_COPY_SECONDS = 10.0  # only a flood just before the end needs more than a moment of it
_DISK_SECONDS = 2.0
_MAX_PUMPS = 3
_LOOK_SECONDS = 0.01


class Output:
    def __init__(
        self,
        log: LogWriter | None,
        feed: Callable[[bytes], None],
        patterns: Sequence[str],
        reaper: Reaper,
    ) -> None:
        self._reaper = reaper
        self._log = log
        self._pumps = 1
        self.tee: Tee | None = None
        put = log.put if log is not None else _nowhere
        self._copy = LineCopy(feed, put, lambda: Scrubber(patterns))
        try:
            self.tee = Tee()
        except OSError as error:
            say(f"the output is not copied: {error.strerror or error}")
            return
        self._adopt_pump(self.tee)

    @property
    def stdout(self) -> int | None:
        return self.tee.stdout if self.tee is not None else None

    @property
    def stderr(self) -> int | None:
        return self.tee.stderr if self.tee is not None else None

    def child_has_started(self) -> None:
        if self.tee is not None:
            self.tee.child_has_started()

    @property
    def pump_pid(self) -> int | None:
        process = self.tee.process if self.tee is not None else None
        return process.pid if process is not None and process.returncode is None else None

    def look_after_pump(self) -> None:
        """Another one where it was killed: the child would wait for ever with its pipe full."""
        tee = self.tee
        if tee is None or self.pump_pid is not None or tee.is_pumped_here:
            return
        if tee.process is not None and tee.process.returncode == 0:
            return  # the child has closed its streams
        self._pumps += 1
        try:
            if self._pumps > _MAX_PUMPS:
                tee.pump_here()
            else:
                tee.start_pump()
        except OSError:
            return  # the next round tries again
        self._adopt_pump(tee)

    def counts(self) -> dict[str, Any]:
        streams = self.tee.counts() if self.tee is not None else []
        log = self._log
        return {
            "printed_bytes": sum(each.read for each in streams),
            "lost_bytes": sum(each.lost for each in streams),
            "copied_bytes": self._copy.copied,
            "uncopied_bytes": sum(each.dropped for each in streams),
            "written_bytes": log.written if log is not None else 0,
            "unwritten_bytes": log.dropped if log is not None else 0,
            "log_error": log.error if log is not None else "there is no folder to write to",
        }

    def finish(self, is_over: Callable[[], bool]) -> None:
        """Until all that the child printed has reached its sink, or `is_over`; then the copy."""
        tee = self.tee
        self._copy.hurry()
        while tee is not None and not tee.is_passed_on and not is_over():
            self._reaper.reap()
            self.look_after_pump()
            if self.pump_pid is None and not tee.is_pumped_here:
                break
            time.sleep(_LOOK_SECONDS)
        until = time.monotonic() + _COPY_SECONDS
        while tee is not None and not tee.is_copied and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        self._copy.finish(max(until - time.monotonic(), 0.2))
        if self._log is not None:
            self._log.drain(_DISK_SECONDS)

    def close(self, seconds: float) -> None:
        """Waits that long for the pump to see its end; it may outlive us."""
        if self.tee is None:
            return
        until = time.monotonic() + seconds
        while self.pump_pid is not None and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
            self._reaper.reap()
        self.tee.close()

    def _adopt_pump(self, tee: Tee) -> None:
        if tee.process is not None and tee.process.returncode is None:
            self._reaper.watch(tee.process)
        self._copy.add(tee.copies, tee.mark)


def _nowhere(_data: bytes) -> None:
    pass
