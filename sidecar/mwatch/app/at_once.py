# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Many questions to a cluster at the same time, with one time limit for all of them.

What has not been answered by then is told as missed; its thread is left to its own time limit and
holds up nobody's exit.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mwatch.errors import MwatchError

WORKERS = 24


class Missed(NamedTuple):
    """No answer, and why."""

    why: str
    error: MwatchError | None = None


Asks = Mapping[str, Callable[[], Any]]


def ask_all(asks: Asks, *, seconds: float, workers: int = WORKERS) -> dict[str, Any]:
    """By name: the answer, or Missed. In the order that was given they are begun."""
    waiting: queue.SimpleQueue[tuple[str, Callable[[], Any]]] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    until = time.monotonic() + seconds
    for each in asks.items():
        waiting.put(each)
    for number in range(min(workers, len(asks))):
        threading.Thread(
            target=_work, args=(waiting, answers, until), name=f"mwatch-ask-{number}", daemon=True
        ).start()
    found: dict[str, Any] = {}
    while len(found) < len(asks):
        try:
            name, answer = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        found[name] = answer
    late = Missed(f"no answer within {seconds:.0f} s")
    return {name: found.get(name, late) for name in asks}


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
        return Missed(str(error), error)
    except Exception as error:  # an answer of a shape that nobody foresaw must not lose the others
        return Missed(f"{type(error).__name__}: {error}"[:300])
