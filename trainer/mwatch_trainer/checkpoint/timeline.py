# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`<save>/.mwatch/timeline.json`: its format, and which checkpoints it marks as bad.

It contains the newest attempt's number (the fencing token), the attempts and where they resumed,
the rollbacks, and a quarantine that no rollback has ended yet. An unreadable rollback may be the
one that abandons the newest checkpoint, so it makes the whole file invalid; a damaged attempt is
skipped. Only the wrapper that owns the attempt writes the file.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, Mapping, NamedTuple, Sequence

from mwatch_trainer.checkpoint.files import os_error_text, read_bounded

FOLDER = ".mwatch"
FILE = "timeline.json"
VERSION = 1
MAX_BYTES = 1 << 20
MAX_ATTEMPTS = 64
MAX_MARKED = 256
MAX_ROLLBACKS = 64  # with all their marks they stay within `MAX_BYTES`
_MAX_REASON = 500
_MAX_NUMBER = 10**15

GOOD = "good"
SUSPECT = "suspect"
ABANDONED = "abandoned"


class BrokenTimeline(ValueError):
    """The file exists and is invalid."""


class TimelineAttempt(NamedTuple):
    number: int
    started_at: float | None
    resumed_from: int | None


class TimelineRollback(NamedTuple):
    at: float
    to_iteration: int
    first_bad: int | None
    reason: str
    marked: tuple[tuple[int, float], ...] = ()  # iteration and time of the checkpoints present then


class TimelineQuarantine(NamedTuple):
    at: float
    first_bad: int
    reason: str


class TimelineFile(NamedTuple):
    attempt: int = 0
    attempts: tuple[TimelineAttempt, ...] = ()  # oldest first, like the rollbacks
    rollbacks: tuple[TimelineRollback, ...] = ()
    quarantine: TimelineQuarantine | None = None
    version: int = VERSION  # a newer version may contain more than is read here


def path_of(folder: str) -> str:
    return os.path.join(folder, FOLDER, FILE)


def read(folder: str) -> TimelineFile | None:
    try:
        data = read_bounded(path_of(folder), MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise BrokenTimeline(f"cannot be read: {os_error_text(error)}") from error
    return parse(data)


def parse(data: bytes) -> TimelineFile:
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        start = "it is empty" if not data else f"it begins with {data[:20]!r}"
        raise BrokenTimeline(f"does not parse: {start}") from None
    if not isinstance(document, dict):
        raise BrokenTimeline("holds no object")
    if not _is_count(document.get("version")) or not document["version"]:
        raise BrokenTimeline("has no version")
    if not _is_count(document.get("attempt", 0)):
        raise BrokenTimeline("has a strange number of an attempt")
    attempts = [_attempt(each) for each in _entries(document, "attempts")[-MAX_ATTEMPTS:]]
    quarantine = document.get("quarantine")
    return TimelineFile(
        document.get("attempt", 0),
        tuple(each for each in attempts if each is not None),
        tuple(rollback_of(each) for each in _entries(document, "rollbacks")),
        None if quarantine is None else quarantine_of(quarantine),
        document["version"],
    )


def to_text(timeline: TimelineFile, claim: Mapping[str, Any] | None = None) -> str:
    """Serialize. `claim`: the announcement of the attempt's owner to the other wrappers."""
    rollbacks = [
        {
            **each._asdict(),
            "reason": each.reason[:_MAX_REASON],
            "marked": sorted(each.marked)[-MAX_MARKED:],
        }
        for each in timeline.rollbacks
    ]
    quarantine = timeline.quarantine
    document = {
        "version": VERSION,
        "attempt": timeline.attempt,
        "attempts": [each._asdict() for each in timeline.attempts[-MAX_ATTEMPTS:]],
        "rollbacks": rollbacks,
        "quarantine": quarantine
        and {**quarantine._asdict(), "reason": quarantine.reason[:_MAX_REASON]},
        **({} if claim is None else {"claim": claim}),
    }
    return json.dumps(document, indent=1) + "\n"


def with_rollbacks(timeline: TimelineFile, more: Sequence[TimelineRollback]) -> TimelineFile:
    """Add each rollback once. A rollback to before the quarantine ends it."""
    known = {(each.at, each.to_iteration) for each in timeline.rollbacks}
    new = tuple(each for each in more if (each.at, each.to_iteration) not in known)
    if not new:
        return timeline
    held = timeline.quarantine
    if held is not None and any(each.to_iteration < held.first_bad for each in new):
        held = None
    rollbacks = (timeline.rollbacks + new)[-MAX_ROLLBACKS:]
    return timeline._replace(rollbacks=rollbacks, quarantine=held)


def is_abandoned(timeline: TimelineFile, iteration: int, written_at: float | None) -> bool:
    """Whether the checkpoint is later than a rollback's target iteration and was written before
    that rollback, or at an unknown time.
    """
    for each in timeline.rollbacks:
        if iteration <= each.to_iteration:
            continue
        seen = [at for number, at in each.marked if number == iteration]
        if written_at is None or written_at <= max([each.at, *seen]):
            return True
    return False


def standing(timeline: TimelineFile, iteration: int, written_at: float | None) -> str:
    if is_abandoned(timeline, iteration, written_at):
        return ABANDONED
    quarantine = timeline.quarantine
    return SUSPECT if quarantine is not None and iteration >= quarantine.first_bad else GOOD


def _entries(document: Mapping[str, Any], name: str) -> list[Any]:
    entries = document.get(name, [])
    if not isinstance(entries, list):
        raise BrokenTimeline(f"holds no list of {name}")
    return entries


def _attempt(entry: Any) -> TimelineAttempt | None:
    if not isinstance(entry, dict) or not _is_count(entry.get("number")):
        return None
    started, resumed = entry.get("started_at"), entry.get("resumed_from")
    if not (started is None or _is_time(started)) or not (resumed is None or _is_count(resumed)):
        return None
    return TimelineAttempt(entry["number"], started, resumed)


def rollback_of(entry: Any) -> TimelineRollback:
    if not isinstance(entry, dict):
        raise BrokenTimeline("holds a rollback that is not an object")
    if not _is_time(entry.get("at")) or not _is_count(entry.get("to_iteration")):
        raise BrokenTimeline("holds a rollback without a time or a point")
    first_bad = entry.get("first_bad")
    if not (first_bad is None or _is_count(first_bad)):
        raise BrokenTimeline("holds a rollback with a strange first bad iteration")
    marked = entry.get("marked", [])
    if not isinstance(marked, list) or not all(map(_is_mark, marked)):
        raise BrokenTimeline("holds a rollback with strange marks")
    marks = tuple((iteration, at) for iteration, at in marked)
    return TimelineRollback(entry["at"], entry["to_iteration"], first_bad, _reason(entry), marks)


def quarantine_of(entry: Any) -> TimelineQuarantine:
    is_object = isinstance(entry, dict)
    if not is_object or not _is_time(entry.get("at")) or not _is_count(entry.get("first_bad")):
        raise BrokenTimeline("holds a quarantine without a time or an iteration")
    return TimelineQuarantine(entry["at"], entry["first_bad"], _reason(entry))


def _reason(entry: Mapping[str, Any]) -> str:
    reason = entry.get("reason")
    return reason[:_MAX_REASON] if isinstance(reason, str) else ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_NUMBER


def _is_time(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and abs(value) <= _MAX_NUMBER


def _is_mark(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and _is_count(value[0]) and _is_time(value[1])
