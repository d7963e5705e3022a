# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Use flight-recorder dumps as a second source for a recorded log, or as the only one.

They add the culprit of a hang, or a verdict where the log gives none. Dumps older than the end of
the log belong to an earlier time and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mwatch.engine.advice import advise
from mwatch.evidence.flight_files import Flight
from mwatch.flight_recorder.analysis import signs
from mwatch.model.cause import Cause
from mwatch.model.collective import Analysis, BlamedRank
from mwatch.model.finding import (
    MAX_EVIDENCE,
    Culprit,
    CulpritState,
    Evidence,
    Finding,
    Severity,
    Verdict,
)
from mwatch.model.job import Job
from mwatch.model.observation import Observed, SignState
from mwatch.replay.timestamps import zone_step
from mwatch.report.run_report import RunReport

_STATES = {
    SignState.NEVER_JOINED: CulpritState.NEVER_JOINED,
    SignState.STUCK: CulpritState.STUCK,
    SignState.OUT_OF_STEP: CulpritState.OUT_OF_STEP,
    SignState.STOPPED: CulpritState.SILENT,
}
_OPEN = frozenset({Cause.UNKNOWN, Cause.BLIND, Cause.HEALTHY})
"""Verdicts of a log that does not show how the run ended."""
_NAMED = 0.25
"""Minimum confidence for naming a culprit."""
_AFTER, _BEFORE = 300.0, 120.0
"""Seconds by which the dumps may end after or before the last line of the log."""
_LIKELY_SECONDS = 2 * 3600.0
"""A file newer than the content of its dump by more seconds than this was copied."""
_CAUGHT_SECONDS = 5.0
"""A rank that waited for fewer seconds may have been in the middle of a normal step."""


class FlightEvidence:
    """Dumps compared with one log; `job` is the state at `last`, the end of the log."""

    def __init__(
        self,
        flight: Flight,
        job: Job | None = None,
        last: float | None = None,
        *,
        is_relative: bool = False,
    ) -> None:
        """`is_relative`: the log prints no times, so its order relative to the dumps is unknown."""
        self.flight = flight
        world = None if job is None else job.layout.world_size
        self.analysis = flight.analysis(world)
        self._job = job
        self._last = last
        self._is_timed = last is not None and not is_relative
        self._zone = self._clock_ahead()
        self.is_old = self._is_old()

    @property
    def notes(self) -> tuple[str, ...]:
        count = len(self.flight.dumps)
        read = (f"flight recorder: {count} ranks left a dump",) if count else ()
        old = ("the flight-recorder dumps are older than the end of the log and were left out",)
        more = old if self.is_old else self.analysis.notes
        return (*read, *self.flight.notes, *more)

    def _clock_ahead(self) -> float:
        """Return the seconds by which true time is ahead of the log's clock, if a time zone
        explains the difference; else 0."""
        ended = self.analysis.last_at
        if not self._is_timed or self._last is None or ended is None:
            return 0.0
        difference = ended - self._last
        nearest = zone_step(difference, max(_BEFORE, _AFTER))
        return nearest if -_BEFORE <= difference - nearest <= _AFTER else 0.0

    def _is_old(self) -> bool:
        ended = self.analysis.last_at
        if self._job is None or not self._is_timed or ended is None:
            return False
        return ended - self._zone < self._job.attempt.last_progress - _BEFORE

    def observed(self, stream: str) -> Iterator[Observed]:
        """Yield observations for the engine, at the end of the log or when the dumps were taken."""
        if self._last is not None and not self.is_old:
            at = self.up_until()
            for sign in signs(self.analysis):
                yield Observed(self._last if at is None else at, stream, sign)

    def up_until(self) -> float | None:
        """Return the time of the dumps on the log's clock: the run was still up then."""
        analysis = self.analysis
        if self._last is None or not self._is_timed or self.is_old or analysis.since is None:
            return None
        taken = self._taken_at()
        moment = ((analysis.last_at if taken is None else taken) or 0.0) - self._zone
        return moment if moment > self._last else None

    def _taken_at(self) -> float | None:
        ended, taken = self.analysis.last_at, self.flight.taken_at
        if ended is None or taken is None or not 0 <= taken - ended <= _LIKELY_SECONDS:
            return None
        return taken

    def _stands_still(self) -> bool:
        """Whether a rank has waited for longer than a step takes, as far as known."""
        since, taken = self.analysis.since, self._taken_at()
        if self.is_old or since is None:
            return False
        return taken is None or taken - since >= _CAUGHT_SECONDS

    def judged(self, report: RunReport) -> RunReport:
        """Complete a report that has no verdict on the end of the run, or no culprit."""
        verdict = report.verdict
        if self.is_old:
            return report
        if verdict.cause is Cause.HANG:
            culprit = self._completed(verdict.culprit)
            return replace(report, verdict=replace(verdict, culprit=culprit))
        if verdict.cause not in _OPEN or not self._stands_still():
            return report
        finding = self._finding(report)
        verdict = Verdict(
            Cause.HANG,
            finding.summary,
            finding.since_iteration,
            finding.since_time,
            finding.culprit,
            finding.confidence,
        )
        other = "there is no log" if self._job is None else report.decision.reason
        reason = f"not acted on: the flight recorder is one witness ({other})"
        decision = replace(report.decision, cause=Cause.HANG, finding=finding, reason=reason)
        judged = report.judged(verdict, decision, advise(Cause.HANG, finding, {}))
        return replace(judged, findings=(finding, *report.findings))

    def _completed(self, known: Culprit | None) -> Culprit | None:
        """Add the rank, or its coordinates, if the engine does not know them."""
        ours = culprit_of(self.analysis, self._job)
        if known is None or (known.rank is None and ours is not None and ours.rank is not None):
            return ours
        if ours is not None and ours.rank == known.rank and not known.coordinates:
            return replace(known, coordinates=ours.coordinates)
        return known

    def _finding(self, report: RunReport) -> Finding:
        analysis = self.analysis
        since = analysis.since
        if since is not None:
            since = since - self._zone if self._is_timed or self._job is None else None
        texts = dict.fromkeys((*analysis.chain, *(each.text for each in analysis.groups)))
        return Finding(
            detector="stalled",
            cause=Cause.HANG,
            severity=Severity.CRITICAL,
            summary=f"flight recorder: {analysis.summary}",
            since_time=since,
            since_iteration=None if report.iteration is None else report.iteration + 1,
            confidence=analysis.confidence,
            culprit=culprit_of(self.analysis, self._job),
            evidence=tuple(Evidence(None, None, text) for text in texts)[:MAX_EVIDENCE],
            fingerprint="hang/flight-recorder",
        )


def culprit_of(analysis: Analysis, job: Job | None = None) -> Culprit | None:
    if analysis.state is SignState.ALL_EQUAL:
        return Culprit(None, CulpritState.ALL_EQUAL)
    first: BlamedRank | None = analysis.blamed[0] if analysis.blamed else None
    if first is None or first.confidence < _NAMED:
        return None
    known = {} if job is None else job.layout.coordinates(first.rank)
    return Culprit(first.rank, _STATES[first.state], known or dict(first.coordinates))
