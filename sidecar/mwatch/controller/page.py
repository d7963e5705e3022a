# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's HTML pages: `GET /` for the fleet, `GET /jobs/NAMESPACE/JOB` for one job.

The page of a job covers all its pods. Both are live pages like that of a run (`watch.page`), use
the same renderer, and share one limit of open pages and one of CPU time. The loop makes the state
of a page only while it is open in a browser, as often as its cost allows, and immediately when a
verdict or its remediation changes.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, quote

from mwatch.decide import history
from mwatch.engine.incidents import open_incidents
from mwatch.export.http.server import Page, Pages, Request
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.snapshot.pod import Gpu
from mwatch.model.snapshot.snapshot import MAX_RANKS, Inputs, Snapshot, take, take_ranks
from mwatch.remediate.status import RemediationStatus
from mwatch.report.html import fleet, live
from mwatch.report.html.fleet import FleetRow, FleetTable, JobAct, JobView, PodRow
from mwatch.report.model import ReportClock
from mwatch.report.run_report import RunReport
from mwatch.state.goodput.ledger import time_spent
from mwatch.stats import MonotonicCounters, median
from mwatch.watch.page import OpenPages, PartsPage, ReportPage

_PAGE_SHARE = 0.002
"""Share of a CPU core for the charts of all open pages, and the same again for the rest of these
pages: including the requests, less than a tenth of what the loop needs for 2,048 pods."""
_WAIT_SECONDS = 3.0
_RECENT = 32
"""Number of recent steps whose median is used as the step time."""
_FINE = frozenset({"healthy", "finished"})
_OF = "this controller"


def snapshot_of(watch: JobMonitor, highest: MonotonicCounters, now: float) -> Snapshot | None:
    """A snapshot of the job as a whole, without ranks and GPUs, which its sidecars export."""
    assessment, engine = watch.assessment, watch.engine
    if assessment is None:
        return None
    job, act = engine.job, engine.settings.act
    left = act.restarts_per_window - history.spent(engine.record, now, act)
    spent = time_spent(job, now)
    around = Inputs(
        goodput=spent.goodput,
        spent_seconds=spent.raised(highest, watch.kube.uid),
        findings=assessment.findings,
        decision=assessment.decision,
        hang_deadline_seconds=watch.hang_deadline_seconds,
        incidents=engine.incidents_over,
        restarts_left=max(0, left),
        is_acting=watch.is_acting,
        open_incidents=open_incidents(engine.incidents, assessment.findings),
    )
    return replace(take(job, around, at=now, has_ranks=False), phase=watch.phase)


class JobNow(NamedTuple):
    """A job at one turn of the loop."""

    watch: JobMonitor
    status: RemediationStatus
    snapshot: Snapshot | None
    entry: JobEntry

    @property
    def mark(self) -> object:
        """A value whose change a page must show immediately."""
        watch, doing = self.watch, (self.status.doing, self.status.is_paused)
        if watch.assessment is None:
            return doing
        decision = watch.assessment.decision
        finding = decision.finding
        culprit = None if finding is None or finding.culprit is None else finding.culprit
        blamed = culprit and (culprit.rank, culprit.pod, culprit.node)
        return doing, watch.attempt, watch.kube.finished, decision.cause, decision.action, blamed


class JobState(NamedTuple):
    report: RunReport
    snapshot: Snapshot | None
    view: JobView
    places: Mapping[int, str]
    rank_count: int


class FleetPage(PartsPage[FleetTable]):
    scripts = fleet.SCRIPTS
    max_wait_seconds = _WAIT_SECONDS

    def __init__(self, open: OpenPages) -> None:
        super().__init__(of=_OF, open=open, cpu_share=_PAGE_SHARE)

    def render(self, state: FleetTable) -> Mapping[str, str]:
        commands = live.commands(_fleet_commands(state.namespace))
        return fleet.fleet_parts(state._replace(commands=commands))


