# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Forwards the output of one attempt through the pump to its destination and into the log.

If the pump cannot be started, the child keeps the wrapper's own stdout and stderr, and nothing is
copied.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import tempfile
import threading
import time
from typing import Any, Callable, NamedTuple, Sequence

from mwatch_trainer.output import pump
from mwatch_trainer.output.log_copy import LineCopy, LogWriter
from mwatch_trainer.processes.children import Reaper, start_helper
from mwatch_trainer.reporting import report
from mwatch_trainer.scrub.scrubber import Scrubber

STDOUT, STDERR = 1, 2


class StreamCounts(NamedTuple):
    is_idle: int
    read: int = 0
    passed: int = 0
    lost: int = 0  # could not be written to their destination
    dropped: int = 0  # not copied, because the copy was too slow
    waiting: int = 0


class Pipe(NamedTuple):
    reading: int
    writing: int


class Tee:
    """The pipes between the child, the pump that forwards its output, and the wrapper's copy.

    If the wrapper's stdout and stderr are the same file, the child gets one pipe for both, so that
    their relative order is the same as without mwatch. The wrapper keeps the reading ends open: if
    the pump dies, the child waits for the next pump instead of being killed by SIGPIPE.
    """

    def __init__(self) -> None:
        """Raises OSError, leaving no file open, if a pipe or process cannot be created."""
        self.mark = f"mwatch-gap:{os.urandom(12).hex()}:"
        self.copies: list[int] = []  # reading ends for the copy, closed by their reader
        self._sinks: list[int] = []
        self._sources: list[Pipe] = []
        self._shared_fd, self._shared = -1, mmap.mmap(-1, 1)
        self.process: subprocess.Popen[bytes] | None = None
        self.is_pumped_here = False
        try:
            for fd in (STDOUT,) if is_one_file(STDOUT, STDERR) else (STDOUT, STDERR):
                self._sinks.append(os.dup(fd))
            self._shared_fd = _shared_file(pump.COUNTERS.size * len(self._sinks))
            self._shared = mmap.mmap(self._shared_fd, 0)
            for _ in self._sinks:
                self._sources.append(_pipe())
            self.start_pump()
        except OSError:
            self.close()
            raise

    @property
    def stdout(self) -> int:
        return self._sources[0].writing

    @property
    def stderr(self) -> int:
        return self._sources[-1].writing

    def start_pump(self) -> None:
        """Start the first pump, or a new one if it died; the reading ends are in `copies`."""
        copies: list[Pipe] = []
        self.copies = []
        try:
            for _ in self._sinks:
                copies.append(_pipe())
            streams = [
                f"{source.reading}:{sink}:{copy.writing}"
                for source, sink, copy in zip(self._sources, self._sinks, copies)
            ]
            fds = [self._shared_fd, *self._sinks, *(each.reading for each in self._sources)]
            fds += [each.writing for each in copies]
            arguments = [self.mark, str(self._shared_fd), *streams]
            self.process = start_helper("output.pump", arguments, fds)
        except OSError:
            _close(*(each.reading for each in copies))
            raise
        finally:
            _close(*(each.writing for each in copies))
        self.copies = [each.reading for each in copies]

    def pump_here(self) -> None:
        """Pump in threads of the wrapper because the process keeps dying or cannot be started.

        From then on the wrapper must not be killed, because the pipes would lose their reader.
        """
        self.is_pumped_here = True
        self.copies = []
        for slot, (source, sink) in enumerate(zip(self._sources, self._sinks)):
            copy = _pipe()
            os.set_blocking(copy.writing, False)
            self.copies.append(copy.reading)
            stream = pump.PumpedStream(
                os.dup(source.reading), sink, copy.writing, self._shared, slot
            )
            mark = self.mark.encode()
            threading.Thread(target=stream.run, args=(mark,), daemon=True).start()

    def child_has_started(self) -> None:
        """Close the wrapper's writing ends, so that only the child has them."""
        _close(*(each.writing for each in self._sources))
        self._sources = [Pipe(each.reading, -1) for each in self._sources]

    def counts(self) -> list[StreamCounts]:
        size = pump.COUNTERS.size
        slots = range(0, size * len(self._sources), size)
        return [StreamCounts(*pump.COUNTERS.unpack_from(self._shared, slot)) for slot in slots]

    @property
    def is_passed_on(self) -> bool:
        """Whether all output written before this call has reached its destination."""
        try:
            if any(pump.bytes_waiting(each.reading) for each in self._sources):
                return False
        except OSError:
            return True
        # Check for empty pipes before idle pumps: a pump sets busy before it empties its pipe.
        return all(each.is_idle for each in self.counts())

    @property
    def is_copied(self) -> bool:
        return not any(each.waiting for each in self.counts())

    def close(self) -> None:
        if self.is_pumped_here:
            return  # the pump threads may still write
        _close(self._shared_fd, *self._sinks, *(fd for each in self._sources for fd in each))
        self._shared_fd = -1
        self._sources, self._sinks = [], []


def is_one_file(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False


def _pipe() -> Pipe:
    pipe = Pipe(*os.pipe())
    pump.enlarge_pipe(pipe.writing, pump.CHUNK_BYTES)
    return pipe


def _shared_file(size: int) -> int:
    if hasattr(os, "memfd_create"):  # not in every build of Python 3.8
        fd = os.memfd_create("mwatch-pump")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.truncate(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def _close(*fds: int) -> None:
    for fd in fds:
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


_COPY_SECONDS = 10.0  # without progress; only a burst of output just before the end takes long
_MAX_COPY_SECONDS = 60.0
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
        put = log.put if log is not None else (lambda _: None)
        self._copy = LineCopy(feed, put, lambda: Scrubber(patterns))
        try:
            self.tee = Tee()
        except OSError as error:
            report(f"the output is not copied: {error.strerror or error}")
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
        """Replace a killed pump; otherwise the child would block on its full pipe."""
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
            return  # retried in the next round
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
        """Wait until the child's output has reached its destination or `is_over()` is true, then
        finish the copy.
        """
        tee = self.tee
        self._copy.lift_limit()
        while tee is not None and not tee.is_passed_on and not is_over():
            self._reaper.reap()
            self.look_after_pump()
            if self.pump_pid is None and not tee.is_pumped_here:
                break
            time.sleep(_LOOK_SECONDS)
        now = time.monotonic()
        until, end, copied = now + _COPY_SECONDS, now + _MAX_COPY_SECONDS, self._copy.copied
        while tee is not None and not tee.is_copied and time.monotonic() < min(until, end):
            time.sleep(_LOOK_SECONDS)
            if self._copy.copied > copied:
                until, copied = time.monotonic() + _COPY_SECONDS, self._copy.copied
        self._copy.finish(max(until - time.monotonic(), 0.2))
        if self._log is not None:
            self._log.drain(_DISK_SECONDS)

    def close(self, seconds: float) -> None:
        """Wait at most this long for the pump to reach the end of its input; it may outlive the
        wrapper."""
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
