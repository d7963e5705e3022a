# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Slow work besides restarts, in threads: ledger reads and notes, tokens, upkeep.

Work that fails because of the cluster is retried; the number of waiting jobs is bounded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from mwatch.kube.errors import KubeError

MAX_WAITING = 512
KNOWN_SECONDS = 600.0
"""How long a failure stays in `problems` if its work is not retried."""
_FIRST_AGAIN = 2.0
_LONGEST_AGAIN = 60.0
_AT_ONCE = 2


@dataclass(slots=True)
class _BackgroundJob:
    work: Callable[[], object]
    every: float | None
    due_at: float
    failures: int = 0
    future: Future[object] | None = None


class BackgroundJobs:
    """Runs periodic and one-time work. Only the controller's loop may call it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, "mwatch-background")
        self._jobs: OrderedDict[str, _BackgroundJob] = OrderedDict()
        self._is_closed = threading.Event()
        self.problems: dict[str, str] = {}
        """The last failure, by name."""
        self._ended: dict[str, float] = {}
        """When work that is not retried failed, by name."""
        self.dropped = 0

    def every(self, name: str, seconds: float, work: Callable[[], object], now: float) -> None:
        job = self._jobs.get(name)
        if job is None:
            self._jobs[name] = _BackgroundJob(work, seconds, now)
        else:
            job.work = work

    def once(self, name: str, work: Callable[[], object], now: float) -> None:
        """Run once. Work of the same name is replaced if it has not begun; while it runs, the new
        work is dropped."""
        known = self._jobs.get(name)
        if known is not None and known.future is None:
            known.work = work
        elif known is None and len(self._jobs) < MAX_WAITING:
            self._jobs[name] = _BackgroundJob(work, None, now)
        else:
            self.dropped += 1

    def has(self, name: str) -> bool:
        return name in self._jobs

    def turn(self, now: float) -> None:
        """Collect finished work and start due work."""
        for name, job in list(self._jobs.items()):
            if job.future is not None and job.future.done():
                self._collect(name, job, now)
        for name in [name for name, at in self._ended.items() if now - at > KNOWN_SECONDS]:
            del self._ended[name]
            self.problems.pop(name, None)
        for job in self._jobs.values():
            if job.future is None and job.due_at <= now and not self._is_closed.is_set():
                job.future = self._pool.submit(job.work)

    def _collect(self, name: str, job: _BackgroundJob, now: float) -> None:
        assert job.future is not None
        error, job.future = job.future.exception(), None
        self._ended.pop(name, None)
        if error is None:
            self.problems.pop(name, None)
            job.failures = 0
            if job.every is None:
                del self._jobs[name]
            else:
                job.due_at = now + job.every
            return
        self.problems[name] = str(error)[:300]
        if not isinstance(error, KubeError) and job.every is None:
            del self._jobs[name]  # a bug does not go away by itself
            self._ended[name] = now
            return
        pause = min(_LONGEST_AGAIN, _FIRST_AGAIN * 2.0**job.failures)
        job.failures = min(job.failures + 1, 16)
        job.due_at = now + max(pause, 0.0 if job.every is None else min(job.every, pause))

    def close(self) -> None:
        self._is_closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
