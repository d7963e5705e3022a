# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A helper process that forwards the trainer's output to its destination.

It is separate from the wrapper, which may be busy, broken or killed: a pipe that is not read would
block the trainer, and one without a reader would kill it with SIGPIPE.

Each chunk is offered to the wrapper for its copy, without waiting, and then moved to the sink
unchanged. It leaves the trainer's pipe only when it has reached the sink (`tee` and `splice` in the
kernel), so a killed pump loses nothing: the next pump finds the chunk in the pipe. Output that the
wrapper does not take in time waits in a backlog of a few MiB. When the backlog is full, the oldest
output is replaced by a mark with the number of dropped bytes: the newest output, which shows why a
trainer died, is always kept. Bytes that a closed or full sink does not accept are lost and counted;
the trainer is not blocked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import select
import signal
import struct
import termios
import threading
import time
from collections import deque
from typing import Any, Callable, Sequence

CHUNK_BYTES = 1 << 20
SPLICE_BYTES = 1 << 16
"""Chunks of at least this size are moved inside the kernel. With `splice`, chunks of a few lines
would each take a page of the sink, and a briefly slow reader would block the trainer after 16."""
BACKLOG_BYTES = 8 << 20
_MERGE_BYTES = 1 << 16
_FLUSH_SECONDS = 5.0  # without progress; a busy node copies the end of a burst slowly
_MAX_FLUSH_SECONDS = 60.0
# While the trainer prints a lot, its pipe is read every millisecond instead of at each write, so
# that a write does not have to wake a reader; 1 ms at 200 MB/s fills a fifth of the pipe.
_PAUSE_SECONDS = 0.001
_BUSY_GAP_SECONDS = 0.002
_F_SETPIPE_SZ, _F_GETPIPE_SZ = 1031, 1032  # fcntl has the names from Python 3.10 on

COUNTERS = struct.Struct("<6Q")
"""Per stream: idle (1: no chunk in progress), and the bytes read, forwarded, lost, dropped from the
copy, and waiting for the copy."""
MARK_TAIL = b" bytes were not copied\n"
"""A gap in the copy is the mark, the number of bytes and this text. Before it may be the start of a
line whose end is in the gap; after it, up to the next newline, is the end of another line.
"""


class PumpedStream:
    def __init__(self, source: int, sink: int, copy: int, shared: mmap.mmap, slot: int) -> None:
        self.source, self.sink, self.copy = source, sink, copy
        self._shared, self._at = shared, slot * COUNTERS.size
        # Counters of the previous pump if it was killed: what it offered is not offered again.
        _, self.read, self.passed, self.lost, self._dropped, _ = COUNTERS.unpack_from(
            shared, self._at
        )
        self._offered = max(self.read - self.passed - self.lost, 0)
        self.read -= self._offered
        self._mover = Mover.create(source)
        self._is_sink_open = True
        self._buffer = bytearray(CHUNK_BYTES)
        self._view = memoryview(self._buffer)
        self._may_pause = _pipe_size(source) >= CHUNK_BYTES

    def run(self, mark: bytes) -> None:
        copy = Copy(self.copy, mark)
        last = 0.0
        while True:
            self._report(copy, idle=1)
            self._wait(copy)
            self._report(copy, idle=0)
            try:
                size = self._take()
            except OSError:
                break
            if not size:
                break
            self.read += size
            data = self._view[:size]
            again = min(self._offered, size)
            self._offered -= again
            copy.offer(data[again:])
            self._report(copy, idle=0)
            self._pass(data)
            now = time.monotonic()
            if self._may_pause and size < CHUNK_BYTES // 2 and now - last < _BUSY_GAP_SECONDS:
                time.sleep(_PAUSE_SECONDS)
                now = time.monotonic()
            last = now
        self._report(copy, idle=1)
        copy.flush(_FLUSH_SECONDS)
        self._report(copy, idle=1)

    def _wait(self, copy: Copy) -> None:
        poll = select.poll()
        poll.register(self.source, select.POLLIN)
        if copy.waiting:
            poll.register(self.copy, select.POLLOUT)
        while True:
            ready = dict(poll.poll())
            if self.copy in ready:
                copy.push()
                if not copy.waiting:
                    poll.unregister(self.copy)
                self._report(copy, idle=1)
            if self.source in ready:
                return

    def _take(self) -> int:
        """Copy the pipe's contents into the buffer; without a mover, also remove them from the
        pipe."""
        if self._mover is None:
            return os.readv(self.source, [self._buffer])
        return self._mover.peek(self._buffer)

    def _move(self, data: memoryview) -> int:
        """Move some bytes from the pipe to the sink."""
        mover = self._mover
        if mover is not None and mover.can_splice and len(data) >= SPLICE_BYTES:
            try:
                return mover.move(self.sink, len(data))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                mover.can_splice = False  # the sink is, for example, opened for appending
        sent = os.write(self.sink, data)
        if mover is not None:
            mover.discard(sent)
        return sent

    def _pass(self, data: memoryview) -> None:
        at = 0
        while at < len(data) and self._is_sink_open:
            try:
                at += self._move(data[at:])
            except BlockingIOError:  # another process made the sink non-blocking
                waiter = select.poll()
                waiter.register(self.sink, select.POLLOUT)
                waiter.poll(1000)
            except OSError as error:
                self._is_sink_open = error.errno not in (errno.EPIPE, errno.EBADF)
                break  # a full disk may have space for the next chunk
        if self._mover is not None:
            self._mover.discard(len(data) - at)
        self.passed += at
        self.lost += len(data) - at

    def _report(self, copy: Copy, idle: int) -> None:
        dropped = self._dropped + copy.dropped
        numbers = (idle, self.read, self.passed, self.lost, dropped, copy.waiting)
        COUNTERS.pack_into(self._shared, self._at, *numbers)


