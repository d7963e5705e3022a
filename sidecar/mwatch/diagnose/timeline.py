# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the pods told, as one story for one engine: snapshots of sidecars and lines of logs.

A line of a log has the time at which its node read it. Clocks of several nodes are taken as equal:
a cluster keeps them so, and a second more or less changes no verdict. The middle of a long log is
not known; so past silences are not judged, only how things stand now.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from mwatch.config import catalogue
from mwatch.diagnose.pod_reports import PodReport
from mwatch.engine.engine import Assessment, Engine
from mwatch.kube.pod_logs import PodLog
from mwatch.model.event import Arguments
from mwatch.model.fault import CatalogueEntry
from mwatch.model.finding import Evidence, Finding
from mwatch.model.kube.pod import KubePod
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
    """When a line was printed, by file and number."""
    arguments: Arguments | None = None
    """The newest block that was printed."""
    stored: StoredCheckpoints | None = None
    lines: int = 0
    looks: int = 0
    last_at: float | None = None

    def time_of(self, evidence: Evidence) -> float | None:
        if evidence.file is None or evidence.line is None:
            return None
        return self.places.get((evidence.file, evidence.line))


def tell(
    run: str,
    words: Sequence[PodReport],
    now: float,
    *,
    besides: Sequence[Finding] = (),
    settings: Settings | None = None,
    is_up: bool = True,
) -> JobHistory:
    """`besides`: what Kubernetes knows; `is_up`: somebody may still print something."""
    entries, grammar = _read_catalogue()
    engine = Engine(run, {entry.id: entry for entry in entries}, settings)
    recorder = ReportRecorder(engine, clock=ReportClock(zone="UTC"), has_curves=False)
    story = JobHistory(engine, Assessment(now, (), engine.preview(now).decision), recorder)
    told = _told(words, grammar, story)
    for observed in told:
        _play(story, observed)
    if story.last_at is None:
        story.assessment = engine.evaluate(now, besides)
        return story
    # Where all has ended nothing more is to be waited for: a silence after it means nothing.
    until = now if is_up else story.last_at
    engine.evaluate(min(until, story.last_at + 1.0), besides)
    story.assessment = engine.evaluate(until, besides)
    return story


@cache
def _read_catalogue() -> tuple[Sequence[CatalogueEntry], Grammar]:
    """Dear to make, and the same for every job."""
    entries = catalogue.load(())
    return entries, Grammar(entries, None)


def _told(words: Sequence[PodReport], grammar: Grammar, story: JobHistory) -> list[Observed]:
    every: list[Observed] = []
    for each in words:
        if each.snapshot is not None:
            every += _of_snapshot(each, story)
        for log in each.logs if each.snapshot is None else ():
            every += _of_log(log, grammar, story)
        every += _of_kubernetes(each)
    every.sort(key=lambda each: each.at)
    sights = _sights(words)
    if every and sights:
        first = every[0].at
        every = [*(Observed(first, "", each) for each in sights), *every]
    return every


def _sights(words: Sequence[PodReport]) -> list[SourceStatusChange]:
    """What anybody sees, the job is seen by."""
    up: dict[str, bool] = {}
    for each in words:
        for name, is_up in (each.snapshot.sources if each.snapshot else {}).items():
            up[name] = up.get(name, False) or is_up
    if any(each.logs for each in words):
        up[Source.LOG.value] = True
    known = {each.value for each in Source}
    return [
        SourceStatusChange(Source(name), is_up, "") for name, is_up in up.items() if name in known
    ]


def _of_snapshot(words: PodReport, story: JobHistory) -> Iterator[Observed]:
    """Evidence names the pod, not the file on its volume."""
    snapshot, pod = words.snapshot, words.pod.name
    assert snapshot is not None
    shift = snapshot.shift(words.received_at)
    wrapper = snapshot.wrapper
    if wrapper is not None:
        start = AttemptStart(wrapper.attempt, wrapper.resume_from, None)
        yield Observed(wrapper.started_at + shift, pod, start)
    for observed in snapshot.observed(words.received_at):
        at, _, what = observed
        if isinstance(what, SourceStatusChange):
            continue
        yield Observed(at, pod, _named(what, pod, at, story))


def _named(what: Any, pod: str, at: float, story: JobHistory) -> Any:
    line = getattr(what, "line", None)
    if line is None or not hasattr(what, "file"):
        return what
    _place(story, pod, line, at)
    return what._replace(file=pod)


def _place(story: JobHistory, file: str, line: int, at: float) -> None:
    if len(story.places) < _MAX_PLACES:
        story.places[file, line] = at


def _of_log(log: PodLog, grammar: Grammar, story: JobHistory) -> list[Observed]:
    name = f"{log.pod} (previous)" if log.is_previous else log.pod
    reader = Reader(grammar, name)
    found: list[Observed] = []
    times: list[float] = []
    for part in (log.head, log.tail):
        events = in_order(reader.feed(_without_times(part, times)))
        found += _at(events, times, log.pod, name, story)
    found += _at(in_order(reader.settle()), times, log.pod, name, story)
    story.lines += len(times)
    return found


def _at(
    events: Iterable[Any], times: Sequence[float], pod: str, name: str, story: JobHistory
) -> Iterator[Observed]:
    for event in events:
        at = times[min(max(event.line, 1), len(times)) - 1]
        _place(story, name, event.line, at)
        yield Observed(at, pod, event)


def _without_times(data: bytes, times: list[float]) -> bytes:
    """The lines as they were printed; one without a time has that of the line before."""
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


def _of_kubernetes(words: PodReport) -> Iterator[Observed]:
    """How its container ended; where a sidecar answers, the wrapper knows better."""
    trainer = words.trainer
    if words.snapshot is not None or trainer is None or trainer.ended_at is None:
        return
    code = trainer.exit_code
    killed = None if code is None or code <= 128 else _signal(code - 128)
    reason = trainer.exit_reason if trainer.exit_reason not in ("Error", "Completed") else ""
    yield Observed(
        trainer.ended_at, words.pod.name,
        ProcessExit(code, killed, reason or _pod_reason(words.pod)),
    )  # fmt: skip


def _signal(number: int) -> str | None:
    from signal import Signals

    try:
        return Signals(number).name
    except ValueError:
        return None


def _pod_reason(pod: KubePod) -> str | None:
    if pod.disruption is not None:
        return pod.disruption.reason
    return pod.reason or None


def _play(story: JobHistory, observed: Observed) -> None:
    engine, what = story.engine, observed.what
    if _may_begin(engine, what) and story.last_at is not None and story.looks < _MAX_ENDINGS:
        story.looks += 1
        story.recorder.assessed(engine.preview(story.last_at))
    engine.observe(observed)
    story.recorder.note(observed)
    story.last_at = max(story.last_at or observed.at, observed.at)
    if isinstance(what, Arguments):
        story.arguments = what
    elif isinstance(what, StoredCheckpoints):
        story.stored = what


def _may_begin(engine: Engine, what: object) -> bool:
    """An attempt: then the one before it is looked at a last time."""
    if isinstance(what, AttemptStart):
        return what.attempt != engine.job.attempt.number
    return isinstance(what, Arguments)
