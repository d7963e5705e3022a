# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Build a run report from recorded logs, for `mwatch replay`, `diagnose` and `report`.

The verdict describes the last attempt at the end of the recording, with what mwatch would have done
about it. A recording ends where its files end. Whether the run continued after that is unknown,
unless the user states it or a file was written a moment ago.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from mwatch.config import catalogue
from mwatch.decide.decide import advise as advice_of
from mwatch.engine.advice import advise
from mwatch.engine.engine import Assessment, Engine
from mwatch.errors import InputError
from mwatch.evidence.flight_files import gather
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.event import Error
from mwatch.model.finding import LOG_END, Finding, Severity, Verdict
from mwatch.model.job import Attempt, Job
from mwatch.model.observation import Observed
from mwatch.model.settings import Settings
from mwatch.model.step import PlacedLines
from mwatch.replay.flight_evidence import FlightEvidence
from mwatch.replay.freshness import TAIL, Age
from mwatch.replay.log_end import has_counted
from mwatch.replay.newest_first import in_time_order
from mwatch.replay.player import Player
from mwatch.replay.pod_prefixes import SplitLogs, split_by_pod
from mwatch.replay.quotes import quoted
from mwatch.replay.recording import FRESH_SECONDS, Progress, Recording, open_recording
from mwatch.replay.second_reading import reconsidered
from mwatch.report.conclusion import RunConclusion
from mwatch.report.log_ends import ends, of_replay
from mwatch.report.model import IncidentStory, ReportClock, short
from mwatch.report.recorder import ReportRecorder
from mwatch.report.run_report import RunReport, iso
from mwatch.runtime.compressed import unpacked
from mwatch.runtime.files import STDIN, unpacked_pieces

_FRESH_GAPS = 3.0
_HANGS_SECONDS = 7 * 86400.0
"""No hang is concluded from an older last line: the pod is most likely deleted by then."""
_DOUBTED = 0.4
"""Upper limit of the confidence in a hang when the run may equally well have ended."""
_SURE = 0.7  # confidence from which a NaN is worth advice
_LASTING = frozenset(
    {Cause.STARTED_FROM_RANDOM, Cause.RESUME_DIVERGED, Cause.LOSS_STUCK, Cause.LOSS_SPIKE}
)
"""Causes that do not resolve by themselves, so even a warning about them is worth advice."""
_MAY_BE_UP = "not acted on: the log does not show whether the run is still up"
_ASK = "`kubectl get pod` or `mwatch diagnose JOB` shows which"


def conclude(recording: Recording, player: Player, *, is_up: bool, now: float) -> RunReport:
    """Build the report. `is_up`: the user stated that the run was still up at the end."""
    recorder = player.recorder
    concluded = _end(recording, player, is_up=is_up, now=now)
    is_by_age = concluded.verdict.cause is Cause.HEALTHY or concluded.decision.reason == _MAY_BE_UP
    if not is_up and not is_by_age:
        concluded = reconsidered(
            concluded,
            player.engine,
            recording.tails,
            recording.line_counts,
            has_worked=player.log_end.has_worked,
        )
    lead = concluded.decision.finding
    if lead is not None and player.at is not None and not player.engine.incidents:
        player.engine.evaluate(player.at, (lead,))  # found by the second reading
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
        log_ends=ends(recording.tails, TAIL) if recorder.has_curves else (),
    )


def _end(recording: Recording, player: Player, *, is_up: bool, now: float) -> RunConclusion:
    """Conclude from the last assessment and the age of the last line."""
    ended, attempt = player.last, player.engine.job.attempt
    assert ended is not None  # at least one observation was played
    if is_up:
        return player.recorder.conclusions.run(ended)
    if _has_ended(attempt):
        return _with_advice(player, player.recorder.conclusions.run(ended))
    age = _age(recording, player, now)
    if age is not None and age.seconds <= _fresh_limit(player):
        return _still_up(recording, player, ended, age)
    return _broken_off(recording, player, ended, age)


