# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Termination signals: as one event in a long-running process, or as one exception in the main
thread of a run.

The training command has its own session and does not receive these signals; mwatch ends it in
order. A section that must not be interrupted (a process was started and is not recorded yet) holds
the signals back, and they are raised at its end. A main thread that is blocked on an unresponsive
disk receives no signal; `BlockedMainThread` handles it instead.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """An event that the first signal sets; further ones have no effect, as the exit is quick."""
    asked = threading.Event()

    def came(number: int, frame: FrameType | None) -> None:
        asked.set()

    before = {each: signal.signal(each, came) for each in _END_SIGNALS}
    try:
        yield asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


_INTERRUPT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """Not an Exception, so that no error handler catches it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Interrupts:
    """Raises signals as exceptions from `begin` on, when the caller is ready to catch them; earlier
    signals are raised by `begin` itself."""

    def __init__(self) -> None:
        self._holds = 1
        self._pending: int | None = None

    def begin(self) -> None:
        self._release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold signals back in the body and raise them at its end."""
        self._holds += 1
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        self._holds -= 1
        number = self._pending
        if number is not None and not self._holds:
            self._pending = None
            raise Interrupted(number)

    def ignore(self) -> None:
        """Ignore further signals, because the exit is under way."""
        self._holds += 1

    def came(self, number: int, frame: FrameType | None = None) -> None:
        if not self._holds:
            raise Interrupted(number)
        if self._pending is None:
            self._pending = number


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """After `begin`, a signal raises Interrupted; a signal that was ignored (`nohup`) stays so."""
    caught = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {each: signal.getsignal(each) for each in _INTERRUPT_SIGNALS}
    chosen = [each for each, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    try:
        for each in chosen:
            signal.signal(each, caught.came)
        yield caught
    finally:
        for each in chosen:
            signal.signal(each, before[each])


_LOOK_SECONDS = 1.0
_BLOCKED_LOOKS = 5
_REPORT_LOOKS = 10
_FUSE_WAIT = "request_wait_answer"


class BlockedMainThread:
    """While the main thread is blocked on an unresponsive disk, reports it once, and passes the
    next signal to `end`, which must not access the disk.

    Such a signal stays pending for the process, so this thread can take it.
    """

    def __init__(self, report: Callable[[], None], end: Callable[[int], None]) -> None:
        self._report = report
        self._end = end
        self._done = threading.Event()

    @contextmanager
    def watched(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        caught = {each for each in _INTERRUPT_SIGNALS if callable(signal.getsignal(each))}
        thread = threading.Thread(target=self._follow, args=(caught,), name="signals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join(_LOOK_SECONDS)

    def _follow(self, caught: set[signal.Signals]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT_SIGNALS)
        where, looks = "", 0
        while not self._done.wait(_LOOK_SECONDS):
            now = self._disk_wait()
            looks = looks + 1 if now and now == where else 0
            where = now
            if looks == _REPORT_LOOKS:
                self._report()
            if looks >= _BLOCKED_LOOKS and (taken := signal.sigtimedwait(caught, 0)) is not None:
                self._end(taken.si_signo)

    def _disk_wait(self) -> str:
        """Identifies the disk wait of the main thread by its count of context switches, which does
        not change during one wait; empty if not blocked. A wait for FUSE is in state S until a
        signal comes."""
        folder = Path(f"/proc/self/task/{os.getpid()}")
        try:
            status = (folder / "status").read_text("ascii", "replace")
            place = (folder / "wchan").read_text("ascii", "replace")
        except OSError:
            return ""
        if not re.search(r"^State:\s+D", status, re.MULTILINE) and place != _FUSE_WAIT:
            return ""
        found = re.search(r"^voluntary_ctxt_switches:.*", status, re.MULTILINE)
        return found.group() if found else ""
