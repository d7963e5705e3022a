# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The sources of jobs for `mwatch top`: a cluster, and the runs on this machine.

A source lists its jobs and loads the details of one of them. All calls have time limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from mwatch.cli.render.jobs import NO_JOB
from mwatch.cli.render.report import render_diagnosis, render_job
from mwatch.cli.shared.terminal import Line
from mwatch.diagnose.fleet_status import RUN_KIND, Fleet, FleetLine, look, of_run
from mwatch.diagnose.job import JobRequest, diagnose_with
from mwatch.diagnose.report import JobReport
from mwatch.errors import InputError, MwatchError
from mwatch.kube.access import Access
from mwatch.kube.pod_pages import last_lines
from mwatch.model.reading import Ok
from mwatch.report.log_ends import MAX_LINES, ends, of_log
from mwatch.report.model import LogEnd
from mwatch.report.run_report import RunReport
from mwatch.run.ui import MAX_RUNS, StoredRun, StoredRuns
from mwatch.sources.probe import ProbeSource
from mwatch_trainer import contract

_READ_SECONDS = 3.0
_LOG_SECONDS = 2.0


class RankRow(NamedTuple):
    rank: int
    phase: str
    iteration: int | None
    silence: float | None
    """Seconds since the last write of its probe; None: the run has ended."""
    pod: str = ""


class JobDetail(NamedTuple):
    """The details of one job."""

    title: str
    at: float
    report: RunReport
    verdict: Callable[[], list[Line]]
    """Renders the verdict for the width of the screen."""
    ranks: tuple[RankRow, ...] = ()
    log: tuple[LogEnd, ...] = ()


class JobSource(Protocol):
    title: str
    empty: str
    """Advice to show if there is no job."""

    def read(self) -> Fleet:
        """The list of jobs. Raises MwatchError if it cannot be read."""

    def open(self, line: FleetLine) -> JobDetail:
        """The details of a job. Raises MwatchError if it cannot be read."""

    def close(self) -> None: ...


class ClusterJobs:
    def __init__(self, access: Access, namespace: str | None) -> None:
        """`namespace`: None for all namespaces."""
        self._access = access
        self._namespace = namespace
        self.empty = NO_JOB
        self.title = "all namespaces" if namespace is None else f"namespace {namespace}"

    def read(self) -> Fleet:
        return look(self._access, self._namespace, time.time())

    def open(self, line: FleetLine) -> JobDetail:
        now = time.time()
        request = JobRequest(f"{line.kind.lower()}/{line.name}", line.namespace)
        job = diagnose_with(self._access, request, now)
        states = job.history.engine.job.attempt.ranks
        return JobDetail(
            f"{line.kind} {line.namespace}/{line.name}",
            now,
            job.report,
            lambda: render_job(job),
            tuple(
                RankRow(each.rank, each.phase, each.iteration, max(0.0, now - each.at), each.stream)
                for _, each in sorted(states.items())
            ),
            self._log(job),
        )

    def _log(self, job: JobReport) -> tuple[LogEnd, ...]:
        """The last lines of log from the culprit's pod and from a pod that prints iterations."""
        streams = job.history.engine.job.streams.values()
        printing = [each.name for each in streams if each.prints_iterations]
        blamed = job.report.verdict.culprit
        first = [each.pod.name for each in job.pods if each.pod.phase != "Pending"]
        chosen = [blamed.pod if blamed else None, *printing[:1], *first[:1]]
        containers = {each.pod.name: each.container for each in job.pods}
        names = dict.fromkeys(each for each in chosen if each in containers)
        found: list[LogEnd] = []
        for name in list(names)[:2]:
            assert name is not None
            try:
                data = last_lines(
                    self._access, job.facts.job.namespace, name, containers[name],
                    lines=MAX_LINES, seconds=_LOG_SECONDS,
                )  # fmt: skip
                found += ends({name: data}, len(data) + 1)
            except MwatchError as error:
                found.append(LogEnd(name, (f"not read: {error}",)))
        return tuple(found)

    def close(self) -> None:
        self._access.close()


class LocalRuns:
    def __init__(self, parent: Path) -> None:
        self._runs = StoredRuns(parent)
        self._found: dict[str, StoredRun] = {}
        self.empty = f"no run in {parent} yet; mwatch run -- CMD starts one"
        self.title = f"runs in {parent}"

    def read(self) -> Fleet:
        began, now = time.monotonic(), time.time()
        runs = self._runs.find()
        self._found = {each.folder.name: each for each in runs[:MAX_RUNS]}
        lines = tuple(
            self._line(each) if time.monotonic() - began < _READ_SECONDS else _unread(each, "slow")
            for each in self._found.values()
        )
        left = len(runs) - len(lines)
        problems = (f"{left} older runs",) if left > 0 else ()
        return Fleet(now, lines, problems, time.monotonic() - began)

    def _line(self, run: StoredRun) -> FleetLine:
        try:
            return of_run(run.folder.name, run.read())
        except MwatchError as error:
            return _unread(run, str(error))

    def open(self, line: FleetLine) -> JobDetail:
        run = self._found.get(line.name)
        if run is None:
            raise InputError(f"the run {line.name} has been removed")
        report, volume = run.read(), run.folder.volume
        match ProbeSource(str(volume), "").read_ranks(time.monotonic()):
            case Ok(found):
                readings = found
            case _:
                readings = ()
        ranks = tuple(
            RankRow(
                each.beat.rank, each.beat.phase, each.beat.iteration,
                None if report.is_over else each.age_seconds,
            )
            for each in readings
        )  # fmt: skip
        log = of_log(volume / contract.LOG)
        return JobDetail(
            f"run {line.name}", time.time(), report, lambda: render_diagnosis(report), ranks, log
        )

    def close(self) -> None: ...


def _unread(run: StoredRun, why: str) -> FleetLine:
    text = "not read yet: the other runs took long" if why == "slow" else why
    return FleetLine(RUN_KIND, "", run.folder.name, "-", "-", summary=text, source="story")
