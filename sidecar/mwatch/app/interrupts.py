# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Signals that ask a run to end, as one exception in the main thread.

The command has a session of its own and does not see them: it is for us to end it in order.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """No Exception: nothing that mends errors may take it for one."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextmanager
def interrupts() -> Iterator[None]:
    """Each signal raises Interrupted; one that is ignored (`nohup`) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    chosen = [each for each, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        for each in chosen:
            signal.signal(each, _raise)
        yield
    finally:
        for each in chosen:
            signal.signal(each, before[each])


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)
