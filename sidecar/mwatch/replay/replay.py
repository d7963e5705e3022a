# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Recorded logs in, the report of the run out: for `mwatch replay`, `diagnose` and `report`.

The verdict describes the run at the end of the recording: that of the last attempt, with what
mwatch would have done about it. A recording ends where its files end. Whether the run went on after
that is unknown, unless the user says so or a file was written a moment ago.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from mwatch.config import catalogue
from mwatch.decide.decide import decide
from mwatch.engine.advice import advise
from mwatch.engine.engine import Engine
from mwatch.errors import InputError
from mwatch.evidence.flight_files import gather
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Cause, Finding, Severity, Verdict
from mwatch.model.job import Attempt, Job
from mwatch.model.settings import Settings
from mwatch.parse.grammar import Grammar
from mwatch.replay.flight_verdict import FlightEvidence
from mwatch.replay.player import Player
from mwatch.replay.recording import Progress, Recording, open_recording
from mwatch.report.conclusion import RunConclusion
from mwatch.report.model import ReportClock, short
from mwatch.report.recorder import ReportRecorder
from mwatch.report.run_report import RunReport, iso
from mwatch.runtime.files import STDIN

_FRESH_SECONDS = 60.0
_FRESH_GAPS = 3.0
_TAKEN_AS_UP = "the log was written {:.0f} s ago, so the run is taken as still up"


def conclude(recording: Recording, player: Player, *, is_up: bool, now: float) -> RunReport:
    """`is_up`: the user said that the run was still up at the end."""
    recorder = player.recorder
    concluded = _end(recording, player, is_up=is_up, now=now)
    for incident in player.engine.incidents:
        recorder.incident(incident)
    report = recorder.report(is_over=True, concluded=concluded)
    return replace(
        report,
        clock=ReportClock(is_relative=recording.is_relative),
        ended_at=player.at,
        files=_files(recording),
        lines=recording.lines,
        notes=tuple(short(note) for note in recording.notes),
    )


def _end(recording: Recording, player: Player, *, is_up: bool, now: float) -> RunConclusion:
    """Conclude by the last assessment and by when the file was last written."""
    ended, attempt = player.last, player.engine.job.attempt
    assert ended is not None  # something was played
    has_ended = attempt.is_finished or attempt.exit is not None or attempt.ended_at is not None
    is_open = not (is_up or has_ended)
    age = _age(recording, player, now) if is_open else None
    breaks_off = is_open and not _is_fresh(player, age)
    if breaks_off:
        engine = player.engine
        findings = tuple(map(_as_fatal, ended.findings))
        afresh = decide(engine.job, findings, engine.record, engine.settings)
        ended = ended._replace(findings=findings, decision=afresh)
    concluded = player.recorder.conclusions.run(ended)
    verdict, decision = concluded.verdict, concluded.decision
    if breaks_off:
        text = _broken_off(attempt)
        if verdict.cause is Cause.HEALTHY:
            recording.notes += [each.summary for each in ended.findings]
            verdict = Verdict(Cause.UNKNOWN, text, confidence=0.0)
            decision = replace(decision, cause=Cause.UNKNOWN, reason=text)
        elif decision.action is Action.NONE:
            recording.notes.append(text)
    elif age is not None and verdict.cause is Cause.HEALTHY:
        verdict = replace(verdict, summary=f"{verdict.summary}; {_TAKEN_AS_UP.format(age)}")
    elif age is not None:
        recording.notes.append(_TAKEN_AS_UP.format(age))
    return concluded._replace(verdict=verdict, decision=decision)


def _as_fatal(finding: Finding) -> Finding:
    """A traceback may have been caught, but not if the log ends with it."""
    if finding.detector != "crashed" or finding.severity is not Severity.WARNING:
        return finding
    return replace(finding, severity=Severity.CRITICAL, cannot_heal=True)


def nothing_read(recording: Recording, run: str) -> RunReport:
    """The report if no line of the input is known."""
    if recording.streams:
        where = "the file" if len(_files(recording)) == 1 else f"{len(_files(recording))} files"
        text = f"no line of a trainer was found in {where}"
    else:
        text = recording.notes[0] if recording.notes else "there is nothing to read"
    return RunReport(
        run=run,
        mode="replay",
        clock=ReportClock(),
        verdict=Verdict(Cause.BLIND, text, confidence=0.0),
        decision=Decision(Action.NONE, Cause.BLIND, 0, "there is no data"),
        advice=advise(Cause.BLIND, None, {}),
        files=_files(recording),
        lines=recording.lines,
        notes=tuple(note for note in recording.notes if note != text),
    )


def _files(recording: Recording) -> tuple[str, ...]:
    return tuple(file.shown for stream in recording.streams for file in stream.files)


