# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a job knows at a moment, as parts of its story."""

from __future__ import annotations

from collections.abc import Sequence

from mwatch.app.chronicle import Entry
from mwatch.app.story_parts import (
    AttemptStory,
    CheckpointStory,
    Happening,
    SightStory,
    SpentStory,
    short,
)
from mwatch.model.job import Attempt, Job, KnownCheckpoint
from mwatch.model.ledger import Ledger
from mwatch.model.observation import Sight

_WHOLE = frozenset({"complete", "unverified"})


def attempt(seen: Attempt, cause: str, summary: str) -> AttemptStory:
    return AttemptStory(
        seen.number,
        seen.started_at,
        seen.ended_at,
        seen.first_iteration,
        seen.iteration,
        seen.resumed_from,
        _recomputed(seen),
        cause,
        summary,
    )


def _recomputed(seen: Attempt) -> int:
    first, last, before = seen.first_iteration, seen.iteration, seen.best_before
    if first is None or last is None or before is None:
        return 0
    return max(0, min(last, before) - first + 1)


def spent(ledger: Ledger) -> tuple[SpentStory, ...]:
    return tuple(
        SpentStory(part.value, seconds, ledger.gpu_seconds[part])
        for part, seconds in ledger.seconds.items()
    )


def checkpoints(job: Job) -> tuple[CheckpointStory, ...]:
    return tuple(
        CheckpointStory(
            number,
            known.saved_at if known.saved_at is not None else known.written_at,
            *_state(known),
        )
        for number, known in sorted(job.checkpoints.items())
    )


def _state(known: KnownCheckpoint) -> tuple[str, str]:
    if known.is_abandoned:
        return "abandoned", "of a line that was rolled back"
    if known.load_failed:
        return "broken", "it could not be loaded"
    if known.stored is not None and known.stored not in _WHOLE:
        return "broken", short(known.stored_reason or known.stored, 300)
    if known.is_saved or known.stored in _WHOLE:
        return "good", ""
    return "unknown", "nobody said that it was saved whole"


def sights(job: Job) -> tuple[SightStory, ...]:
    told = []
    for sight in Sight:
        known = job.sights.get(sight)
        if known is None:
            told.append(SightStory(sight.value, False, None, ""))
        else:
            told.append(SightStory(sight.value, known.is_up, known.since, short(known.reason, 300)))
    return tuple(told)


def happenings(entries: Sequence[Entry], mode: str) -> tuple[Happening, ...]:
    """What mwatch really did is not told as what it would have done."""
    told = []
    for entry in sorted(entries, key=lambda entry: entry.at):
        text = short(entry.text, 600)
        if entry.kind == "action" and mode == "act":
            text = text.replace("would have ", "", 1)
        if entry.kind == "save":
            text = f"saved checkpoint {entry.iteration}"
        if entry.count > 1:
            text = f"{entry.count} times, the last at iteration {entry.iteration}: {entry.kind}"
        told.append(Happening(entry.at, entry.kind, text, entry.attempt, entry.iteration))
    return tuple(told)