def _with_advice(player: Player, concluded: RunConclusion) -> RunConclusion:
    """Add advice on the cause of the end, even if mwatch itself would not act on it."""
    decision, engine = concluded.decision, player.engine
    lead, attempt = decision.finding, engine.job.attempt
    if decision.action is not Action.NONE or lead is None or lead.cause is not decision.cause:
        return concluded
    is_over = attempt.is_finished or engine.record.of_attempt(decision.attempt) is not None
    if is_over and lead.detector != LOG_END:
        return concluded
    is_critical = lead.severity is Severity.CRITICAL and not player.log_end.is_followed(lead)
    is_lasting = lead.cause in _LASTING or lead.comes_again
    is_lasting = is_lasting or (lead.cause is Cause.NAN and lead.confidence >= _SURE)
    if not is_critical and lead.detector != LOG_END and not is_lasting:
        return concluded
    has_worked = player.log_end.has_worked
    advised = advice_of(
        engine.job, lead, concluded.findings, engine.settings, has_worked=has_worked
    )
    return concluded if advised is None else concluded._replace(decision=advised)


def _goes_on(attempt: Attempt) -> bool:
    """Whether no line shows an end or an error; output after an error does not prove a silence."""
    raised = (*attempt.errors, *attempt.exceptions)
    has_failed = any(seen.at >= attempt.last_progress for seen in raised)
    return not (_has_ended(attempt) or has_failed)


def _has_ended(attempt: Attempt) -> bool:
    return attempt.is_finished or attempt.exit is not None or attempt.ended_at is not None


def _still_up(recording: Recording, player: Player, ended: Assessment, age: Age) -> RunConclusion:
    concluded = player.recorder.conclusions.run(ended)
    verdict = concluded.verdict
    text = f"the last line is {_minutes(age.seconds)} old, so the run is taken as still up"
    if age.assumed:
        text += f" ({age.assumed})"
    if verdict.cause is not Cause.HEALTHY:
        recording.notes += [text] if concluded.decision.action is Action.NONE else []
        return concluded
    return concluded._replace(verdict=replace(verdict, summary=f"{verdict.summary}; {text}"))


def _broken_off(
    recording: Recording, player: Player, ended: Assessment, age: Age | None
) -> RunConclusion:
    """Conclude when nothing shows that the run is still up.

    `age`: None if the log is not known to be recent.
    """
    concluded = player.recorder.conclusions.run(ended)
    text = _break_text(recording, player.engine.job.attempt, age)
    if concluded.verdict.cause is not Cause.HEALTHY:
        advised = _with_advice(player, concluded)
        if concluded.decision.action is Action.NONE:
            recording.notes.append(text)
        return advised
    silent = None if age is None else _silent_since(player, ended.at, age)
    if silent is not None:
        return silent
    recording.notes += [each.summary for each in ended.findings]
    verdict = Verdict(Cause.UNKNOWN, text, confidence=0.0)
    decision = replace(concluded.decision, cause=Cause.UNKNOWN, reason=text)
    return concluded._replace(verdict=verdict, decision=decision)


def _silent_since(player: Player, last: float, age: Age) -> RunConclusion | None:
    """Conclude that the run has hung or ended since `last`: the log is current, its end is old."""
    if age.seconds > _HANGS_SECONDS:
        return None
    now = player.engine.preview(last + age.seconds)
    found = next((each for each in now.findings if each.detector == "stalled"), None)
    if found is None:
        return None
    assumed = f" ({age.assumed})" if age.assumed else ""
    text = (
        f"the last line is {_minutes(age.seconds)} old{assumed}: {found.summary}. Either the run "
        f"has hung since then, or it ended without a message; {_ASK}"
    )
    found = replace(found, summary=text, confidence=min(found.confidence, _DOUBTED))
    decision = Decision(Action.NONE, Cause.HANG, now.decision.attempt, _MAY_BE_UP, finding=found)
    verdict = Verdict(
        Cause.HANG, text, found.since_iteration, found.since_time, found.culprit, found.confidence
    )
    others = (each for each in now.findings if each.detector != "stalled")
    return RunConclusion(verdict, decision, None, (found, *others))


