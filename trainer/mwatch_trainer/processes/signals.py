# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Wakes the wrapper's loop: signals, as numbers in a pipe, and requests from other threads.

The handlers do nothing and are reset by exec, so the trainer starts with the same signal handling
as without mwatch; a signal ignored at the start (nohup) stays ignored for both.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections import deque
from typing import Callable, NamedTuple

_NOT_OURS = {"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGABRT"}
_QUIET = {"SIGPIPE", "SIGXFSZ", "SIGURG", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGSYS", "SIGVTALRM"}
_QUIET |= {"SIGPROF", "SIGXCPU", "SIGIO", "SIGPOLL"}

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals sent to end a process."""


class Signals:
    """Signal handlers and wakeup pipe. Create once, in the main thread, before any other thread."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        for number in signal.Signals:
            if number.name in _NOT_OURS | _QUIET or signal.getsignal(number) is signal.SIG_IGN:
                continue
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, _nothing)
        # SIGCHLD is ignored by default, but must wake the loop.
        signal.signal(signal.SIGCHLD, _nothing)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)

    def wake(self) -> None:
        """Wake the loop, from any thread. The number 0 is not a signal."""
        with contextlib.suppress(OSError):
            os.write(self._writing, b"\0")

    def wait(self, seconds: float) -> list[int]:
        """Wait for the first signal; return all received, oldest first."""
        with contextlib.suppress(OSError):
            select.select([self._reading], [], [], max(seconds, 0.0))
        numbers = b""
        with contextlib.suppress(OSError):
            numbers = os.read(self._reading, 4096)
        return [each for each in numbers if each]


def is_from_terminal() -> bool:
    """Whether the wrapper is in the terminal's foreground group: without mwatch, Ctrl-C would
    reach every process of the command, not only the first."""
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(fd)


def name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _nothing(_number: int, _frame: object) -> None:
    pass


STOP, RESTART, SIGNAL, FENCE = "stop", "restart", "signal", "fence"


class ControlRequest(NamedTuple):
    kind: str
    reason: str
    grace_seconds: float | None  # time until everything is killed; None: never
    with_save: bool = False
    attempt: int | None = None  # the attempt it is meant for; None: the current one

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.reason}"


class RequestQueue:
    """Passes requests from any thread to the wrapper's loop and wakes it."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[ControlRequest] = deque(maxlen=64)
        self._lock = threading.Lock()

    def put(self, request: ControlRequest) -> None:
        with self._lock:
            self._waiting.append(request)
        self._wake()

    def take(self, attempt: int | None = None) -> list[ControlRequest]:
        """Take all requests; those for another attempt, which has ended, are dropped."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return [each for each in taken if each.attempt is None or each.attempt == attempt]
