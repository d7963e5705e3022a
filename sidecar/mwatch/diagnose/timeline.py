# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Feeds one engine with everything the pods of a live job report: snapshots and log lines.

A log line has the time at which its node read it. Clocks of different nodes are assumed to agree: a
difference of a second changes no verdict. The middle of a long log is not read, so past silences
are not evaluated, only the current state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from signal import Signals
from typing import Any

from mwatch.config import catalogue
from mwatch.diagnose.pod_reports import PodReport
from mwatch.engine.engine import Assessment, Engine
from mwatch.kube.pod_pages import PodLog
from mwatch.model.event import Arguments
from mwatch.model.finding import Evidence, Finding
from mwatch.model.observation import (
    AttemptStart,
    Observed,
    ProcessExit,
    Source,
    SourceStatusChange,
    StoredCheckpoints,
)
from mwatch.model.settings import Settings
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader, in_order
from mwatch.report.log_ends import quotation
from mwatch.report.model import ReportClock
from mwatch.report.recorder import ReportRecorder

_MAX_PLACES = 200_000
_MAX_ENDINGS = 64


@dataclass(slots=True)
class JobHistory:
    engine: Engine
    assessment: Assessment
    recorder: ReportRecorder
    places: dict[tuple[str, int], float] = field(default_factory=dict)
    """When each line was printed, by file and line number."""
    arguments: Arguments | None = None
    """The newest block of arguments in a log."""
    stored: StoredCheckpoints | None = None
    lines: int = 0
    looks: int = 0
    texts: dict[str, list[bytes]] = field(default_factory=dict)
    """Lines of the logs that were read, by log name."""
    last_at: float | None = None

    def text_of(self, file: str, line: int) -> str | None:
        lines = self.texts.get(file, [])
        if not 0 < line <= len(lines):
            return None
        return quotation(lines[line - 1])

    def time_of(self, evidence: Evidence) -> float | None:
        if evidence.file is None or evidence.line is None:
            return None
        return self.places.get((evidence.file, evidence.line))


def build_history(
    run: str,
    reports: Sequence[PodReport],
    now: float,
    *,
    besides: Sequence[Finding] = (),
    settings: Settings | None = None,
    is_up: bool = True,
    has_curves: bool = False,
) -> JobHistory:
    """Replay all reports through an engine. `besides`: findings from Kubernetes; `is_up`: a pod may
    still print something; `has_curves`: also record the data for a page."""
    known, grammar = catalogue.with_grammar()
    engine = Engine(run, known, settings)
    recorder = ReportRecorder(engine, clock=ReportClock(zone="UTC"), has_curves=has_curves)
    history = JobHistory(engine, Assessment(now, (), engine.preview(now).decision), recorder)
    engine.quote = history.text_of
    for observed in _observations(reports, grammar, history):
        _play(history, observed)
    if history.last_at is None:
        history.assessment = engine.evaluate(now, besides)
        return history
    # After all pods have ended, silence is not a symptom.
    until = now if is_up else history.last_at
    engine.evaluate(min(until, history.last_at + 1.0), besides)
    history.assessment = engine.evaluate(until, besides)
    return history


def _observations(
    reports: Sequence[PodReport], grammar: Grammar, history: JobHistory
) -> list[Observed]:
    every: list[Observed] = []
    for each in reports:
        if each.snapshot is not None:
            every += _of_snapshot(each, history)
        for log in each.logs if each.snapshot is None else ():
            every += _of_log(log, grammar, history)
        every += _of_kubernetes(each)
    every.sort(key=lambda each: each.at)
    if every:
        first = every[0].at
        every = [*(Observed(first, "", each) for each in _sources(reports)), *every]
    return every


def _sources(reports: Sequence[PodReport]) -> list[SourceStatusChange]:
    """A source of the job is up if it is up in any pod."""
    up: dict[str, bool] = {}
    for each in reports:
        for name, is_up in (each.snapshot.sources if each.snapshot else {}).items():
            up[name] = up.get(name, False) or is_up
    if any(each.logs for each in reports):
        up[Source.LOG.value] = True
    known = {each.value for each in Source}
    return [
        SourceStatusChange(Source(name), is_up, "") for name, is_up in up.items() if name in known
    ]