def _minutes(seconds: float) -> str:
    units = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"))
    for size, unit in units:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def nothing_read(recording: Recording, engine: Engine) -> RunReport:
    """Return the report for an input without any recognised line."""
    if not recording.streams:
        text = recording.notes[0] if recording.notes else "there is nothing to read"
        concluded = _nothing_found(Cause.BLIND, text, "there is no data")
    else:
        concluded = _by_words(recording, engine)
    verdict = concluded.verdict
    return RunReport(
        run=engine.job.run,
        mode="replay",
        clock=ReportClock(),
        verdict=verdict,
        decision=concluded.decision,
        advice=advise(verdict.cause, None, {}),
        findings=concluded.findings,
        files=_files(recording),
        lines=recording.lines,
        notes=tuple(note for note in recording.notes if note != verdict.summary),
    )


def _nothing_found(
    cause: Cause, text: str, reason: str, finding: Finding | None = None
) -> RunConclusion:
    decision = Decision(Action.NONE, cause, 0, reason, finding=finding)
    return RunConclusion(Verdict(cause, text, confidence=0.0), decision, None, ())


def _by_words(recording: Recording, engine: Engine) -> RunConclusion:
    """Conclude from the wording alone, for a log of an unknown trainer."""
    where = "the file" if len(_files(recording)) == 1 else f"{len(_files(recording))} files"
    text = f"no line of a trainer was found in {where}"
    if recording.is_about_training:
        text = f"no line in {where} shows progress or an error"
    concluded = _nothing_found(Cause.UNKNOWN, text, text)
    tails, counts = recording.tails, recording.line_counts
    has_worked = has_counted(tails, counts)
    return reconsidered(concluded, engine, tails, counts, has_worked=has_worked)


def _files(recording: Recording) -> tuple[str, ...]:
    return tuple(file.shown for stream in recording.streams for file in stream.files)


def _age(recording: Recording, player: Player, now: float) -> Age | None:
    """Return the age of the last line; None if it is unknown or the file is old."""
    limit = _fresh_limit(player)
    written = recording.written_at
    if written is not None and now - written > limit:
        return None
    return recording.age(recording.end_clock(player.at or 0.0), limit)


def _fresh_limit(player: Player) -> float:
    """Return the age up to which the log counts as still being written, so silence is normal."""
    steps = list(player.engine.job.attempt.steps)[-2:]
    gap = steps[1].at - steps[0].at if len(steps) == 2 else 0.0
    return FRESH_SECONDS + _FRESH_GAPS * gap


def _break_text(recording: Recording, attempt: Attempt, age: Age | None) -> str:
    place = "" if attempt.iteration is None else f" after iteration {attempt.iteration}"
    text = f"the log breaks off{place} ({attempt.phase.value}) and does not show how the run ended"
    last = attempt.faults[-1] if attempt.faults else None
    if last is not None and last.entry is not None and last.at >= attempt.progress_at:
        text += f"; last message: {last.entry.title}"
    if recording.is_relative:
        text += "; it prints no times, so its age is unknown: use kubectl logs "
        text += "--timestamps"
    elif age is not None:
        text += f"; its last line is {_minutes(age.seconds)} old"
        text += f" ({age.assumed})" if age.assumed else ""
    return text


