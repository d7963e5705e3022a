# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch replay` and `mwatch diagnose`: a recorded run in, a report out.

What is to be said about a recorded run once it was played.

The verdict describes the run as it is at the end of the recording: that of the last attempt,
with what mwatch would have done about it. A recording ends where its files end. Whether the run
went on after that is not known, unless the person says so or a file was written a moment ago.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from mwatch.config import catalogue
from mwatch.decide.decide import decide
from mwatch.decide.verdict import verdict
from mwatch.engine.advice import advise
from mwatch.engine.engine import Assessment, Engine
from mwatch.engine.run_timeline import RunTimeline
from mwatch.errors import InputError
from mwatch.evidence.flight_files import Flight, gather
from mwatch.model.decision import Action, Decision, DecisionRecord
from mwatch.model.finding import Cause, Finding, Severity, Verdict
from mwatch.model.goodput import GoodputLedger
from mwatch.model.job import Attempt, Job
from mwatch.model.observation import Source
from mwatch.model.settings import Settings
from mwatch.parse.grammar import Grammar
from mwatch.replay.flight_verdict import Testimony
from mwatch.replay.player import Listener, Player
from mwatch.replay.recording import Progress, Recording, open_recording
from mwatch.report.run_report import AttemptReport, RunReport, iso
from mwatch.state.goodput import ledger

_FRESH_SECONDS = 60.0
_FRESH_GAPS = 3.0
_SENT_SIGNALS = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
"""Somebody sends them; the others are a process's own doing."""
_TAKEN_AS_UP = "the log was written {:.0f} s ago, so the run is taken as still up"
_SILENT_END = "ended without a message: the cause is unknown"


class _End(NamedTuple):
    verdict: Verdict
    decision: Decision
    acted_at: float | None
    findings: tuple[Finding, ...]


def conclude(recording: Recording, player: Player, *, is_up: bool, now: float) -> RunReport:
    """`is_up`: the person said that the run was still there at the end."""
    engine, job = player.engine, player.engine.job
    ledger.settle(job, job.now)
    reported, decision, acted_at, findings = _end(recording, player, is_up=is_up, now=now)
    job_attempts = [*job.past, job.attempt]
    return RunReport(
        verdict=reported,
        decision=decision,
        acted_at=acted_at,
        advice=advise(reported.cause, decision.finding, job.catalogue),
        findings=findings,
        incidents=tuple(engine.incidents),
        attempts=tuple(_attempt(player, each, reported, decision) for each in job_attempts),
        ledger=job.ledger,
        world_size=job.layout.world_size,
        timeline=tuple(sorted(player.chronicle.entries, key=lambda entry: entry.at)),
        files=_files(recording),
        lines=recording.lines,
        first_at=job_attempts[0].started_at,
        last_at=player.at,
        is_relative=recording.is_relative,
        notes=tuple(recording.notes),
        iteration=job.attempt.iteration,
        total_iterations=job.layout.total_iterations or player.chronicle.total_iterations,
        left_out=player.chronicle.left_out,
    )


def _end(recording: Recording, player: Player, *, is_up: bool, now: float) -> _End:
    """What is to be said, and whether that rests on when the file was last written."""
    ended, attempt = player.last, player.engine.job.attempt
    assert ended is not None  # something was played
    is_open = not (is_up or _is_over(attempt))
    age = _age(recording, player, now) if is_open else None
    breaks_off = is_open and not _is_fresh(player, age)
    if breaks_off:
        ended = _as_the_end(player, ended)
    decision, acted_at = _decision(player, ended)
    reported = verdict(player.engine.job, ended.findings, decision)
    if breaks_off:
        words = _broken_off(attempt)
        if reported.cause is Cause.HEALTHY:
            recording.notes += [each.summary for each in ended.findings]
            reported = Verdict(Cause.UNKNOWN, words, confidence=0.0)
            decision = replace(decision, cause=Cause.UNKNOWN, reason=words)
        elif decision.action is Action.NONE:
            recording.notes.append(words)
    elif age is not None and reported.cause is Cause.HEALTHY:
        reported = replace(reported, summary=f"{reported.summary}; {_TAKEN_AS_UP.format(age)}")
    elif age is not None:
        recording.notes.append(_TAKEN_AS_UP.format(age))
    return _End(reported, decision, acted_at, ended.findings)


