# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How much of the trainer's output never reached its log, as the wrapper counts it.

The wrapper is asked now and then over its socket; where it does not answer, the last count stands.
Its counts begin anew with each attempt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from mwatch.model.reading import Ok, Reading
from mwatch.sources.worker import Worker
from mwatch_trainer.control_client import ask

PERIOD_SECONDS = 30.0
_LIMIT_SECONDS = 5.0
_LOST = ("uncopied_bytes", "unwritten_bytes")


class WrapperCounts:
    def __init__(self, volume: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._volume = volume
        self._clock = clock
        self._next_at = clock() + PERIOD_SECONDS / 3
        self._worker: Worker[Mapping[str, Any]] = Worker(
            "mwatch-counts", self._ask, limit_seconds=2 * _LIMIT_SECONDS, clock=clock
        )
        self.dropped: dict[str, int] = {}
        """Bytes, by source; empty: nobody has told yet."""

    def ask_where_due(self) -> None:
        """Never waits."""
        answer = self._worker.take()
        if isinstance(answer, Ok):
            output = answer.value.get("output")
            counts = [output.get(name) for name in _LOST] if isinstance(output, dict) else []
            known = [each for each in counts if isinstance(each, int)]
            if known:
                self.dropped = {"log": sum(known)}
        if self._clock() >= self._next_at and self._worker.start():
            self._next_at = self._clock() + PERIOD_SECONDS

    def _ask(self) -> Reading[Mapping[str, Any]]:
        return Ok(ask(self._volume, {"op": "status"}, _LIMIT_SECONDS))
