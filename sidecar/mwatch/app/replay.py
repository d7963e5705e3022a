# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch replay` and `mwatch diagnose`: a recorded run in, a report out."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from mwatch.app import catalogue
from mwatch.app.chronicle import Chronicle
from mwatch.app.conclusion import conclude, nothing_read
from mwatch.app.engine import Engine
from mwatch.app.flight import Flight, gather
from mwatch.app.flight_verdict import Testimony
from mwatch.app.player import Listener, Player
from mwatch.app.recording import Progress, Recording, open_recording
from mwatch.app.report import Report, iso
from mwatch.errors import InputError
from mwatch.model.job import Job
from mwatch.model.settings import Settings
from mwatch.parse.grammar import Grammar

NOW = "now"
_DOUBT = 0.01  # of the wall time: as exact as the goodput is meant to be


@dataclass(frozen=True, slots=True)
class Request:
    names: Sequence[str]
    """Log files, folders, or `-`."""
    checkpoints: Sequence[str] = ()
    """Folders that the trainer saves to, besides those found."""
    until: str | None = None
    """The run was still up then: a moment of the log's clock (ISO 8601), or `now`."""
    settings: Settings = field(default_factory=Settings)
    catalogues: Sequence[Path] = ()


def replay(
    request: Request,
    now: float,
    progress: Progress | None = None,
    listener: Listener | None = None,
) -> Report:
    """InputError for what cannot be read; a folder without logs gives a report that says so."""
    until = None if request.until is None else moment(request.until, now)
    try:
        entries = catalogue.load(request.catalogues)
    except ValueError as error:
        raise InputError(str(error)) from error
    grammar = Grammar(entries, None)
    flight, names = gather(request.names)
    recording = open_recording(names, request.checkpoints, grammar, now)
    engine = Engine("replay", {entry.id: entry for entry in entries}, request.settings)
    player = Player(engine, Chronicle(), listener)
    gc.freeze()  # events hold no cycles: collecting among them only costs time
    gc.set_threshold(100_000)
    player.play(recording.observed(progress))
    last = player.at
    if last is None:
        return _by_dumps_alone(nothing_read(recording), flight)
    for rollback in recording.rollbacks(last):
        engine.job.timeline.roll_back(rollback)
    for observed in recording.stored(last):
        engine.tell(observed)
    up_until = _in_log_time(request, until, recording, last)
    if flight is None:
        player.finish(up_until)
        recording.notes += _doubts(engine.job)
        return conclude(recording, player, is_up=up_until is not None, now=now)
    heard = Testimony(flight, engine.job, last, is_relative=recording.is_relative)
    recording.notes += heard.notes
    player.play(heard.observed(recording.streams[0].name))
    up_until = max(filter(None, (up_until, heard.up_until())), default=None)
    player.finish(up_until)
    recording.notes += _doubts(engine.job)
    return heard.judged(conclude(recording, player, is_up=up_until is not None, now=now))


def _doubts(job: Job) -> list[str]:
    """Where the goodput is a guess, it is said."""
    guessed = job.ledger.guessed_seconds
    if guessed <= _DOUBT * (job.now - (job.ledger.started_at or job.now)):
        return []
    why = "too few iteration lines tell how much of it was the first step"
    return [f"goodput: {guessed:.0f} s of it are told apart by a guess: {why}"]


def _by_dumps_alone(report: Report, flight: Flight | None) -> Report:
    if flight is None:
        return report
    heard = Testimony(flight)
    return heard.judged(replace(report, notes=(*report.notes, *heard.notes)))


def moment(text: str, now: float) -> float:
    """What `--until` names; a log's clock has no zone, so one that is given is taken as UTC."""
    if text == NOW:
        return now
    try:
        named = datetime.fromisoformat(text)
        return (named if named.tzinfo else named.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        mend = "give `now`, or a time such as 2026-01-31T12:00:00"
        raise InputError(f"--until {text}: is no time; {mend}") from None


def _in_log_time(
    request: Request, until: float | None, recording: Recording, last: float
) -> float | None:
    if until is None:
        return None
    if recording.is_relative:
        recording.notes.append("the log prints no times, so --until says nothing about it")
        return None
    if request.until == NOW:
        return until - recording.clock_ahead(last)
    if until < last:
        mend = "give a later time, or leave the later files out"
        raise InputError(f"--until {request.until}: the log goes on until {iso(last)}; {mend}")
    return until
