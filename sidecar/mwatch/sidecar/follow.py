# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Streams snapshots to a controller: `/v1/snapshot?follow=SECONDS`, one per line.

A line is sent at once when something changed that a decision could depend on. Otherwise one is sent
per period, or after the next evaluation if the controller sends a newline: before it restarts a
job, it requests one more snapshot from every pod.

If nothing but time has passed, the line is *steady*: it has only the records of the ranks, and
everything else is as in the last whole line. A pod whose state flickers is limited to the period:
it must not cost more than one that is polled.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from mwatch.export.http.server import Page, Send
from mwatch.model.event import Error, Exit, Fault, Phase
from mwatch.model.observation import AttemptStart, ProcessExit, SourceStatusChange
from mwatch.model.snapshot.snapshot_wire import REPORTED_SECONDS

if TYPE_CHECKING:
    from mwatch.sidecar.server import Evaluated, SnapshotPage

MAX_FOLLOWERS = 4
"""Enough for controllers and their standbys; further clients get one line, and may poll."""
STREAM_SECONDS = 600.0
WHOLE_SECONDS = 120.0
"""Longest time between whole lines: limits the age of GPU, network card and storage readings."""
URGENT = (AttemptStart, Error, Exit, Fault, Phase, ProcessExit, SourceStatusChange)
_PERIODS = 0.1, 60.0
_MOST_URGENT = 4
_URGENT_SECONDS = 30.0
_PERIOD = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?", re.ASCII)


def follow_seconds(text: str) -> float | None:
    """Return the requested period, clamped to the limits; None if none was requested."""
    if _PERIOD.fullmatch(text) is None:
        return None
    least, most = _PERIODS
    return min(max(float(text), least), most)


def is_limited(urgent: deque[float], now: float) -> bool:
    """Return whether early lines have reached their limit; `urgent`: times of the last ones."""
    return len(urgent) == urgent.maxlen and now - urgent[0] < _URGENT_SECONDS


class _Reason(Enum):
    """Why a line is sent."""

    DUE = auto()
    CHANGED = auto()
    ASKED = auto()


class _Sent(NamedTuple):
    material: Any
    newest: int
    whole_at: float


class Followers:
    def __init__(self, page: SnapshotPage, clock: Callable[[], float] = time.monotonic) -> None:
        self._page = page
        self._clock = clock
        self._free = threading.Semaphore(MAX_FOLLOWERS)
        self._turned = threading.Condition()

    def turn(self) -> None:
        """Wake the streams after a new evaluation."""
        with self._turned:
            self._turned.notify_all()

    def stream(self, after: str, period: float, was_asked: Callable[[], bool]) -> Page:
        lines = partial(self._send_lines, after, period, was_asked)
        seconds = STREAM_SECONDS + 2 * period
        return Page(b"", "application/x-ndjson", stream=lines, seconds=seconds)

    def _send_lines(
        self, after: str, period: float, was_asked: Callable[[], bool], send: Send
    ) -> None:
        if not self._free.acquire(blocking=False):
            send(self._page.body(after) + b"\n")
            return
        try:
            self._follow(after, period, was_asked, send)
        finally:
            self._free.release()

    def _follow(
        self, cursor: str, period: float, was_asked: Callable[[], bool], send: Send
    ) -> None:
        until = self._clock() + STREAM_SECONDS
        urgent: deque[float] = deque(maxlen=_MOST_URGENT)
        sent: _Sent | None = None
        due = self._clock() + period
        while (now := self._clock()) < until:
            material, newest = self._page.material(), self._page.ring.newest
            is_steady = sent is not None and sent.newest == newest and sent.material == material
            if sent is not None and is_steady and now - sent.whole_at < WHOLE_SECONDS:
                send(self._page.steady(cursor) + b"\n")
            else:
                body, cursor, reached = self._page.whole(cursor)
                send(body + b"\n")
                sent = _Sent(material, reached, now)
                if reached < newest:
                    continue  # more events than fit into one answer
            # An early line does not shift the next periodic one: an event that stops all pods at
            # once must not make all of them report at the same moment from then on.
            reason = self._wait(sent.material, due, urgent, was_asked)
            if reason is _Reason.CHANGED:
                urgent.append(self._clock())
            elif reason is _Reason.DUE:
                due = max(due, self._clock() - period) + period

    def _wait(
        self, material: Any, due: float, urgent: deque[float], was_asked: Callable[[], bool]
    ) -> _Reason:
        """Wait for a reason to send the next line, and return it."""
        while (left := due - self._clock()) > 0:
            with self._turned:  # else a turn after the check could be missed
                if not is_limited(urgent, self._clock()) and self._page.material() != material:
                    return _Reason.CHANGED
                if not self._turned.wait(left):
                    return _Reason.DUE
            if was_asked():
                return _Reason.ASKED
        return _Reason.DUE


def material(evaluated: Evaluated) -> tuple[Any, ...]:
    """Return all that a decision could depend on, except time and iterations."""
    snapshot, decision = evaluated.snapshot, evaluated.snapshot.decision
    oldest = snapshot.at - REPORTED_SECONDS
    return (
        snapshot.attempt,
        snapshot.phase,
        snapshot.is_blind,
        None if decision is None else decision.action,
        tuple((each.detector, each.cause, each.culprit) for each in snapshot.findings),
        tuple((name, each.is_up) for name, each in snapshot.sources.items()),
        tuple(
            (each.sign.source, each.sign.rank, each.sign.state, each.at >= oldest)
            for each in evaluated.signs
        ),
        tuple(each.beat.rank for each in evaluated.probes),
    )
