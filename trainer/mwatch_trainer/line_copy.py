# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The thread that takes the copy of the output: whole lines, scrubbed, read for us, to the log.

It is held to a share of a core. Where the trainer prints more than that, the pump drops the oldest
and marks the gap; a line in the log says how much is missing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from typing import Callable, Sequence

from mwatch_trainer.lines import Lines
from mwatch_trainer.linux import bytes_waiting
from mwatch_trainer.pace import Pace
from mwatch_trainer.scrub import Scrubber

_READ_BYTES = 1 << 18
_LOOK_SECONDS = 0.2


class _Stream:
    def __init__(self, fd: int, place: int, mark: str, scrubber: Scrubber) -> None:
        self.fd = fd
        self.place = place
        """Of stdout before that of stderr."""
        self.lines = Lines(mark)
        self.scrubber = scrubber


class LineCopy:
    """`feed` sees every line as it is copied: what it finds is told, too. `put` takes the log's
    bytes."""

    def __init__(
        self,
        feed: Callable[[bytes], None],
        put: Callable[[bytes], None],
        new_scrubber: Callable[[], Scrubber],
    ) -> None:
        self.copied = 0
        self.missed = 0
        self._feed, self._put, self._new_scrubber = feed, put, new_scrubber
        self._pace = Pace()
        self._streams: dict[int, _Stream] = {}
        self._is_busy = False
        self._is_ending = False
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="mwatch-copy", daemon=True)
        self._thread.start()

    def add(self, fds: Sequence[int], mark: str) -> None:
        """Takes the file descriptors over, and closes each at its end."""
        for place, fd in enumerate(fds):
            stream = _Stream(fd, place, mark, self._new_scrubber())
            self._streams[fd] = stream
            self._selector.register(fd, selectors.EVENT_READ, stream)

    def hurry(self) -> None:
        """The trainer has ended: its cores are free."""
        self._pace.hurry()

    def finish(self, seconds: float) -> bool:
        """Takes what is there without pace; whether that was all of it within the time."""
        self.hurry()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._is_empty():
                break
            time.sleep(0.005)
        is_all = self._is_empty()
        self._is_ending = True
        self._thread.join(max(until - time.monotonic(), 2 * _LOOK_SECONDS))
        return is_all

    def _is_empty(self) -> bool:
        # The pipe first: the thread says that it is busy before it empties one.
        for fd in list(self._streams):
            try:
                if bytes_waiting(fd):
                    return False
            except OSError:
                pass
        return not self._is_busy

    def _run(self) -> None:
        _step_back()
        while not self._is_ending:
            # What waits on both at once has no order: what was printed before an error comes first.
            for key, _ in sorted(self._selector.select(_LOOK_SECONDS), key=_place):
                self._is_busy = True
                self._take(key.data)
            self._is_busy = False
            self._pace.hold()
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
        missed = stream.lines.missed
        self._use(stream, stream.lines.feed(data))
        if stream.lines.missed > missed:
            missed = stream.lines.missed - missed
            self.missed += missed
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


def _place(ready: tuple[selectors.SelectorKey, int]) -> int:
    place: int = ready[0].data.place
    return place


def _step_back() -> None:
    """Lower the priority of this thread alone."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
