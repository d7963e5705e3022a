# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Copies the output to the log: splits it into lines, scrubs them, lets the wrapper parse them.

The copying thread is limited to a share of a core. If the trainer prints more than it can copy, the
pump drops the oldest output and marks the gap; a line in the log reports how much is missing.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import stat
import threading
import time
from collections import deque
from typing import Callable, Sequence

from mwatch_trainer.output.pump import MARK_TAIL, bytes_waiting
from mwatch_trainer.scrub.scrubber import Scrubber

MAX_LINE_BYTES = 1 << 18
_LONGEST_WORD = 1 << 12
_ROOM_FOR_MARK = 128
_BLANKS = (b" ", b"\t", b"\r")


class LineSplitter:
    """Splits chunks of one stream into whole lines, across the gaps that the pump marks.

    A line cut by a gap is dropped on both sides, because half of a number would parse as a number.
    A line that exceeds the limit is split at a blank, so that a word, which may be a secret, stays
    whole.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark.encode()
        self._gap = re.compile(re.escape(self._mark) + rb"([0-9]+)" + re.escape(MARK_TAIL))
        self._pending = b""
        self._is_cut = False  # the start of the next line is lost in a gap
        self.missed = 0  # total bytes in gaps so far

    def feed(self, data: bytes) -> bytes:
        end = data.rfind(b"\n") + 1
        if not end:
            self._pending += data
            return self._cut_endless() if len(self._pending) > MAX_LINE_BYTES else b""
        whole = self._pending + data[:end]
        self._pending = data[end:]
        if self._is_cut or self._mark in whole:
            whole = self._without_gaps(whole)
        return whole + self._cut_endless() if len(self._pending) > MAX_LINE_BYTES else whole

    def finish(self) -> bytes:
        """Return an unfinished last line, with a newline added."""
        rest, self._pending = self._pending, b""
        if not rest or self._is_cut or self._mark in rest:
            return b""
        return rest + b"\n"

    def _without_gaps(self, whole: bytes) -> bytes:
        kept = []
        at = 0
        for gap in self._gap.finditer(whole):
            kept.append(self._tidied(whole[at : gap.start()], is_end_lost=True))
            self.missed += int(gap.group(1))
            self._is_cut = True
            at = gap.end()
        kept.append(self._tidied(whole[at:], is_end_lost=False))
        return b"".join(kept)

    def _tidied(self, text: bytes, is_end_lost: bool) -> bytes:
        if self._is_cut:
            end = text.find(b"\n") + 1
            if not end:
                return b""
            text = text[end:]
            self._is_cut = False
        return text[: text.rfind(b"\n") + 1] if is_end_lost else text

    def _cut_endless(self) -> bytes:
        pending = self._pending
        if self._mark in pending:  # the rest of the mark has not been read yet
            self._pending = pending[pending.find(self._mark) :]
            return b""
        if self._is_cut:
            self._pending = pending[-_ROOM_FOR_MARK:]
            return b""
        end = 1 + max(pending.rfind(each) for each in _BLANKS)
        if len(pending) - end > _LONGEST_WORD:
            end = len(pending) - _ROOM_FOR_MARK
        self._pending = pending[end:]
        return pending[:end] + b"\n"


SHARE = 0.05
BURST_SECONDS = 0.25


class CpuLimit:
    """Limits the calling thread to a small share of one core: the cores belong to the trainer.

    A burst (the start of a job, a traceback of every rank) is not limited.
    """

    def __init__(self) -> None:
        self._lifted = threading.Event()
        self._allowance = BURST_SECONDS
        self._at = time.monotonic()
        self._cpu = 0.0

    def hold(self) -> None:
        """Sleep until this thread is back within its share, unless the limit is lifted."""
        now, cpu = time.monotonic(), time.thread_time()
        earned = (now - self._at) * SHARE
        self._allowance = min(self._allowance + earned - (cpu - self._cpu), BURST_SECONDS)
        self._at, self._cpu = now, cpu
        if self._allowance < 0:
            self._lifted.wait(min(-self._allowance / SHARE, 1.0))

    def lift(self) -> None:
        self._lifted.set()


_READ_BYTES = 1 << 18
_LOOK_SECONDS = 0.2


class _Stream:
    def __init__(self, fd: int, place: int, mark: str, scrubber: Scrubber) -> None:
        self.fd = fd
        self.place = place  # stdout before stderr
        self.lines = LineSplitter(mark)
        self.scrubber = scrubber


class LineCopy:
    """The copying thread: passes every scrubbed line to `feed` and the log's bytes to `put`."""

    def __init__(
        self,
        feed: Callable[[bytes], None],
        put: Callable[[bytes], None],
        new_scrubber: Callable[[], Scrubber],
    ) -> None:
        self.copied = 0
        self._feed, self._put, self._new_scrubber = feed, put, new_scrubber
        self._cpu_limit = CpuLimit()
        self._streams: dict[int, _Stream] = {}
        self._is_busy = False
        self._is_ending = False
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="mwatch-copy", daemon=True)
        self._thread.start()

    def add(self, fds: Sequence[int], mark: str) -> None:
        for place, fd in enumerate(fds):
            stream = _Stream(fd, place, mark, self._new_scrubber())
            self._streams[fd] = stream
            self._selector.register(fd, selectors.EVENT_READ, stream)

    def lift_limit(self) -> None:
        """Copy at full speed: the trainer has ended, and its cores are free."""
        self._cpu_limit.lift()

    def finish(self, seconds: float) -> None:
        """Copy the remaining output without a CPU limit, for at most this long."""
        self.lift_limit()
        until = time.monotonic() + seconds
        while not self._is_empty() and time.monotonic() < until:
            time.sleep(0.005)
        self._is_ending = True
        self._thread.join(max(until - time.monotonic(), 2 * _LOOK_SECONDS))

    def _is_empty(self) -> bool:
        # Check the pipes first: the thread sets `_is_busy` before it empties one.
        for fd in list(self._streams):
            try:
                if bytes_waiting(fd):
                    return False
            except OSError:
                pass
        return not self._is_busy

    def _run(self) -> None:
        # Normal priority, not nice: while waiting for a core, this thread may hold the GIL, which
        # the signal-forwarding thread needs. `CpuLimit` protects the trainer instead.
        while not self._is_ending:
            # The order between waiting stdout and stderr is unknown: take stdout first, so that
            # output printed before an error precedes it.
            for key, _ in sorted(
                self._selector.select(_LOOK_SECONDS), key=lambda ready: ready[0].data.place
            ):
                self._is_busy = True
                self._take(key.data)
            self._is_busy = False
            self._cpu_limit.hold()
        for stream in list(self._streams.values()):
            self._end(stream)
        self._selector.close()

    def _take(self, stream: _Stream) -> None:
        try:
            data = os.read(stream.fd, _READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._end(stream)
            return
        before = stream.lines.missed
        self._use(stream, stream.lines.feed(data))
        missed = stream.lines.missed - before
        if missed:
            self._put(b"mwatch-run: %d bytes were printed too fast to be copied\n" % missed)

    def _end(self, stream: _Stream) -> None:
        self._selector.unregister(stream.fd)
        del self._streams[stream.fd]
        os.close(stream.fd)
        self._use(stream, stream.lines.finish())

    def _use(self, stream: _Stream, text: bytes) -> None:
        if not text:
            return
        self.copied += len(text)
        clean = stream.scrubber.scrub(text)
        for line in clean.split(b"\n")[:-1]:
            self._feed(line)
        self._put(clean)


KEPT_FILES = 4


class RotatedFile:
    """A log file that is rotated by rename and limited in size. A call blocks if the disk does.

    `trainer.log` is the newest file, `trainer.log.1` the one before. Every file begins at the start
    of a line.
    """

    def __init__(self, path: str, total_bytes: int) -> None:
        self.error = ""
        self._path = path
        self._limit = max(total_bytes // KEPT_FILES, 1)
        self._fd = -1
        self._size = 0
        self._is_at_line_start = True

    def write(self, data: bytes) -> int:
        """Write whole lines; return the number of bytes written. A failure is stored in `error`."""
        written = 0
        self.error = ""
        while written < len(data) and not self.error:
            try:
                written += self._write_some(data[written : written + self._limit])
            except OSError as error:
                self.error = error.strerror or type(error).__name__
        return written

    def _write_some(self, data: bytes) -> int:
        """Write as many whole lines as fit into this file or, after rotation, the next; a line
        larger than a file is written in part."""
        if self._fd >= 0 and not self._is_in_place():
            self.close()
        if self._fd < 0:
            self._open()
        end = data.rfind(b"\n", 0, max(self._limit - self._size, 0)) + 1
        if not end and self._size:
            self._rotate()
        if not end:
            end = data.rfind(b"\n") + 1 or len(data)
        if not self._is_at_line_start:
            self._size += os.write(self._fd, b"\n")
            self._is_at_line_start = True
        sent = os.write(self._fd, data[:end])
        self._size += sent
        self._is_at_line_start = data[sent - 1 : sent] == b"\n"
        return sent

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except OSError:
            return False

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o644)
        status = os.fstat(self._fd)
        self._size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self._is_at_line_start = not self._size or _last_byte(self._path) == b"\n"

    def _rotate(self) -> None:
        self.close()
        for number in range(KEPT_FILES - 1, 0, -1):
            older = f"{self._path}.{number}"
            newer = f"{self._path}.{number - 1}" if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, older)
        self._open()