def _as_the_end(player: Player, ended: Assessment) -> Assessment:
    engine = player.engine
    findings = tuple(map(_as_last_words, ended.findings))
    decision = decide(engine.job, findings, engine.record, engine.settings)
    return ended._replace(findings=findings, decision=decision)


def _as_last_words(finding: Finding) -> Finding:
    """A traceback may have been caught; not one that a log ends with which nobody writes on."""
    if finding.detector != "crashed" or finding.severity is not Severity.WARNING:
        return finding
    return replace(finding, severity=Severity.CRITICAL, cannot_heal=True)


def nothing_read(recording: Recording) -> RunReport:
    """No line of the input is one that mwatch knows."""
    if recording.streams:
        where = "the file" if len(_files(recording)) == 1 else f"{len(_files(recording))} files"
        text = f"no line of a trainer was found in {where}"
    else:
        text = recording.notes[0] if recording.notes else "there is nothing to read"
    reported = Verdict(Cause.BLIND, text, confidence=0.0)
    return RunReport(
        verdict=reported,
        decision=Decision(Action.NONE, Cause.BLIND, 0, "nothing can be seen"),
        acted_at=None,
        advice=advise(Cause.BLIND, None, {}),
        findings=(),
        incidents=(),
        attempts=(),
        ledger=GoodputLedger(),
        world_size=None,
        timeline=(),
        files=_files(recording),
        lines=recording.lines,
        first_at=None,
        last_at=None,
        is_relative=False,
        notes=tuple(note for note in recording.notes if note != text),
    )


def _files(recording: Recording) -> tuple[str, ...]:
    return tuple(file.shown for stream in recording.streams for file in stream.files)


def _decision(player: Player, ended: Assessment) -> tuple[Decision, float | None]:
    """The action that was (or would be) taken on the last attempt, if its reason still stands."""
    engine, job = player.engine, player.engine.job
    number = job.attempt.number
    done = player.enacted.get(number)
    if done is None:
        return ended.decision, None
    taken, at = done
    others = deque(act for act in engine.record.acts if act.attempt != number)
    afresh = decide(job, ended.findings, DecisionRecord(others), engine.settings)
    newest = next(
        (each for each in ended.findings
         if taken.finding and (each.detector, each.cause) == (taken.finding.detector, taken.cause)),
        None,
    )  # fmt: skip
    if newest is None and afresh.cause is not taken.cause:
        return afresh, None
    if job.sees(Source.CHECKPOINTS) and afresh.action is not Action.NONE:
        return afresh, at  # the folder knows better than the log what can be loaded
    return replace(taken, finding=newest or taken.finding), at


def _age(recording: Recording, player: Player, now: float) -> float | None:
    """Seconds since anybody wrote to the log; None where nothing tells."""
    written = recording.written_at
    if written is None and not recording.is_relative:
        written = player.at
    return None if written is None or now < written else now - written


def _is_fresh(player: Player, age: float | None) -> bool:
    """Whether somebody was still writing: then silence of the log means nothing yet."""
    steps = list(player.engine.job.attempt.steps)[-2:]
    gap = steps[1].at - steps[0].at if len(steps) == 2 else 0.0
    return age is not None and age <= _FRESH_SECONDS + _FRESH_GAPS * gap


def _is_over(attempt: Attempt) -> bool:
    return attempt.is_finished or attempt.exit is not None or attempt.ended_at is not None


def _broken_off(attempt: Attempt) -> str:
    place = "" if attempt.iteration is None else f" after iteration {attempt.iteration}"
    text = f"the log breaks off{place} ({attempt.phase.value}) and does not show how the run ended"
    last = attempt.faults[-1] if attempt.faults else None
    if last is not None and last.entry is not None and last.at >= attempt.progress_at:
        text += f"; last message: {last.entry.title}"
    return text