class Mover:
    """Reads a pipe without emptying it, and moves its bytes to another file inside the kernel."""

    def __init__(self, libc: Any, last_error: Callable[[], int], source: int) -> None:
        """Raises OSError."""
        self._libc, self._last_error, self._source = libc, last_error, source
        self._reading, self._writing = os.pipe()
        enlarge_pipe(self._writing, CHUNK_BYTES)
        self._nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self.can_splice = True

    @classmethod
    def create(cls, source: int) -> Mover | None:
        """Return None where the C library or the kernel has no such calls."""
        try:
            import ctypes

            libc = ctypes.CDLL(None, use_errno=True)
            for name in ("tee", "splice"):
                getattr(libc, name).restype = ctypes.c_ssize_t
            libc.tee.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint]
            libc.splice.argtypes = [
                ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p,
                ctypes.c_size_t, ctypes.c_uint,
            ]  # fmt: skip
            return cls(libc, ctypes.get_errno, source)
        except (ImportError, OSError, AttributeError):
            return None

    def peek(self, buffer: bytearray) -> int:
        """Wait for bytes in the pipe; return how many of them are in `buffer`. 0: its end."""
        size = self._checked(self._libc.tee(self._source, self._writing, CHUNK_BYTES, 0))
        return os.readv(self._reading, [buffer]) if size else 0

    def move(self, sink: int, size: int) -> int:
        return self._checked(
            self._libc.splice(self._source, None, sink, None, size, 0), is_empty_wrong=True
        )

    def discard(self, size: int) -> None:
        while size > 0:
            size -= self._checked(
                self._libc.splice(self._source, None, self._nowhere, None, size, 0),
                is_empty_wrong=True,
            )

    def _checked(self, result: int, *, is_empty_wrong: bool = False) -> int:
        if result < 0:
            number = self._last_error()
            raise OSError(number, os.strerror(number))
        if not result and is_empty_wrong:
            raise OSError(errno.EINVAL, "nothing was moved")
        return result


class Copy:
    """The connection to the wrapper, which may be slow or gone."""

    def __init__(self, fd: int, mark: bytes) -> None:
        self.fd = fd
        self.dropped = 0
        self.waiting = 0
        self._mark = mark
        self._gap = 0
        self._chunks: deque[bytearray] = deque()
        self._is_open = True

    def offer(self, data: memoryview) -> None:
        if not self._is_open:
            return
        self.push()
        sent = 0 if self.waiting else self._write(data)
        if sent < len(data) and self._is_open:
            self._keep(data[sent:])

    def push(self) -> None:
        while self._chunks and self._is_open:
            if self._gap:
                mark = self._mark + str(self._gap).encode() + MARK_TAIL
                if not self._write(memoryview(mark)):  # short enough to be written atomically
                    return
                self._gap = 0
            first = self._chunks[0]
            sent = self._write(memoryview(first))
            if not self._is_open:
                return
            self.waiting -= sent
            if sent < len(first):
                self._chunks[0] = first[sent:]
                return
            self._chunks.popleft()

    def flush(self, seconds: float) -> None:
        """Send the backlog; give up after this many seconds without progress."""
        now = time.monotonic()
        until, end = now + seconds, now + _MAX_FLUSH_SECONDS
        while self.waiting and self._is_open and time.monotonic() < min(until, end):
            waiter = select.poll()
            waiter.register(self.fd, select.POLLOUT)
            waiter.poll(100)
            before = self.waiting
            self.push()
            if self.waiting < before:
                until = time.monotonic() + seconds
        os.close(self.fd)

    def _keep(self, data: memoryview) -> None:
        if self._chunks and len(self._chunks[-1]) < _MERGE_BYTES:
            self._chunks[-1] += data
        else:
            self._chunks.append(bytearray(data))
        self.waiting += len(data)
        while self.waiting > BACKLOG_BYTES:
            lost = len(self._chunks.popleft())
            self.waiting -= lost
            self.dropped += lost
            self._gap += lost

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0
        except OSError:  # the wrapper is gone
            self._is_open = False
            self.waiting = 0
            self._chunks.clear()
            return 0


def _pipe_size(fd: int) -> int:
    try:
        return fcntl.fcntl(fd, _F_GETPIPE_SZ)
    except OSError:
        return 0


def enlarge_pipe(fd: int, size: int) -> bool:
    """Return whether the pipe has this size; False also at the user's limit of pipe memory."""
    try:
        return fcntl.fcntl(fd, _F_SETPIPE_SZ, size) >= size
    except OSError:
        return False


def bytes_waiting(fd: int) -> int:
    answer = fcntl.ioctl(fd, termios.FIONREAD, struct.pack("i", 0))
    return int(struct.unpack("i", answer)[0])


def main(arguments: Sequence[str]) -> None:
    """Run the pump: MARK COUNTERS-FD, then SOURCE:SINK:COPY for each stream."""
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)  # it ends when all writers are gone
    mark = arguments[0].encode()
    texts = arguments[2:]
    shared = mmap.mmap(int(arguments[1]), COUNTERS.size * len(texts))
    streams = []
    for slot, text in enumerate(texts):
        source, sink, copy = map(int, text.split(":"))
        os.set_blocking(copy, False)
        streams.append(PumpedStream(source, sink, copy, shared, slot))
    threads = [threading.Thread(target=_run_or_die, args=(each, mark)) for each in streams[1:]]
    for thread in threads:
        thread.start()
    _run_or_die(streams[0], mark)
    for thread in threads:
        thread.join()


def _run_or_die(stream: PumpedStream, mark: bytes) -> None:
    """End the process if one stream fails: the wrapper replaces a pump that has died."""
    try:
        stream.run(mark)
    except BaseException:
        os._exit(1)