def _age(recording: Recording, player: Player, now: float) -> float | None:
    """Seconds since the log was last written; None: unknown."""
    written = recording.written_at
    if written is None and not recording.is_relative:
        written = player.at
    return None if written is None or now < written else now - written


def _is_fresh(player: Player, age: float | None) -> bool:
    """Whether the log is still being written: then its silence means nothing yet."""
    steps = list(player.engine.job.attempt.steps)[-2:]
    gap = steps[1].at - steps[0].at if len(steps) == 2 else 0.0
    return age is not None and age <= _FRESH_SECONDS + _FRESH_GAPS * gap


def _broken_off(attempt: Attempt) -> str:
    place = "" if attempt.iteration is None else f" after iteration {attempt.iteration}"
    text = f"the log breaks off{place} ({attempt.phase.value}) and does not show how the run ended"
    last = attempt.faults[-1] if attempt.faults else None
    if last is not None and last.entry is not None and last.at >= attempt.progress_at:
        text += f"; last message: {last.entry.title}"
    return text


NOW = "now"
_DOUBT = 0.01  # share of the wall time: the accuracy of the goodput


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    names: Sequence[str]
    """Log files, folders, or `-`."""
    checkpoints: Sequence[str] = ()
    """Save folders, besides those found."""
    until: str | None = None
    """The run was still up then: a time of the log's clock (ISO 8601), or `now`."""
    settings: Settings = field(default_factory=Settings)
    catalogues: Sequence[Path] = ()


def replay(
    request: ReplayRequest,
    now: float,
    progress: Progress | None = None,
    *,
    has_curves: bool = False,
) -> RunReport:
    """Raise InputError if the input cannot be read; a folder without logs gives an empty report.

    `has_curves`: with the data for a page, for which each line is read in full.
    """
    until = None if request.until is None else moment(request.until, now)
    entries = catalogue.load(request.catalogues)
    grammar = Grammar(entries, None)
    flight, names = gather(request.names)
    recording = open_recording(names, request.checkpoints, grammar, now)
    engine = Engine(
        run_name(request.names), {entry.id: entry for entry in entries}, request.settings
    )
    player = Player(engine, ReportRecorder(engine, "replay", has_curves=has_curves))
    gc.freeze()  # events hold no cycles: collecting among them only costs time
    gc.set_threshold(100_000)
    player.play(recording.observed(progress))
    last = player.at
    if last is None:
        report = nothing_read(recording, engine.job.run)
        if flight is None:
            return report
        alone = FlightEvidence(flight)
        return alone.judged(replace(report, notes=(*report.notes, *alone.notes)))
    for rollback in recording.rollbacks(last):
        engine.job.timeline.roll_back(rollback)
    for observed in recording.stored(last):
        engine.observe(observed)
    up_until = _in_log_time(request, until, recording, last)
    dumps = flight and FlightEvidence(flight, engine.job, last, is_relative=recording.is_relative)
    if dumps is not None:
        recording.notes += dumps.notes
        player.play(dumps.observed(recording.streams[0].name))
        up_until = max(filter(None, (up_until, dumps.up_until())), default=None)
    player.finish(up_until)
    recording.notes += _doubts(engine.job)
    report = conclude(recording, player, is_up=up_until is not None, now=now)
    return report if dumps is None else dumps.judged(report)


def run_name(names: Sequence[str]) -> str:
    return "recorded run" if names[0] == STDIN else Path(names[0]).resolve().stem


def _doubts(job: Job) -> list[str]:
    """Note if much of the goodput is estimated."""
    guessed = job.ledger.guessed_seconds
    if guessed <= _DOUBT * (job.now - (job.ledger.started_at or job.now)):
        return []
    why = "too few iteration lines to measure the first step"
    return [f"goodput: {guessed:.0f} s are attributed by estimate: {why}"]


def moment(text: str, now: float) -> float:
    """Parse `--until`; a log's clock has no zone and is taken as UTC."""
    if text == NOW:
        return now
    try:
        named = datetime.fromisoformat(text)
        return (named if named.tzinfo else named.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        fix = "give `now`, or a time such as 2026-01-31T12:00:00"
        raise InputError(f"--until {text}: not a time; {fix}") from None


def _in_log_time(
    request: ReplayRequest, until: float | None, recording: Recording, last: float
) -> float | None:
    if until is None:
        return None
    if recording.is_relative:
        recording.notes.append("the log prints no times, so --until does not apply")
        return None
    if request.until == NOW:
        return until - recording.clock_ahead(last)
    if until < last:
        fix = "give a later time, or leave the later files out"
        raise InputError(f"--until {request.until}: the log goes on until {iso(last)}; {fix}")
    return until
