# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Small slow work beside the acts: ledger reads and notes, tokens, upkeep. Never in the way.

What fails for the cluster's sake is tried again later; a bounded number of things wait.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from mwatch.kube.errors import KubeError

MAX_WAITING = 512
TOLD_SECONDS = 600.0
"""For so long it is known that something failed that is not tried again."""
_FIRST_AGAIN = 2.0
_LONGEST_AGAIN = 60.0
_AT_ONCE = 2


@dataclass(slots=True)
class _Chore:
    work: Callable[[], object]
    every: float | None
    due_at: float
    failures: int = 0
    future: Future[object] | None = None


class BackgroundJobs:
    """Only the controller's loop calls it; the work itself runs in threads of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, "mwatch-chore")
        self._chores: OrderedDict[str, _Chore] = OrderedDict()
        self._is_closed = threading.Event()
        self.problems: dict[str, str] = {}
        """By name: why the last try failed."""
        self._ended: dict[str, float] = {}
        """When what is not tried again has failed."""
        self.dropped = 0

    def every(self, name: str, seconds: float, work: Callable[[], object], now: float) -> None:
        chore = self._chores.get(name)
        if chore is None:
            self._chores[name] = _Chore(work, seconds, now)
        else:
            chore.work = work

    def once(self, name: str, work: Callable[[], object], now: float) -> None:
        """One of that name at a time; what is asked for again takes the place of one that has
        not begun."""
        known = self._chores.get(name)
        if known is not None and known.future is None:
            known.work = work
        elif known is None and len(self._chores) < MAX_WAITING:
            self._chores[name] = _Chore(work, None, now)
        else:
            self.dropped += 1

    def has(self, name: str) -> bool:
        return name in self._chores

    def turn(self, now: float) -> None:
        """Collects what is done and begins what is due."""
        for name, chore in list(self._chores.items()):
            if chore.future is not None and chore.future.done():
                self._collect(name, chore, now)
        for name in [name for name, at in self._ended.items() if now - at > TOLD_SECONDS]:
            del self._ended[name]
            self.problems.pop(name, None)
        for chore in self._chores.values():
            if chore.future is None and chore.due_at <= now and not self._is_closed.is_set():
                chore.future = self._pool.submit(chore.work)

    def _collect(self, name: str, chore: _Chore, now: float) -> None:
        assert chore.future is not None
        error, chore.future = chore.future.exception(), None
        self._ended.pop(name, None)
        if error is None:
            self.problems.pop(name, None)
            chore.failures = 0
            if chore.every is None:
                del self._chores[name]
            else:
                chore.due_at = now + chore.every
            return
        self.problems[name] = str(error)[:300]
        if not isinstance(error, KubeError) and chore.every is None:
            del self._chores[name]  # a fault of ours does not mend itself
            self._ended[name] = now
            return
        pause = min(_LONGEST_AGAIN, _FIRST_AGAIN * 2.0**chore.failures)
        chore.failures = min(chore.failures + 1, 16)
        chore.due_at = now + max(pause, 0.0 if chore.every is None else min(chore.every, pause))

    def close(self) -> None:
        self._is_closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