class JobPage(ReportPage[JobState]):
    max_wait_seconds = _WAIT_SECONDS

    def __init__(self, watch: JobMonitor, open: OpenPages) -> None:
        kube = watch.kube
        super().__init__(
            name=kube.uid, of=_OF, open=open, cpu_share=_PAGE_SHARE,
            address=f"{quote(kube.name, safe='')}/page.json?kind={quote(kube.kind.value, safe='')}",
        )  # fmt: skip
        self.kind, self.name = kube.kind.value, kube.name
        self._title = f"{kube.name} · {kube.namespace}"
        self._commands = _job_commands(kube.namespace, kube.name)

    def render(self, state: JobState) -> Mapping[str, str]:
        if self._renderer is None:
            self._renderer = live.LiveParts(_PAGE_SHARE / max(1, self.open.different))
        view = live.LiveView(
            state.snapshot, self._commands, title=self._title, job=state.view, places=state.places,
            rank_count=state.rank_count,
        )  # fmt: skip
        return self._renderer.render(state.report, view)


class FleetPages:
    """All HTML pages. The loop calls `update`, the server everything else."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.open = OpenPages()
        self._fleet = FleetPage(self.open)
        self._jobs: dict[str, JobPage] = {}
        """By UID of the job."""
        here = time.localtime()
        self._clock = ReportClock(zone=here.tm_zone, offset_seconds=float(here.tm_gmtoff))

    def update(
        self, jobs: Sequence[JobNow], now: float, *, is_leader: bool, problem: str = ""
    ) -> None:
        known = self._jobs
        pages = {
            each.watch.kube.uid: known.get(each.watch.kube.uid) or JobPage(each.watch, self.open)
            for each in jobs
        }
        self._jobs = pages
        if self._fleet.is_wanted:
            mark = is_leader, problem, [each.mark for each in jobs]
            self._fleet.show_if_wanted(lambda: self._view(jobs, now, is_leader, problem), mark)
        for each in jobs:
            page = pages[each.watch.kube.uid]
            if page.is_wanted:
                page.show_if_wanted(partial(job_state, each, self._clock, now), each.mark)

    def pages(self) -> Pages:
        place = f"/jobs/{self._namespace}/{{}}"
        return {
            "/": self._fleet.page,
            "/page.json": self._fleet.changes,
            place: self._page,
            f"{place}/page.json": self._changes,
            f"{place}/story.json": self._story,
        }

    def _page(self, request: Request) -> Page:
        found = self._find(request)
        return self._absent(request) if found is None else found.page(request)

    def _changes(self, request: Request) -> Page:
        found = self._find(request)
        return self._absent(request) if found is None else found.changes(request)

    def _story(self, request: Request) -> Page:
        found = self._find(request)
        return self._absent(request) if found is None else found.story(request)

    def _find(self, request: Request) -> JobPage | None:
        kind = parse_qs(request.query).get("kind", [""])[0]
        named = (each for each in self._jobs.values() if each.name == request.parameter)
        return next((each for each in named if kind in ("", each.kind)), None)

    def _absent(self, request: Request) -> Page:
        text = f"no watched job {request.parameter} in {self._namespace}\n"
        return Page(text.encode(), status=HTTPStatus.NOT_FOUND)

    def _view(
        self, jobs: Sequence[JobNow], now: float, is_leader: bool, problem: str
    ) -> FleetTable:
        names = Counter(each.watch.kube.name for each in jobs)
        rows = [row_of(each, now, is_alone=names[each.watch.kube.name] == 1) for each in jobs]
        return FleetTable(self._namespace, now, rows, self._clock, is_leader, problem)


def row_of(job: JobNow, now: float, *, is_alone: bool = True) -> FleetRow:
    """`is_alone`: no other job has this name."""
    watch, status, snapshot = job.watch, job.status, job.snapshot
    kube, run, found, seen = watch.kube, watch.engine.job, watch.verdict, watch.seen(now)
    cause = "unknown" if found is None else found.cause.value
    since = None if found is None else found.since_time
    if since is None and cause in _FINE and run.has_started:
        since = run.attempt.started_at
    saved = None if snapshot is None else snapshot.good_checkpoint
    kind = kube.kind.value
    return FleetRow(
        kube.namespace, kube.name, kind,
        link=fleet.job_link(kube.namespace, kube.name, "" if is_alone else kind),
        cause=cause,
        is_over=bool(kube.finished),
        summary="" if found is None else found.summary,
        since=since,
        culprit=None if found is None else found.culprit,
        attempt=watch.attempt,
        iteration=run.attempt.iteration,
        total_iterations=run.layout.total_iterations,
        seconds_left=_seconds_left(watch) if cause in _FINE else None,
        goodput=None if snapshot is None else snapshot.goodput,
        good_checkpoint=None if saved is None else saved.iteration,
        saved_at=None if saved is None else saved.written_at,
        restarts_left=None if snapshot is None else snapshot.restarts_left,
        mode=kube.mode,
        doing=status.doing,
        why=status.text,
        is_paused=status.is_paused,
        pause=status.pause_text,
        paused_until=status.paused_until,
        pods_wanted=kube.pods_wanted,
        pods_answering=len(seen.answering),
    )  # fmt: skip


def _seconds_left(watch: JobMonitor) -> float | None:
    attempt, total = watch.engine.job.attempt, watch.engine.job.layout.total_iterations
    recent = [each.seconds for each in list(attempt.steps)[-_RECENT:] if each.seconds]
    if watch.kube.finished or not recent or not total or attempt.iteration is None:
        return None
    return max(0, total - attempt.iteration) * median(recent)


def job_state(job: JobNow, clock: ReportClock, now: float) -> JobState:
    watch, status = job.watch, job.status
    report, seen = watch.report(now), watch.seen(now)
    assert report is not None
    view = JobView(
        clock,
        mode=watch.kube.mode,
        doing=status.doing,
        text=status.text,
        pause=f"paused: {status.pause_text}" if status.is_paused else "",
        acts=[JobAct(each.at, each.who, each.what, each.why) for each in job.entry.notes],
        pods_wanted=watch.kube.pods_wanted,
        pods_answering=len(seen.answering),
        silent=[
            PodRow(each.pod.name, each.pod.node, each.problem or "no answer yet")
            for each in seen.silent
        ],
    )
    shown = _shown_ranks(job)
    places, gpus = _places(watch, shown)
    snapshot = job.snapshot
    if snapshot is not None:
        snapshot = replace(snapshot, ranks=take_ranks(watch.engine.job, shown), gpus=gpus)
    return JobState(report, snapshot, view, places, len(watch.engine.job.attempt.ranks))


def _shown_ranks(job: JobNow) -> list[int]:
    """The lowest ranks and those that are blamed, at most MAX_RANKS."""
    ranks = job.watch.engine.job.attempt.ranks
    lowest = [rank for rank in range(MAX_RANKS) if rank in ranks]  # usually numbered from 0
    if len(lowest) < min(MAX_RANKS, len(ranks)):
        lowest = sorted(ranks)[:MAX_RANKS]
    findings = () if job.snapshot is None else job.snapshot.findings
    blamed = {each.culprit.rank for each in findings if each.culprit is not None}
    more = sorted(rank for rank in blamed.difference(lowest) if rank in ranks)
    return sorted(lowest[: MAX_RANKS - len(more)] + more)


def _places(watch: JobMonitor, shown: Sequence[int]) -> tuple[dict[int, str], tuple[Gpu, ...]]:
    """Pod and node of each shown rank, and the GPUs of these pods, except those of other ranks."""
    ranks, kept, there = watch.engine.job.attempt.ranks, set(shown), dict[str, str]()
    streams = {ranks[rank].stream for rank in shown}
    gpus: list[Gpu] = []
    for each in watch.pods.values():
        pod, snapshot = each.pod, each.snapshot
        if pod.name not in streams and len(ranks) > len(shown):
            continue
        there[pod.name] = f"pod {pod.name}" + (f", node {pod.node}" if pod.node else "")
        for gpu in () if snapshot is None else snapshot.gpus:
            if gpu.rank in kept or gpu.rank not in ranks:
                gpus.append(gpu)
    return {
        rank: there.get(stream := ranks[rank].stream, f"pod {stream}") for rank in shown
    }, tuple(gpus)


def _fleet_commands(namespace: str) -> list[tuple[str, str]]:
    at = f"-n {shlex.quote(namespace)}"
    return [
        ("Show this list in a terminal", f"mwatch status {at}"),
        ("Stop all actions in this namespace",
         f"mwatch pause --all {at} --for 2h --reason maintenance"),
    ]  # fmt: skip


def _job_commands(namespace: str, name: str) -> list[tuple[str, str]]:
    job = f"{shlex.quote(name)} -n {shlex.quote(namespace)}"
    return [
        ("Show the verdict and its evidence", f"mwatch diagnose {job}"),
        ("Stop all actions on this job", f"mwatch pause {job} --for 2h --reason maintenance"),
        ("Restart it now", f"mwatch restart {job} --reason 'asked for'"),
    ]
