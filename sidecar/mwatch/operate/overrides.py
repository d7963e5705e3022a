# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A person's overrides: pause, resume and mode. Each works with and without a controller.

The override itself is an annotation on the job, or an entry in the ledger for all jobs; the
controller reads both before it acts. Person and reason go to the ledger and to an Event; what the
person may not write is listed in the result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mwatch.errors import InputError
from mwatch.gang.restart import ledger_key
from mwatch.gang.suspend import SUSPENDED_BY, start_job
from mwatch.kube.access import Access, whoami
from mwatch.kube.errors import KubeError
from mwatch.kube.events import Events
from mwatch.kube.jobs import find_job, no_such_job, parse_job_name, watched_jobs, workload_for
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import OF_KIND
from mwatch.model.kube.gang import Method
from mwatch.model.kube.job import (
    MODE,
    PAUSE,
    KubeJob,
    Pause,
    pause_of,
    pause_text,
    wrappers_observe,
)
from mwatch.model.kube.ledger import Halt, JobEntry, LedgerNote
from mwatch_trainer.scrub.scrubber import scrub_text

MAX_REASON = 300
_MAX_LISTED = 100
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True, slots=True)
class CommandResult:
    lines: tuple[str, ...]
    """The first line is the outcome."""
    body: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


def seconds_of(text: str) -> float:
    """`90s`, `30m`, `2h`, `1d`, `1w`; InputError for anything else."""
    amount, unit = text.strip()[:-1], text.strip()[-1:]
    try:
        value = float(amount) * _UNITS[unit]
    except (ValueError, KeyError):
        value = math.nan
    if not 0 < value <= 366 * 86400:
        raise InputError(f"--for {text}: give a time such as 30m, 2h or 1d")
    return value


