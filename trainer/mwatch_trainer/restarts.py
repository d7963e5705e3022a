# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A restart in place, asked for over the control socket: only in act, and once per attempt.

Whoever names the attempt that is to end can ask again, or late, and harms nothing: the attempt
after it is another one. A checkpoint to resume from is written as `decision.json`, which the next
attempt reads after it has asked the controller.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Any, Callable, Mapping

from mwatch_trainer import contract
from mwatch_trainer.asks import RESTART, Ask, Asks

_MAX_NUMBER = 10**12
_REMEMBERED = 64


class CannotRestart(ValueError):
    def __init__(self, kind: str, text: str, attempt: int | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.attempt = attempt


class Restarts:
    def __init__(
        self, directory: str, mode: str, asks: Asks, status: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._directory, self._mode = directory, mode
        self._asks, self._status = asks, status
        self._asked: deque[int] = deque(maxlen=_REMEMBERED)
        self._lock = threading.Lock()

    def ask(self, request: Mapping[str, Any], reason: str, grace: float) -> dict[str, Any]:
        """Raises CannotRestart, and OSError where the choice cannot be written."""
        if self._mode != contract.ACT:
            raise CannotRestart("observing", "a restart in place needs --act")
        wanted = _count(request, "attempt")
        resume_from = _count(request, "resume_from")
        with self._lock:
            current = self._status().get("attempt")
            if wanted is not None and wanted in self._asked:
                return {"accepted": RESTART, "already": True, "attempt": current}
            self._check(wanted, current)
            answer = {"accepted": RESTART, "attempt": current, "grace_seconds": grace}
            if request.get("check") is True:
                return {**answer, "accepted": None}
            if resume_from is not None:
                self._write_choice(current, resume_from, reason)
            if wanted is not None:
                self._asked.append(wanted)
            self._asks.put(Ask(RESTART, reason, grace, request.get("save") is True, wanted))
        return answer

    def _check(self, wanted: int | None, current: Any) -> None:
        if wanted is None:
            return
        if wanted != current:
            text = f"attempt {wanted} does not run: it is {current}"
            raise CannotRestart("wrong-attempt", text, current)
        if not self._status().get("is_running"):
            raise CannotRestart("not-running", f"attempt {wanted} has ended by itself", current)

    def _write_choice(self, current: Any, resume_from: int, reason: str) -> None:
        """Of the attempt after this one."""
        if not isinstance(current, int):
            raise CannotRestart("not-running", "no attempt has begun")
        choice = {"attempt": current + 1, "resume_from": resume_from, "reason": reason}
        contract.write_json(os.path.join(self._directory, contract.DECISION), choice)


def _count(request: Mapping[str, Any], name: str) -> int | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
        raise CannotRestart("refused", f"{name} must be a number from 0 on")
    return value