def _last_byte(path: str) -> bytes:
    """Read the last byte of a file whose writer may have been killed in the middle of a line."""
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1)
    except OSError:
        return b"\n"


QUEUE_BYTES = 8 << 20
_MAX_WRITE = 1 << 20
_MISSING = b"mwatch-run: %d bytes are missing here: the disk was slow or full\n"


class LogWriter:
    """Writes the copy of the trainer's output in a thread, so that no caller waits for the disk.

    If the disk is slow or hangs, the oldest queued lines are dropped; if it is full, the lines that
    cannot be written. Both are counted and reported in the log once it can be written again.
    """

    def __init__(self, path: str, total_bytes: int) -> None:
        self.written = 0
        self.dropped = 0
        self.error = ""  # why the last write failed, if it did
        self._reported_drops = 0
        self._file = RotatedFile(path, total_bytes)
        self._queue: deque[bytes] = deque()
        self._waiting = 0
        self._in_hand = 0
        self._is_closing = False
        self._is_stuck = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="mwatch-log", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Queue whole lines. Never waits for the disk."""
        if not data:
            return
        with self._changed:
            self._queue.append(data)
            self._waiting += len(data)
            while self._waiting > QUEUE_BYTES and self._queue:
                lost = len(self._queue.popleft())
                self._waiting -= lost
                self.dropped += lost
            self._changed.notify_all()

    def drain(self, seconds: float) -> bool:
        """Wait until the queue is written or dropped and return whether it is; after an earlier
        timeout, return without waiting.
        """
        with self._changed:
            limit = 0.0 if self._is_stuck else seconds
            is_done = self._changed.wait_for(lambda: not self._waiting + self._in_hand, limit)
            self._is_stuck = not is_done
        return is_done

    def close(self, seconds: float) -> None:
        self.drain(seconds)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._in_hand = 0
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                if not self._queue:
                    break
                data = self._take()
            self._write(data)
        self._file.close()

    def _take(self) -> bytes:
        taken = [self._queue.popleft()]
        size = len(taken[0])
        while self._queue and size + len(self._queue[0]) <= _MAX_WRITE:
            taken.append(self._queue.popleft())
            size += len(taken[-1])
        self._waiting -= size
        self._in_hand = size
        return b"".join(taken)

    def _write(self, data: bytes) -> None:
        missing = self.dropped - self._reported_drops
        if missing and self._file.write(_MISSING % missing):
            self._reported_drops += missing
        written = self._file.write(data)
        self.error = self._file.error
        self.written += written
        with self._changed:
            self.dropped += len(data) - written
