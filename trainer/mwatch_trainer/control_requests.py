# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Requests to stop or restart the trainer: from the control socket, a signal, or fencing."""

from __future__ import annotations

import threading
from collections import deque
from typing import Callable, NamedTuple

STOP, RESTART, SIGNAL, FENCE = "stop", "restart", "signal", "fence"


class ControlRequest(NamedTuple):
    kind: str
    reason: str
    grace_seconds: float | None  # until everything is killed; None: never
    with_save: bool = False
    attempt: int | None = None  # the attempt it is meant for; None: the current one

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.reason}"


class RequestQueue:
    """Hands requests from any thread to the wrapper's loop, which it wakes."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[ControlRequest] = deque(maxlen=64)
        self._lock = threading.Lock()

    def put(self, request: ControlRequest) -> None:
        with self._lock:
            self._waiting.append(request)
        self._wake()

    def take(self, attempt: int | None = None) -> list[ControlRequest]:
        """Take all requests; drop those for another attempt, which has ended by itself."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return [each for each in taken if each.attempt is None or each.attempt == attempt]