class JobOverrides:
    def __init__(
        self, access: Access, namespace: str | None, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.access = access
        self.namespace = namespace or access.namespace
        self.wall = wall
        self.who = whoami(access)
        self.events = Events(access, self.who)
        self.ledger = Ledger(access, self.namespace, clock=wall)

    def find(self, name: str) -> KubeJob:
        kind, short = parse_job_name(name)
        job = find_job(self.access, self.namespace, short, kind)
        if job is None:
            raise no_such_job(self.access, self.namespace, short)
        return job

    def pause(self, name: str, seconds: float | None, why: str) -> CommandResult:
        job, now = self.find(name), self.wall()
        until = None if seconds is None else now + seconds
        self._annotate(job, {PAUSE: pause_text(Pause(until, self.who, clean(why)))})
        text = f"{job.name}: mwatch does nothing to it {_until(seconds)}"
        notes = self.note(job, "MwatchPaused", "pause", clean(why))
        return self.result("pause", job.name, text, notes, until=until)

    def pause_all(self, seconds: float | None, why: str) -> CommandResult:
        now = self.wall()
        halt = Halt(now, None if seconds is None else now + seconds, self.who, clean(why))
        self.ledger.change(lambda book: replace(book, halt=halt))
        notes = self._announce_all("MwatchPaused", f"{self.who} paused all jobs: {halt.why}")
        text = f"namespace {self.namespace}: mwatch does nothing to any job {_until(seconds)}"
        return self.result("pause", None, text, notes, until=halt.until)

    def resume(self, name: str, why: str) -> CommandResult:
        """End a pause, and start a job that mwatch has stopped."""
        job, done = self.find(name), []
        if PAUSE in job.annotations:
            self._annotate(job, {PAUSE: None})
            done.append("no longer paused")
        work = workload_for(self.access, job)
        is_inactive = work is not None and not work.is_active
        if is_inactive or (SUSPENDED_BY in job.annotations and job.is_suspended):
            with suppress(KubeError):  # starting a job needs no right to the ledger
                self.change(job, _started)
            start_job(self.access, self.events, job, work, who=self.who, why=clean(why))
            done.append("started again")
        notes = self.note(job, "MwatchResumed", "resume", clean(why)) if done else []
        halt = self._halt()
        if halt is not None:
            notes.append(f"all jobs are paused by {halt.who}: mwatch resume --all")
        text = " and ".join(done) or "was neither paused nor stopped by mwatch"
        return self.result("resume", job.name, f"{job.name}: {text}", notes)

    def resume_all(self, why: str) -> CommandResult:
        if self._halt() is None:
            return self.result("resume", None, f"namespace {self.namespace}: not paused", [])
        self.ledger.change(lambda book: replace(book, halt=None))
        notes = self._announce_all("MwatchResumed", f"{self.who} ended the pause of all: {why}")
        paused = [job.name for job in watched_jobs(self.access, self.namespace).jobs
                  if pause_of(job, self.wall()) is not None]  # fmt: skip
        if paused:
            notes.append(f"still paused by themselves: {', '.join(paused[:8])}")
        return self.result("resume", None, f"namespace {self.namespace}: no longer paused", notes)

    def mode(self, name: str, mode: str, why: str) -> CommandResult:
        job = self.find(name)
        self._annotate(job, {MODE: mode})
        notes = self.note(job, "MwatchMode", f"mode {mode}", clean(why))
        if mode == "act" and wrappers_observe(job):
            notes.append("its pods were created to observe (MWATCH_MODE in their template): mwatch "
                         "will not restart them; recreate the job with "
                         "mwatch inject --mode act")  # fmt: skip
        if not job.is_watched:
            notes.append('mwatch does not watch it: it has no label mwatch.dev/watch: "true"')
        return self.result("mode", job.name, f"{job.name}: {mode}", notes, mode=mode)

    def note(self, job: KubeJob, reason: str, what: str, why: str) -> list[str]:
        """Write to the ledger and as an Event; return what could not be written."""
        left_out = []
        note = LedgerNote(self.wall(), self.who, what, why)
        try:
            self.change(job, lambda entry: replace(entry, notes=(*entry.notes, note)))
        except KubeError as error:
            left_out.append(f"not in the ledger: {error}")
        if not self.events.emit(job, reason, f"{self.who}: {what}: {why}"):
            left_out.append("no Event could be written")
        return left_out

    def change(self, job: KubeJob, change: Callable[[JobEntry], JobEntry]) -> JobEntry:
        return self.ledger.change_entry(ledger_key(job.kind, job.name), job.uid, change)

    def result(
        self, command: str, job: str | None, text: str, notes: list[str], **facts: Any
    ) -> CommandResult:
        body = {
            "version": 1, "command": command, "namespace": self.namespace, "job": job,
            "who": self.who, "text": text, "notes": notes, **facts,
        }  # fmt: skip
        return CommandResult((text, *(f"  {each}" for each in notes)), body)

    def _halt(self) -> Halt | None:
        halt = self.ledger.read().halt
        return halt if halt is not None and halt.holds(self.wall()) else None

    def _announce_all(self, reason: str, text: str) -> list[str]:
        jobs = watched_jobs(self.access, self.namespace).jobs[:_MAX_LISTED]
        written = [self.events.emit(job, reason, text) for job in jobs]
        return [] if all(written) else ["some jobs got no Event"]

    def _annotate(self, job: KubeJob, annotations: dict[str, str | None]) -> None:
        body = {"metadata": {"uid": job.uid, "annotations": annotations}}
        answer = self.access.patch(OF_KIND[job.kind], job.namespace, job.name, body)
        if not answer.is_ok:
            raise InputError(f"{job.name} has changed meanwhile: try again ({answer.text})")


def clean(why: str) -> str:
    return scrub_text(" ".join(why.split()))[:MAX_REASON] or "no reason was given"


def _started(entry: JobEntry) -> JobEntry:
    """A stop that a controller did not record as done before it died must not be repeated."""
    step = entry.step
    if step is None or step.way is not Method.STOP or not entry.is_under_way:
        return entry
    return entry.cleared("a person started it")


def _until(seconds: float | None) -> str:
    if seconds is None:
        return "until 'mwatch resume'"
    return f"for {seconds / 3600:g} h" if seconds >= 3600 else f"for {seconds / 60:g} min"