def _of_snapshot(report: PodReport, history: JobHistory) -> Iterator[Observed]:
    """Replay a snapshot; evidence names the pod instead of the file on its volume."""
    snapshot, pod = report.snapshot, report.pod.name
    assert snapshot is not None
    shift = snapshot.shift(report.received_at)
    wrapper = snapshot.wrapper
    if wrapper is not None:
        start = AttemptStart(wrapper.attempt, wrapper.resume_from, None)
        yield Observed(wrapper.started_at + shift, pod, start)
    for observed in snapshot.observed(report.received_at):
        at, _, what = observed
        if isinstance(what, SourceStatusChange):
            continue
        yield Observed(at, pod, _named(what, pod, at, history))


def _named(what: Any, pod: str, at: float, history: JobHistory) -> Any:
    line = getattr(what, "line", None)
    if line is None or not hasattr(what, "file"):
        return what
    _place(history, pod, line, at)
    return what._replace(file=pod)


def _place(history: JobHistory, file: str, line: int, at: float) -> None:
    if len(history.places) < _MAX_PLACES:
        history.places[file, line] = at


def log_name(log: PodLog) -> str:
    return f"{log.pod} (previous)" if log.is_previous else log.pod


def _of_log(log: PodLog, grammar: Grammar, history: JobHistory) -> list[Observed]:
    name = log_name(log)
    reader = Reader(grammar, name)
    found: list[Observed] = []
    times: list[float] = []
    for part in (log.head, log.tail):
        text = without_times(part, times)
        history.texts.setdefault(name, []).extend(text.splitlines())
        events = in_order(reader.feed(text))
        found += _at(events, times, log.pod, name, history)
    found += _at(in_order(reader.settle()), times, log.pod, name, history)
    history.lines += len(times)
    return found


def _at(
    events: Iterable[Any], times: Sequence[float], pod: str, name: str, history: JobHistory
) -> Iterator[Observed]:
    for event in events:
        at = times[min(max(event.line, 1), len(times)) - 1]
        _place(history, name, event.line, at)
        yield Observed(at, pod, event)


def without_times(data: bytes, times: list[float]) -> bytes:
    """Strip timestamps into `times`; a line without one gets that of the previous line."""
    lines = []
    for line in data.splitlines():
        stamp, blank, rest = line.partition(b" ")
        at = _moment(stamp) if blank or not rest else None
        lines.append(line if at is None else rest)
        times.append(times[-1] if at is None and times else at or 0.0)
    return b"".join(line + b"\n" for line in lines)


def _moment(stamp: bytes) -> float | None:
    try:
        return datetime.fromisoformat(stamp.decode("ascii")).timestamp()
    except (ValueError, UnicodeDecodeError):
        return None


def _of_kubernetes(report: PodReport) -> Iterator[Observed]:
    """Yield how the container ended, unless the sidecar responds and has more detail."""
    trainer = report.trainer
    if report.snapshot is not None or trainer is None or trainer.ended_at is None:
        return
    code, pod = trainer.exit_code, report.pod
    killed = {each.value: each.name for each in Signals}.get((code or 0) - 128)
    reason = trainer.exit_reason if trainer.exit_reason not in ("Error", "Completed") else ""
    own = pod.reason if pod.disruption is None else pod.disruption.reason
    yield Observed(trainer.ended_at, pod.name, ProcessExit(code, killed, reason or own or None))


def _play(history: JobHistory, observed: Observed) -> None:
    engine, what = history.engine, observed.what
    if _may_begin(engine, what) and history.last_at is not None and history.looks < _MAX_ENDINGS:
        history.looks += 1
        history.recorder.assessed(engine.preview(history.last_at))
    engine.observe(observed)
    history.recorder.note(observed)
    history.last_at = max(history.last_at or observed.at, observed.at)
    if isinstance(what, Arguments):
        history.arguments = what
    elif isinstance(what, StoredCheckpoints):
        history.stored = what


def _may_begin(engine: Engine, what: object) -> bool:
    """Whether a new attempt may begin; the previous one is then assessed a last time."""
    if isinstance(what, AttemptStart):
        return what.attempt != engine.job.attempt.number
    return isinstance(what, Arguments)
