# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Polls the sidecars of thousands of pods every few seconds, from one thread.

`GET /v1/snapshot?after=CURSOR`, each pod at its own moment of the period; a pod that keeps failing
is polled less often. An answer counts only if it comes from the pod that the API server names at
that address.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote

from mwatch.fleet.visibility import Polled
from mwatch.model.snapshot.snapshot_wire import PodSnapshot, decode
from mwatch.runtime.http_client import FailureKind, HttpRequest, RequestFailed, fetch, reason

_MAX_TEXT = 160
_WHOLE_BYTES = 1 << 20
"""A sidecar ends an answer at this size, and sends the rest with the next."""


class PollLimits(NamedTuple):
    seconds: float = 2.0
    at_once: int = 256
    max_bytes: int = 8 << 20
    untaken: int = 8192
    """Answers that the loop has not taken yet; polling stops at this number."""


class Answered(NamedTuple):
    snapshot: PodSnapshot | None
    problem: str = ""
    kind: str = ""
    is_whole: bool = True

    def of(self, uid: str, namespace: str, name: str) -> Answered:
        """Unchanged if it comes from that pod, else refused."""
        if self.snapshot is None:
            return self
        sender = self.snapshot.who
        if (sender.uid, sender.namespace, sender.pod) == (uid, namespace, name):
            return self
        text = f"pod {sender.namespace}/{sender.pod} (UID {sender.uid})"
        return Answered(None, f"refused: the server there is {text}"[:_MAX_TEXT], "foreign")


async def _ask(target: PollTarget, port: int, cursor: str, limits: PollLimits) -> Answered:
    """Never raises for a failure of the other side."""
    after = f"?after={quote(cursor, safe='.')}" if cursor else ""
    request = HttpRequest(target.address, port, f"/v1/snapshot{after}")
    try:
        status, body = await fetch(request, seconds=limits.seconds, max_bytes=limits.max_bytes)
        if status != HTTPStatus.OK:
            return Answered(None, f"it answers with status {status}", FailureKind.BAD)
        return Answered(decode(body), is_whole=len(body) < _WHOLE_BYTES)
    except RequestFailed as error:
        return Answered(None, str(error), error.kind)
    except ValueError as error:
        return Answered(None, f"its answer cannot be read: {reason(error)}", FailureKind.BAD)


PORT_TRIES = 16
"""A sidecar on its node's network takes the next free port (`export.http`)."""
_SLOW_AFTER = 3
_LONGEST_WAIT = 30.0
_END_SECONDS = 1.0


class PollTarget(NamedTuple):
    uid: str
    namespace: str
    name: str
    address: str
    port: int
    has_host_network: bool = False


class PodPoll:
    def __init__(
        self,
        clock: Callable[[], float],
        *,
        period: float = 5.0,
        limits: PollLimits | None = None,
    ) -> None:
        self._clock = clock
        self.period = period
        self._limits = limits or PollLimits()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="mwatch-poll", daemon=True)
        self._pods: dict[str, _Pod] = {}
        self._waiting: deque[_Pod] = deque()
        self._busy = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: deque[Polled] = deque()
        self.polls = 0
        self.failures: Counter[str] = Counter()
        """By kind: `unreachable`, `late`, `foreign`, `bad`, `large`."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop)
            self._thread.join(2.0)

    def want(self, targets: Iterable[PollTarget]) -> None:
        """Poll exactly these; from any thread."""
        wanted = {each.uid: each for each in targets}
        self._loop.call_soon_threadsafe(self._set, wanted)

    def take(self) -> list[Polled]:
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            if left := asyncio.all_tasks(self._loop):
                for task in left:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(left, timeout=_END_SECONDS))
            self._loop.close()

    def _stop(self) -> None:
        self._set({})
        for task in self._tasks:
            task.cancel()
        self._loop.call_later(0.05, self._loop.stop)

    def _set(self, wanted: dict[str, PollTarget]) -> None:
        for uid in [uid for uid in self._pods if uid not in wanted]:
            self._pods.pop(uid).forget()
        for uid, target in wanted.items():
            pod = self._pods.get(uid)
            if pod is None:
                pod = self._pods[uid] = _Pod(target)
                share = zlib.crc32(uid.encode()) / 2**32  # spreads the pods over the period
                self._later(pod, share * self.period)
            elif pod.target != target:
                pod.target = target

    def _later(self, pod: _Pod, seconds: float) -> None:
        pod.handle = self._loop.call_later(seconds, self._due, pod)

    def _due(self, pod: _Pod) -> None:
        pod.due_at = self._loop.time()
        self._waiting.append(pod)
        self._next()

    def _next(self) -> None:
        """Start polls, unless the loop leaves too many answers untaken."""
        while self._waiting and self._busy < self._limits.at_once:
            pod = self._waiting.popleft()
            if pod.is_forgotten:
                continue
            if len(self._answers) >= self._limits.untaken:
                self._later(pod, self.period)
                continue
            self._busy += 1
            task = self._loop.create_task(self._poll(pod))
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._busy -= 1
        self._next()

    async def _poll(self, pod: _Pod) -> None:
        target, port = pod.target, pod.port
        self.polls += 1
        found = await _ask(target, port, pod.cursor, self._limits)
        if pod.is_forgotten:
            return
        found = found.of(target.uid, target.namespace, target.name)
        snapshot = found.snapshot
        if snapshot is None:
            self.failures[found.kind] += 1
            pod.failed(found)
        else:
            pod.failures, pod.cursor = 0, snapshot.cursor
        polled = Polled(target.uid, self._clock(), snapshot, found.problem, found.is_whole, port)
        self._answers.append(polled)
        self._again(pod, found)

    def _again(self, pod: _Pod, found: Answered) -> None:
        """Schedule the next poll: at once if the sidecar has more to send."""
        if not found.is_whole and found.snapshot is not None:
            self._later(pod, 0.0)
            return
        slower = max(0, pod.failures - _SLOW_AFTER)
        wait = min(self.period * 2.0 ** min(slower, 8), max(_LONGEST_WAIT, self.period))
        self._later(pod, max(0.0, pod.due_at + wait - self._loop.time()))


@dataclass(slots=True, eq=False)
class _Pod:
    target: PollTarget
    cursor: str = ""
    failures: int = 0
    tries: int = 0
    due_at: float = 0.0
    handle: asyncio.TimerHandle | None = None
    is_forgotten: bool = False

    @property
    def port(self) -> int:
        return self.target.port + (self.tries % PORT_TRIES if self.target.has_host_network else 0)

    def failed(self, found: Answered) -> None:
        self.failures += 1
        if found.kind in ("unreachable", "foreign"):
            self.tries += 1  # its sidecar may have taken another port

    def forget(self) -> None:
        self.is_forgotten = True
        if self.handle is not None:
            self.handle.cancel()