NOW = "now"
_DOUBT = 0.01  # share of the wall time, the accuracy of the goodput


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    names: Sequence[str]
    """Log files, folders, or `-`."""
    checkpoints: Sequence[str] = ()
    """Save folders, in addition to those found beside the logs."""
    until: str | None = None
    """Time until which the run was still up: ISO 8601 on the log's clock, or `now`."""
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

    `has_curves`: include the curves for the HTML page.
    """
    with (
        unpacked(request.names, unpacked_pieces) as names,
        in_time_order(names) as turned,
        split_by_pod(turned.names) as logs,
    ):
        return turned.restored(_replay(request, logs, now, progress, has_curves=has_curves))


def _replay(
    request: ReplayRequest,
    logs: SplitLogs,
    now: float,
    progress: Progress | None,
    *,
    has_curves: bool,
) -> RunReport:
    until = None if request.until is None else moment(request.until, now)
    known, grammar = catalogue.with_grammar(request.catalogues)
    flight, names = gather(logs.names)
    recording = open_recording(names, request.checkpoints, grammar, now)
    engine = Engine(run_name(request.names), known, request.settings)
    engine.job.files = {
        stream.name: stream.files[-1].shown
        for stream in recording.streams
        if stream.files[-1].path not in logs.origins
    }
    player = Player(engine, ReportRecorder(engine, "replay", has_curves=has_curves))
    gc.freeze()  # events hold no reference cycles, so collecting them only costs time
    gc.set_threshold(100_000)
    player.play(_without_announced_restart(recording.observed(progress)))
    last = player.at
    if last is None:
        report = nothing_read(recording, engine)
        if flight is None:
            return report
        alone = FlightEvidence(flight)
        return alone.judged(replace(report, notes=(*report.notes, *alone.notes)))
    for rollback in recording.rollbacks(last):
        engine.job.timeline.roll_back(rollback)
    for observed in recording.stored(last):
        engine.observe(observed)
    up_until = _in_log_time(request, until, recording, last)
    attempt = engine.job.attempt
    step = attempt.steps[-1] if attempt.steps else None
    proved = recording.quiet_until(last, step) if _goes_on(attempt) else None
    dumps = flight and FlightEvidence(flight, engine.job, last, is_relative=recording.is_relative)
    if dumps is not None:
        recording.notes += dumps.notes
        player.play(dumps.observed(recording.streams[0].name))
        up_until = max(filter(None, (up_until, dumps.up_until())), default=None)
    player.finish(up_until, recording.line_counts, proved=proved, tails=recording.tails)
    are_untimed = _are_untimed(engine.job)
    recording.notes += _UNTIMED if are_untimed else _doubts(engine.job)
    report = conclude(recording, player, is_up=up_until is not None, now=now)
    if are_untimed or recording.is_relative:
        report = _without_times(report)
    report = quoted(report, recording.paths)
    report = report if dumps is None else dumps.judged(report)
    report = of_replay(report, recording.paths) if has_curves else report
    return logs.restored(report, recording.paths)


def _without_times(report: RunReport) -> RunReport:
    """Drop goodput and pauses from a report whose times are derived from step durations alone.

    A pause between two lines is not an incident there: the pasted log may lack lines.
    """
    incidents = tuple(each for each in report.incidents if not _is_pause(each))
    return replace(report, goodput=None, spent=(), incidents=incidents)


def _is_pause(incident: IncidentStory) -> bool:
    is_by_silence = all(each.detector == "stalled" for each in incident.voices)
    return is_by_silence and incident.closed_at is not None


def _without_announced_restart(
    recording: Iterable[Observed | PlacedLines],
) -> Iterator[Observed | PlacedLines]:
    """Drop a launcher's announcement of the next attempt if nothing follows it.

    The log is then about what ended the previous attempt.
    """
    held: list[Observed] = []
    for each in recording:
        what = each.what if isinstance(each, Observed) else None
        if isinstance(each, Observed) and isinstance(what, Error) and what.kind == "restart":
            held.append(each)
            continue
        yield from held
        held.clear()
        yield each


def run_name(names: Sequence[str]) -> str:
    return "recorded run" if names[0] == STDIN else Path(names[0]).resolve().stem


_UNTIMED = ("goodput: unknown, because the steps in the log have no times",)
_LINE_SECONDS = 0.01
"""Lines without a timestamp are placed closer together than this."""


def _are_untimed(job: Job) -> bool:
    """Whether the steps print neither a timestamp nor a duration."""
    steps = job.attempt.steps
    if not steps or steps[-1].seconds is not None:
        return False
    return len(steps) > 1 and steps[-1].at - steps[0].at <= _LINE_SECONDS * len(steps)


def _doubts(job: Job) -> list[str]:
    """Return a note if much of the goodput is estimated."""
    guessed = job.ledger.guessed_seconds
    if guessed <= _DOUBT * (job.now - (job.ledger.started_at or job.now)):
        return []
    why = "too few iteration lines to measure the first step"
    return [f"goodput: {guessed:.0f} s are attributed by estimate: {why}"]


def moment(text: str, now: float) -> float:
    """Parse `--until`; a time without a zone is taken as UTC, like the log's clock."""
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
        age = recording.age(recording.end_clock(last))
        if age is not None and age.assumed:
            recording.notes.append(f"--until now: {age.assumed}")
        return until - recording.clock_ahead(last)
    if until < last:
        fix = "give a later time, or leave the later files out"
        raise InputError(f"--until {request.until}: the log goes on until {iso(last)}; {fix}")
    return until
