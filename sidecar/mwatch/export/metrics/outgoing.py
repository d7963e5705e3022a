# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Counters that may not go back.

The ledger sometimes moves time from one kind to another; a counter that went back would look like
a restart of mwatch, so such a one is held at its highest. The other counters begin anew with an
attempt or a driver, as counters may.

Names that are not ours, such as those of losses and runs, as they may go out.

Without secrets, and without bytes that are no UTF-8: those would make all of a scrape or a request
one that cannot be written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from mwatch.export.metrics import catalog
from mwatch.export.metrics.metric import Value
from mwatch_trainer.scrub.scrubber import Scrubber

HELD = frozenset({catalog.BADPUT.name})


class MonotonicCounters:
    """Of all runs that one way out tells of; for the threads of a server."""

    def __init__(self) -> None:
        self._highest: dict[str, dict[tuple[str, tuple[str, ...]], float]] = {}
        self._lock = threading.Lock()

    def amount(self, run: str, value: Value) -> float:
        if value.metric.name not in HELD:
            return float(value.value)
        key = (value.metric.name, value.labels)
        with self._lock:
            of_run = self._highest.setdefault(run, {})
            of_run[key] = max(value.value, of_run.get(key, 0.0))
            return of_run[key]

    def keep(self, runs: Iterable[str]) -> None:
        """Forgets all others."""
        with self._lock:
            for gone in self._highest.keys() - set(runs):
                del self._highest[gone]


_MAX_NAMES = 8192


def cleaner(patterns: Sequence[str]) -> Callable[[str], str]:
    """`patterns` are the user's own secrets. Remembers what it was asked: the same few thousand
    names go out again and again."""

    @lru_cache(_MAX_NAMES)
    def clean(name: str) -> str:
        return Scrubber(patterns).text(name).encode("utf-8", "replace").decode()

    return clean
