# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Run many requests concurrently, with one time limit for all.

A few workers start first, and more if responses are slow: each worker needs a connection, and a
healthy API server needs few. A request without a response by the deadline yields TimedOut; its
thread ends at the request's own time limit and does not delay the exit of the process.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mwatch.errors import MwatchError

FIRST_WORKERS = 8
MOST_WORKERS = 64  # so that many unresponsive pods take as long as one
_SLOW_SECONDS = 0.1


class TimedOut(NamedTuple):
    """A request that got no response, and why."""

    why: str
    error: MwatchError | None = None


Asks = Mapping[str, Callable[[], Any]]


def gather(asks: Asks, *, seconds: float, workers: int = FIRST_WORKERS) -> dict[str, Any]:
    """Responses by name; TimedOut for a request that failed or got none. Requests start in the
    given order. `workers` is the initial number, which doubles while responses are slow."""
    waiting: queue.SimpleQueue[tuple[str, Callable[[], Any]]] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    until = time.monotonic() + seconds
    for each in asks.items():
        waiting.put(each)
    begun = 0
    found: dict[str, Any] = {}
    is_slow = True
    while len(found) < len(asks) and time.monotonic() < until:
        for _ in range(min(waiting.qsize(), _more(begun, workers)) if is_slow else 0):
            begun += 1
            threading.Thread(
                target=_work, args=(waiting, answers, until), name=f"mwatch-ask-{begun}",
                daemon=True,
            ).start()  # fmt: skip
        try:
            left = max(0.0, until - time.monotonic())
            name, answer = answers.get(timeout=min(_SLOW_SECONDS, left))
            found[name], is_slow = answer, False
        except queue.Empty:
            is_slow = True
    late = TimedOut(f"no answer within {seconds:.0f} s")
    return {name: found.get(name, late) for name in asks}


def _more(begun: int, first: int) -> int:
    return min(begun, MOST_WORKERS - begun) if begun else first


def _work(
    waiting: queue.SimpleQueue[tuple[str, Callable[[], Any]]],
    answers: queue.SimpleQueue[tuple[str, Any]],
    until: float,
) -> None:
    while time.monotonic() < until:
        try:
            name, ask = waiting.get_nowait()
        except queue.Empty:
            return
        answers.put((name, _asked(ask)))


def _asked(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except MwatchError as error:
        return TimedOut(str(error), error)
    except Exception as error:  # one malformed response must not lose the others
        return TimedOut(f"{type(error).__name__}: {error}"[:300])
