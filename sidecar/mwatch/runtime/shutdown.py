# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that ask mwatch to end: as one event for a long-running process, or as one exception in
the main thread of a run.

The command has its own session and does not get them; mwatch ends it in order. A section that must
not be interrupted (a process was started and is not recorded yet) holds the signals, which are
raised at its end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Set by the first signal; a second one has no effect, as the exit is quick."""
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


class Interrupted(BaseException):
    """Not an Exception: no error handler may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


class Interrupts:
    def __init__(self) -> None:
        self._holds = 0
        self._pending: int | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Signals in between are raised at the end."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            number = self._pending
            if number is not None and not self._holds:
                self._pending = None
                raise Interrupted(number)

    def ignore(self) -> None:
        """From now on the exit is under way, and signals are ignored."""
        self._holds += 1

    def came(self, number: int, frame: FrameType | None = None) -> None:
        if not self._holds:
            raise Interrupted(number)
        if self._pending is None:
            self._pending = number


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Each signal raises Interrupted; an ignored one (`nohup`) stays ignored."""
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
