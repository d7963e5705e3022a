# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A person takes over: pause, resume, mode. Each works with and without a controller.

What holds is written where the controller looks before it acts: an annotation on the job, or the
ledger for all of them. Who and why stands in the ledger and in an Event; where the person may
write only one of these, the others are told as left out.
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
from mwatch.kube.ledger import Ledger, same_job
from mwatch.kube.resources import OF_KIND
from mwatch.model.kube.gang import Method
from mwatch.model.kube.job import MODE, PAUSE, KubeJob
from mwatch.model.kube.ledger import Halt, JobEntry, LedgerData, LedgerNote
from mwatch.model.kube.pause import Pause, pause_of, pause_text
from mwatch.model.kube.wrapper import wrappers_observe
from mwatch_trainer.scrub.scrubber import scrub_text

MAX_REASON = 300
_MAX_LISTED = 100
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What came of it; the first line is the outcome."""

    lines: tuple[str, ...]
    body: Mapping[str, Any] = field(default_factory=dict)
    exit_code: int = 0


def seconds_of(words: str) -> float:
    """`90s`, `30m`, `2h`, `1d`, `1w`; InputError for anything else."""
    amount, unit = words.strip()[:-1], words.strip()[-1:]
    try:
        value = float(amount) * _UNITS[unit]
    except (ValueError, KeyError):
        value = math.nan
    if not 0 < value <= 366 * 86400:
        raise InputError(f"--for {words}: give a time such as 30m, 2h or 1d")
    return value


class JobOverrides:
    """What one person does with one namespace."""

    def __init__(
        self, access: Access, namespace: str | None, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.access = access
        self.namespace = namespace or access.namespace
        self.wall = wall
        self.who = whoami(access)
        self.events = Events(access, self.who)
        self.ledger = Ledger(access, self.namespace)

    def find(self, name: str) -> KubeJob:
        """InputError where there is none."""
        kind, short = parse_job_name(name)
        job = find_job(self.access, self.namespace, short, kind)
        if job is None:
            raise no_such_job(self.access, self.namespace, short)
        return job

    def pause(self, name: str, seconds: float | None, why: str) -> CommandResult:
        job, now = self.find(name), self.wall()
        until = None if seconds is None else now + seconds
        self._annotate(job, {PAUSE: pause_text(Pause(until, self.who, clean(why)))})
        words = f"{job.name}: mwatch does nothing to it {_until(seconds)}"
        left_out = self.note(job, "MwatchPaused", "pause", clean(why))
        return self.result("pause", job.name, words, left_out, until=until)

    def pause_all(self, seconds: float | None, why: str) -> CommandResult:
        now = self.wall()
        halt = Halt(now, None if seconds is None else now + seconds, self.who, clean(why))
        self.ledger.change(lambda book: replace(book, halt=halt))
        left_out = self._announce_all("MwatchPaused", f"{self.who} paused all jobs: {halt.why}")
        words = f"namespace {self.namespace}: mwatch does nothing to any job {_until(seconds)}"
        return self.result("pause", None, words, left_out, until=halt.until)

    def resume(self, name: str, why: str) -> CommandResult:
        """Ends a pause, and starts a job that mwatch has stopped."""
        job, done = self.find(name), []
        if PAUSE in job.annotations:
            self._annotate(job, {PAUSE: None})
            done.append("no longer paused")
        work = workload_for(self.access, job)
        is_ours = SUSPENDED_BY in job.annotations or (work is not None and not work.is_active)
        if is_ours and self._is_stopped(job, work):
            with suppress(KubeError):  # who may not write the ledger may start a job all the same
                self.change(job, _started)
            start_job(self.access, self.events, job, work, who=self.who, why=clean(why))
            done.append("started again")
        left_out = self.note(job, "MwatchResumed", "resume", clean(why)) if done else []
        halt = self._halt()
        if halt is not None:
            left_out.append(f"all jobs are paused by {halt.who}: mwatch resume --all")
        words = " and ".join(done) or "was neither paused nor stopped by mwatch"
        return self.result("resume", job.name, f"{job.name}: {words}", left_out)

    def resume_all(self, why: str) -> CommandResult:
        if self._halt() is None:
            return self.result("resume", None, f"namespace {self.namespace}: not paused", [])
        self.ledger.change(lambda book: replace(book, halt=None))
        left_out = self._announce_all("MwatchResumed", f"{self.who} ended the pause of all: {why}")
        paused = [job.name for job in watched_jobs(self.access, self.namespace).jobs
                  if pause_of(job, self.wall()) is not None]  # fmt: skip
        if paused:
            left_out.append(f"still paused by themselves: {', '.join(paused[:8])}")
        return self.result(
            "resume", None, f"namespace {self.namespace}: no longer paused", left_out
        )

    def mode(self, name: str, mode: str, why: str) -> CommandResult:
        job = self.find(name)
        self._annotate(job, {MODE: mode})
        left_out = self.note(job, "MwatchMode", f"mode {mode}", clean(why))
        if mode == "act" and wrappers_observe(job):
            left_out.append("its pods were made to observe (MWATCH_MODE in their template): mwatch "
                            "will not restart them by itself; make it anew with "
                            "mwatch inject --mode act")  # fmt: skip
        if not job.is_watched:
            left_out.append('mwatch does not watch it: it has no label mwatch.dev/watch: "true"')
        return self.result("mode", job.name, f"{job.name}: {mode}", left_out, mode=mode)

    def note(self, job: KubeJob, reason: str, what: str, why: str) -> list[str]:
        """In the ledger and as an Event; what could not be written."""
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
        key, now = ledger_key(job.kind, job.name), self.wall()

        def changed(book: LedgerData) -> LedgerData:
            after = change(same_job(book.of(key), job.uid))
            return book.with_job(key, replace(after, uid=job.uid, updated_at=now))

        return self.ledger.change(changed).of(key)

    def result(
        self, command: str, job: str | None, words: str, more: list[str], **facts: Any
    ) -> CommandResult:
        body = {
            "version": 1, "command": command, "namespace": self.namespace, "job": job,
            "who": self.who, "text": words, "notes": more, **facts,
        }  # fmt: skip
        return CommandResult((words, *(f"  {each}" for each in more)), body)

    def _halt(self) -> Halt | None:
        halt = self.ledger.read().halt
        return halt if halt is not None and halt.holds(self.wall()) else None

    def _announce_all(self, reason: str, words: str) -> list[str]:
        jobs = watched_jobs(self.access, self.namespace).jobs[:_MAX_LISTED]
        reported = [self.events.emit(job, reason, words) for job in jobs]
        return [] if all(reported) else ["not on every job could an Event be written"]

    def _annotate(self, job: KubeJob, words: dict[str, str | None]) -> None:
        body = {"metadata": {"uid": job.uid, "annotations": words}}
        answer = self.access.patch(OF_KIND[job.kind], job.namespace, job.name, body)
        if not answer.is_ok:
            raise InputError(f"{job.name} has changed meanwhile: try again ({answer.text})")

    def _is_stopped(self, job: KubeJob, work: Any) -> bool:
        return job.is_suspended or (work is not None and not work.is_active)


def clean(why: str) -> str:
    return scrub_text(" ".join(why.split()))[:MAX_REASON] or "no reason was given"


def _started(entry: JobEntry) -> JobEntry:
    """A stop that a controller did not live to note as done must not be done again."""
    step = entry.step
    if step is None or step.way is not Method.STOP or not entry.is_under_way:
        return entry
    return entry.cleared("a person started it")


def _until(seconds: float | None) -> str:
    if seconds is None:
        return "until 'mwatch resume'"
    return f"for {seconds / 3600:g} h" if seconds >= 3600 else f"for {seconds / 60:g} min"
