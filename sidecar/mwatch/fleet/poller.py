# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Listens to the sidecars of thousands of pods, from one thread.

`GET /v1/snapshot?after=CURSOR&follow=PERIOD` stays open: the sidecar sends a line every PERIOD, and
immediately when something happens. An older sidecar, or one with too many listeners, answers once
and is polled every PERIOD instead, with the pods spread over the period; one that keeps failing is
polled less often. An answer counts only if it comes from the pod that the API server names at that
address.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from selectors import DefaultSelector, SelectorKey
from typing import NamedTuple
from urllib.parse import quote

from mwatch.fleet.cluster_view import PodSeen
from mwatch.fleet.visibility import Polled
from mwatch.model.snapshot.snapshot_wire import STEADY, PodSnapshot, decode, decode_steady
from mwatch.runtime.http_client import (
    FailureKind,
    HttpRequest,
    RequestFailed,
    Streams,
    follow,
    reason,
)

_MAX_TEXT = 160
_WHOLE_BYTES = 1 << 20
"""A sidecar ends an answer at this size, and sends the rest with the next."""


class PollLimits(NamedTuple):
    seconds: float = 2.0
    at_once: int = 256
    """Requests that wait for their first answer."""
    max_bytes: int = 8 << 20
    untaken: int = 8192
    """Answers that the loop has not taken yet; polling stops at this number."""


class Answered(NamedTuple):
    snapshot: PodSnapshot | None
    problem: str = ""
    kind: str = ""
    is_whole: bool = True

    def of(self, uid: str, namespace: str, name: str) -> Answered:
        """The answer unchanged if it comes from that pod, else a refusal."""
        if self.snapshot is None:
            return self
        sender = self.snapshot.who
        if (sender.uid, sender.namespace, sender.pod) == (uid, namespace, name):
            return self
        text = f"pod {sender.namespace}/{sender.pod} (UID {sender.uid})"
        return Answered(None, f"refused: the server there is {text}"[:_MAX_TEXT], "foreign")


class _Untaken(RequestFailed):
    """Too many answers wait for the controller's loop."""

    def __init__(self) -> None:
        super().__init__(FailureKind.LATE, "")


def _read(body: bytes, last: PodSnapshot | None) -> Answered:
    try:
        if body.startswith(STEADY):
            if last is None:
                return Answered(None, "it says that nothing changed, before all else", "bad")
            return Answered(decode_steady(body, last))
        return Answered(decode(body), is_whole=len(body) < _WHOLE_BYTES)
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


def targets(pods: Iterable[PodSeen]) -> dict[str, PollTarget]:
    """The pods whose sidecar can be polled, by UID."""
    return {
        pod.uid: PollTarget(pod.uid, pod.namespace, pod.name, pod.ip, port, pod.has_host_network)
        for pod, port in pods
        if port is not None and pod.ip and pod.phase == "Running"
    }


_BATCH_SECONDS = 0.05


