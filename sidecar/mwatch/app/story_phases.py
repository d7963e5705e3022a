# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which phase a run was in, and when, in a bounded number of spans.

A run of weeks saves thousands of times. Where there are too many spans the shortest ones are
given to their neighbours: what is left is what could be seen on a screen anyway.
"""

from __future__ import annotations

from dataclasses import replace

from mwatch.app.story_parts import PhaseSpan
from mwatch.model.job import Attempt
from mwatch.model.phase import JobPhase

MAX_SPANS = 1024


class PhaseBand:
    def __init__(self, most: int = MAX_SPANS) -> None:
        self._most = most
        self._closed: list[PhaseSpan] = []
        self._attempt: Attempt | None = None
        self._phase = JobPhase.STARTING
        self._began_at = 0.0
        self._number = 0

    def note(self, attempt: Attempt, at: float) -> None:
        """How the attempt stands at `at`."""
        if attempt is self._attempt:
            if attempt.phase is self._phase:
                return
            since = attempt.phase_since
        else:
            since = attempt.started_at
        since = min(max(since, self._began_at), max(at, self._began_at))
        if self._attempt is not None:
            self._close(since)
        self._attempt, self._phase, self._began_at = attempt, attempt.phase, since

    def spans(self, until: float) -> tuple[PhaseSpan, ...]:
        if self._attempt is None:
            return ()
        spans = list(self._closed)
        if self._phase is not JobPhase.ENDED and until > self._began_at:
            spans.append(self._open(until))
        return tuple(spans)

    def _open(self, until: float) -> PhaseSpan:
        number = self._attempt.number if self._attempt else 0
        return PhaseSpan(number, self._phase.value, self._began_at, until)

    def _close(self, until: float) -> None:
        if until <= self._began_at or self._phase is JobPhase.ENDED:
            return
        span = self._open(until)
        last = self._closed[-1] if self._closed else None
        if last and (last.attempt, last.phase, last.ended_at) == (
            span.attempt, span.phase, span.began_at,
        ):  # fmt: skip
            self._closed[-1] = replace(last, ended_at=until)
        else:
            self._closed.append(span)
        if len(self._closed) > self._most:
            self._closed = fewer(self._closed, self._most // 2)


def fewer(spans: list[PhaseSpan], most: int) -> list[PhaseSpan]:
    """About the `most` longest; each grows over the shorter ones that followed it."""
    lengths = sorted((each.ended_at - each.began_at for each in spans), reverse=True)
    least = lengths[min(most, len(lengths)) - 1]
    kept: list[PhaseSpan] = []
    for span in spans:
        last = kept[-1] if kept else None
        is_next = last is not None and last.attempt == span.attempt
        is_same = is_next and last is not None and last.phase == span.phase
        if is_next and last and (is_same or span.ended_at - span.began_at < least):
            kept[-1] = replace(last, ended_at=span.ended_at)
        else:
            kept.append(span)
    return kept if len(kept) <= 2 * most else kept[-most:]