def _printed_by_launcher(attempt: Attempt) -> tuple[Cause, str] | None:
    """torchrun says why it restarts its workers in the line that begins the next attempt."""
    reported = attempt.errors[-1].error if attempt.errors else None
    if reported is None or reported.kind != "restart" or reported.exit_code is None:
        return None
    by_signal = reported.signal in _SENT_SIGNALS
    how = reported.signal or f"exit code {reported.exit_code}"
    return (Cause.KILLED if by_signal else Cause.CRASH, f"torchrun restarted its workers: {how}")


def _attempt(
    player: Player, attempt: Attempt, reported: Verdict, decision: Decision
) -> AttemptReport:
    is_last = attempt is player.engine.job.attempt
    cause, summary = reported.cause, reported.summary
    about: Decision | None = decision
    if not is_last:
        ending = player.endings.get(attempt.number)
        taken = player.enacted.get(attempt.number)
        cause, summary = _printed_by_launcher(attempt) or (Cause.UNKNOWN, _SILENT_END)
        about = None
        if ending is not None and ending.verdict.cause is not Cause.HEALTHY:
            cause, summary = ending.verdict.cause, ending.verdict.summary
            about = taken[0] if taken else ending.decision
    return AttemptReport(
        attempt.number,
        attempt.started_at,
        attempt.ended_at,
        attempt.first_iteration,
        attempt.iteration,
        attempt.resumed_from,
        cause,
        summary,
        about,
    )


NOW = "now"
_DOUBT = 0.01  # of the wall time: as exact as the goodput is meant to be


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    names: Sequence[str]
    """Log files, folders, or `-`."""
    checkpoints: Sequence[str] = ()
    """Folders that the trainer saves to, besides those found."""
    until: str | None = None
    """The run was still up then: a moment of the log's clock (ISO 8601), or `now`."""
    settings: Settings = field(default_factory=Settings)
    catalogues: Sequence[Path] = ()


def replay(
    request: ReplayRequest,
    now: float,
    progress: Progress | None = None,
    listener: Listener | None = None,
) -> RunReport:
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
    player = Player(engine, RunTimeline(), listener)
    gc.freeze()  # events hold no cycles: collecting among them only costs time
    gc.set_threshold(100_000)
    player.play(recording.observed(progress))
    last = player.at
    if last is None:
        return _by_dumps_alone(nothing_read(recording), flight)
    for rollback in recording.rollbacks(last):
        engine.job.timeline.roll_back(rollback)
    for observed in recording.stored(last):
        engine.observe(observed)
    up_until = _in_log_time(request, until, recording, last)
    if flight is None:
        player.finish(up_until)
        recording.notes += _doubts(engine.job)
        return conclude(recording, player, is_up=up_until is not None, now=now)
    received = Testimony(flight, engine.job, last, is_relative=recording.is_relative)
    recording.notes += received.notes
    player.play(received.observed(recording.streams[0].name))
    up_until = max(filter(None, (up_until, received.up_until())), default=None)
    player.finish(up_until)
    recording.notes += _doubts(engine.job)
    return received.judged(conclude(recording, player, is_up=up_until is not None, now=now))


def _doubts(job: Job) -> list[str]:
    """Where the goodput is a guess, it is said."""
    guessed = job.ledger.guessed_seconds
    if guessed <= _DOUBT * (job.now - (job.ledger.started_at or job.now)):
        return []
    why = "too few iteration lines to measure the first step"
    return [f"goodput: {guessed:.0f} s are attributed by estimate: {why}"]


def _by_dumps_alone(report: RunReport, flight: Flight | None) -> RunReport:
    if flight is None:
        return report
    received = Testimony(flight)
    return received.judged(replace(report, notes=(*report.notes, *received.notes)))


def moment(text: str, now: float) -> float:
    """What `--until` names; a log's clock has no zone, so one that is given is taken as UTC."""
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