class _Batches(DefaultSelector):
    """Waits a moment before each select, so that one wake-up reads all lines that arrive together:
    a wake-up costs about as much as handling a line, and no line is that urgent."""

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None or timeout > 0:
            time.sleep(_BATCH_SECONDS)
        return super().select(timeout and max(0.0, timeout - _BATCH_SECONDS))


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
        self._streams = Streams(period + self._limits.seconds)
        self._loop = asyncio.SelectorEventLoop(_Batches())
        self._thread = threading.Thread(target=self._run, name="mwatch-poll", daemon=True)
        self._pods: dict[str, _Pod] = {}
        self._waiting: deque[_Pod] = deque()
        self._busy = 0
        """Requests without an answer yet."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: deque[Polled] = deque()
        self.polls = 0
        """Answers, whole or steady, and failures."""
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

    def ask(self, uids: Iterable[str]) -> None:
        """Request a line within a second or two from those with an open stream; from any thread."""
        self._loop.call_soon_threadsafe(self._ask, list(uids))

    def _ask(self, uids: Iterable[str]) -> None:
        for uid in uids:
            pod = self._pods.get(uid)
            if pod is not None and pod.ask is not None and pod.is_answered:
                pod.ask()

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
                pod.hang_up()

    def _later(self, pod: _Pod, seconds: float) -> None:
        pod.handle = self._loop.call_later(seconds, self._due, pod)

    def _due(self, pod: _Pod) -> None:
        pod.due_at = self._loop.time()
        self._waiting.append(pod)
        self._next()

    def _next(self) -> None:
        """Start polls, unless too many answers wait for the controller's loop."""
        while self._waiting and self._busy < self._limits.at_once:
            pod = self._waiting.popleft()
            if pod.is_forgotten:
                continue
            if len(self._answers) >= self._limits.untaken:
                self._later(pod, self.period)
                continue
            self._busy += 1
            pod.is_answered = False
            task = pod.task = self._loop.create_task(self._poll(pod))
            self._tasks.add(task)
            task.add_done_callback(partial(self._done, pod))

    def _done(self, pod: _Pod, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not pod.is_answered:
            self._first_answer(pod)
        if pod.is_forgotten:
            return
        if task.cancelled():
            self._later(pod, 0.0)  # its address has changed
        elif error := task.exception():  # a bug here must not end the polling of a pod
            self._failed(pod, Answered(None, f"{type(error).__name__}: {error}"[:_MAX_TEXT], "bad"))

    def _first_answer(self, pod: _Pod) -> None:
        pod.is_answered = True
        self._busy -= 1
        self._next()

    async def _poll(self, pod: _Pod) -> None:
        """Send one request and take its lines until the sidecar ends the answer."""
        limits, target, port = self._limits, pod.target, pod.port
        after = f"&after={quote(pod.cursor, safe='.')}" if pod.cursor else ""
        path = f"/v1/snapshot?follow={self.period:g}{after}"
        request = HttpRequest(target.address, port, path)
        lines, refused = 0, None

        def line(body: bytes) -> None:
            nonlocal lines, refused
            lines += 1
            found = self._take(pod, port, body)
            if found.snapshot is None:
                refused = found
                raise RequestFailed(FailureKind.BAD, found.problem)

        try:
            status, body = await follow(
                request, line, seconds=limits.seconds, max_bytes=limits.max_bytes,
                streams=self._streams, asker=pod.use,
            )  # fmt: skip
            if status != HTTPStatus.OK:
                raise RequestFailed(FailureKind.BAD, f"it answers with status {status}")
            found = self._take(pod, port, bytes(body)) if body or not lines else Answered(pod.last)
        except _Untaken:
            self._later(pod, self.period)
            return
        except RequestFailed as error:
            found = refused or Answered(None, str(error), error.kind)
        if pod.is_forgotten:
            return
        if found.snapshot is None:
            self._failed(pod, found)
        else:
            self._again(pod, found)

    def _failed(self, pod: _Pod, found: Answered) -> None:
        self.polls += 1
        self.failures[found.kind] += 1
        polled = Polled(pod.target.uid, self._clock(), None, found.problem, port=pod.port)
        self._answers.append(polled)
        pod.failed(found)
        self._again(pod, found)

    def _take(self, pod: _Pod, port: int, body: bytes) -> Answered:
        if len(self._answers) >= self._limits.untaken:
            raise _Untaken
        found = _read(body, pod.last)
        is_steady = body.startswith(STEADY)
        if not is_steady:
            found = found.of(pod.target.uid, pod.target.namespace, pod.target.name)
        snapshot = found.snapshot
        if snapshot is None or pod.is_forgotten:
            return found
        if not pod.is_answered:
            self._first_answer(pod)
        self.polls += 1
        pod.failures, pod.cursor = 0, snapshot.cursor
        if not is_steady:
            pod.last = snapshot.after(pod.last).settled()
        at, is_whole = self._clock(), found.is_whole
        polled = Polled(pod.target.uid, at, snapshot, "", is_whole, port, is_steady)
        self._answers.append(polled)
        return found

    def _again(self, pod: _Pod, found: Answered) -> None:
        """Schedule the next request: one period after the last one began, which after a long stream
        means immediately; also immediately if the sidecar has more to send."""
        if found.snapshot is not None and not found.is_whole:
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
    task: asyncio.Task[None] | None = None
    is_answered: bool = True
    """The current request has been answered."""
    last: PodSnapshot | None = None
    """The last whole answer, which steady ones refer to."""
    is_forgotten: bool = False
    ask: Callable[[], None] | None = None
    """Asks for a line on the open stream."""

    def use(self, ask: Callable[[], None]) -> None:
        self.ask = ask

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
        self.hang_up()

    def hang_up(self) -> None:
        if self.task is not None:
            self.task.cancel()
