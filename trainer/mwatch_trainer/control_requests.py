# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What others want from the wrapper: the control socket, a signal, the fence."""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, NamedTuple

STOP, RESTART, SIGNAL, FENCE = "stop", "restart", "signal", "fence"


class ControlRequest(NamedTuple):
    kind: str
    reason: str
    grace_seconds: float | None
    """Until everything is killed; None: never."""
    with_save: bool = False
    attempt: int | None = None
    """The only one that it is meant for; None: whichever runs."""

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.reason}"


class Asks:
    """Handed over from any thread to the loop, which is woken."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[ControlRequest] = deque(maxlen=64)
        self._lock = threading.Lock()

    def put(self, ask: ControlRequest) -> None:
        with self._lock:
            self._waiting.append(ask)
        self._wake()

    def take(self, attempt: int | None = None) -> list[ControlRequest]:
        """What was meant for another attempt is forgotten: that one has ended by itself."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return [each for each in taken if each.attempt is None or each.attempt == attempt]
