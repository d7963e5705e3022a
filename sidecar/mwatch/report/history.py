# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Stores the history of a run in compact form, so that a restarted watcher can restore it.

A controller that starts has only the data that the sidecars still hold. It prepends what an earlier
controller stored: attempts, incidents, curves and timeline. Where both have an entry, the newer one
is used, with the earlier of the two start times. The store is bounded: each report is shortened
until its text is small enough.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from mwatch.errors import InputError
from mwatch.model.cause import Cause
from mwatch.report import story_json
from mwatch.report.model import AttemptReport, IncidentStory, TimelineEntry
from mwatch.report.run_report import RunReport

MAX_TEXT_BYTES = 16 << 10
"""Limit for one job, so that 48 jobs fit into a ConfigMap."""
_MAX_PLAIN_BYTES = 1 << 20
_MAX_BUCKETS = 1024
_MAX_ATTEMPTS = 256
_MAX_INCIDENTS = 256
_MAX_ENTRIES = 512
_UNWATCHED = "it ended while nothing watched it"
_NOTE = "goodput and the times that it books are counted since the watcher started"


_T = TypeVar("_T")


class _Size(NamedTuple):
    attempts: int
    incidents: int
    entries: int
    points: int


_SIZES = (
    _Size(64, 32, 128, 128), _Size(32, 12, 48, 64), _Size(16, 6, 16, 32), _Size(8, 2, 8, 0),
    _Size(2, 0, 0, 0),
)  # fmt: skip


def to_text(report: RunReport, most: int = MAX_TEXT_BYTES) -> str | None:
    """Return the report as ASCII text; None if even its shortest form exceeds `most` bytes."""
    for size in _SIZES:
        data = zlib.compress(story_json.to_json(_shortened(report, size)))
        text = base64.b64encode(data).decode()
        if len(text) <= most:
            return text
    return None


def from_text(text: str) -> RunReport | None:
    """Parse a text from `to_text`; None if it is invalid or from a newer release."""
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(text, validate=True), _MAX_PLAIN_BYTES)
        return story_json.from_json(data)
    except (ValueError, zlib.error, InputError):
        return None


def _shortened(report: RunReport, size: _Size) -> RunReport:
    return replace(
        report,
        findings=(),
        incidents=tuple(
            replace(each, voices=each.voices[:1], files=(), stacks=())
            for each in _newest(report.incidents, size.incidents)
        ),
        attempts=_newest(report.attempts, size.attempts),
        series=_thinned(report.series, size.points),
        validations=_thinned(report.validations, size.points),
        phases=_newest(report.phases, size.points),
        checkpoints=_newest(report.checkpoints, size.entries),
        timeline=_newest(report.timeline, size.entries),
        source_states=(),
        notes=(),
        files=(),
        log_ends=(),
    )


def _newest(every: tuple[_T, ...], most: int) -> tuple[_T, ...]:
    return every[-most:] if most else ()


def _thinned(every: tuple[_T, ...], most: int) -> tuple[_T, ...]:
    """Return at most `most` evenly spaced entries, always including the newest."""
    if not most:
        return ()
    step = -(-len(every) // most) or 1
    return every[::-1][::step][::-1]


def joined(past: RunReport | None, now: RunReport) -> RunReport:
    """Return `now`, preceded by the entries that only `past` has."""
    if past is None:
        return now
    series_at = min((each.began_at for each in now.series), default=float("inf"))
    phases_at = min((each.began_at for each in now.phases), default=float("inf"))
    starts = [each for each in (past.started_at, now.started_at) if each is not None]
    attempts = tuple(_attempts(past, now))[-_MAX_ATTEMPTS:]
    return replace(
        now,
        started_at=min(starts, default=None),
        ended_at=past.ended_at if now.ended_at is None else now.ended_at,
        iteration=past.iteration if now.iteration is None else now.iteration,
        total_iterations=now.total_iterations or past.total_iterations,
        world_size=now.world_size or past.world_size,
        attempts=attempts,
        incidents=tuple(_incidents(past, now))[-_MAX_INCIDENTS:],
        series=(*(each for each in past.series if each.ended_at < series_at), *now.series)[
            -_MAX_BUCKETS:
        ],
        validations=(
            *(each for each in past.validations if each.at < series_at), *now.validations,
        ),
        phases=(*(each for each in past.phases if each.ended_at <= phases_at), *now.phases),
        checkpoints=now.checkpoints or past.checkpoints,
        timeline=tuple(_timeline(past.timeline, now.timeline))[-_MAX_ENTRIES:],
        left_out=now.left_out + past.left_out,
        notes=(*now.notes, _NOTE),
    )  # fmt: skip


def _attempts(past: RunReport, now: RunReport) -> Iterator[AttemptReport]:
    known = {each.number: each for each in now.attempts}
    old = {each.number: each for each in past.attempts}
    starts = {number: each.started_at for number, each in (old | known).items()}
    for number in sorted(starts):
        new, before = known.get(number), old.get(number)
        if new is not None:
            yield new if before is None else _both(before, new)
            continue
        assert before is not None
        following = min((each for each in starts if each > number), default=None)
        if before.ended_at is None and following is not None:
            is_known = before.cause is not Cause.HEALTHY
            before = replace(
                before, ended_at=starts[following],
                cause=before.cause if is_known else Cause.UNKNOWN,
                summary=before.summary if is_known else _UNWATCHED,
            )  # fmt: skip
        yield before


def _both(before: AttemptReport, new: AttemptReport) -> AttemptReport:
    firsts = [before.first_iteration, new.first_iteration]
    return replace(
        new,
        started_at=min(before.started_at, new.started_at),
        first_iteration=min((each for each in firsts if each is not None), default=None),
        resumed_from=new.resumed_from if before.resumed_from is None else before.resumed_from,
        recomputed=max(before.recomputed, new.recomputed),
    )


def _incidents(past: RunReport, now: RunReport) -> Iterator[IncidentStory]:
    """Yield the incidents of both reports in the order of their detection."""
    known = {(each.attempt, each.cause): each for each in now.incidents}
    old = {(each.attempt, each.cause): each for each in past.incidents}
    earlier = [
        replace(each, closed_at=past.ended_at) if each.closed_at is None else each
        for each in past.incidents
        if (each.attempt, each.cause) not in known
    ]
    newer = [
        _same(old.get((each.attempt, each.cause)), each)
        if known[each.attempt, each.cause] is each
        else each
        for each in now.incidents
    ]
    yield from sorted((*earlier, *newer), key=lambda each: each.detected_at)


def _same(before: IncidentStory | None, new: IncidentStory) -> IncidentStory:
    """Merge an incident that was found again after a restart; it keeps its earlier times."""
    if before is None:
        return new
    if before.acted_at is not None and new.acted_at is None:
        return replace(before, closed_at=new.closed_at, recovered_at=new.recovered_at)
    sinces = [each for each in (before.since_at, new.since_at) if each is not None]
    return replace(
        new,
        detected_at=min(before.detected_at, new.detected_at),
        since_at=min(sinces, default=None),
    )


def _timeline(
    past: Iterable[TimelineEntry], now: tuple[TimelineEntry, ...]
) -> Iterator[TimelineEntry]:
    known = {(each.kind, each.attempt, each.text) for each in now}
    kept = (each for each in past if (each.kind, each.attempt, each.text) not in known)
    yield from sorted((*kept, *now), key=lambda each: each.at)
