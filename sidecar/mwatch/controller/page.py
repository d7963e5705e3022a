# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`GET /` of the controller, the fleet, and `GET /jobs/NAMESPACE/JOB`, one job over all its pods.

Both are live pages like that of a run (`watch.page`), by the same renderer, and share one limit of
open pages and one of CPU time. The loop makes the state of a page only while somebody has it open.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, quote

from mwatch.decide import history
from mwatch.engine.incidents import open_incidents
from mwatch.export.http.server import Page, Pages, Request
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.snapshot.snapshot import Inputs, Snapshot, take
from mwatch.remediate.status import RemediationStatus
from mwatch.report.model import ReportClock
from mwatch.report.run_report import RunReport
from mwatch.state.goodput.ledger import time_spent
from mwatch.stats import MonotonicCounters, median
from mwatch.watch.page import OpenPages, PartsPage, ReportPage

if TYPE_CHECKING:
    from mwatch.report.html.fleet import FleetRow, FleetTable, JobView

_PAGE_SHARE = 0.01
"""Of a core, for the charts of all open pages, and as much for the rest of them."""
_RECENT = 32
"""Steps from which the time of one is taken."""
_FINE = frozenset({"healthy", "finished"})
_OF = "this controller"


def snapshot_of(watch: JobMonitor, highest: MonotonicCounters, now: float) -> Snapshot | None:
    """Of the job as a whole: its sidecars export ranks and GPUs."""
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
    return replace(take(job, around, at=now), phase=watch.phase, ranks=())


class JobNow(NamedTuple):
    """A job at one turn of the loop."""

    watch: JobMonitor
    status: RemediationStatus
    snapshot: Snapshot | None
    entry: JobEntry


class JobState(NamedTuple):
    report: RunReport
    snapshot: Snapshot | None
    view: JobView
    places: Mapping[int, str]


class FleetPage(PartsPage["FleetTable"]):
    scripts = ("page.js", "live.js", "fleet.js")

    def __init__(self, open: OpenPages) -> None:
        super().__init__(of=_OF, open=open, cpu_share=_PAGE_SHARE)

    def render(self, state: FleetTable) -> Mapping[str, str]:
        from mwatch.report.html import fleet, live  # large, and rarely needed

        commands = live.commands(_fleet_commands(state.namespace))
        return fleet.fleet_parts(state._replace(commands=commands))


class JobPage(ReportPage[JobState]):
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
        from mwatch.report.html.live import LiveParts, LiveView  # large, and rarely needed

        if self._renderer is None:
            self._renderer = LiveParts(_PAGE_SHARE / max(1, self.open.different))
        view = LiveView(
            state.snapshot, self._commands, title=self._title, job=state.view, places=state.places
        )
        return self._renderer.render(state.report, view)


class FleetPages:
    """All pages for people. `update` is called by the loop, the rest by the server."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.open = OpenPages()
        self._fleet = FleetPage(self.open)
        self._jobs: dict[str, JobPage] = {}
        """By UID."""
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
        self._fleet.show_if_wanted(lambda: self._view(jobs, now, is_leader, problem))
        for each in jobs:
            page = pages[each.watch.kube.uid]
            if page.is_wanted:
                page.show_if_wanted(partial(job_state, each, self._clock, now))

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
        from mwatch.report.html.fleet import FleetTable

        names = Counter(each.watch.kube.name for each in jobs)
        rows = [row_of(each, now, is_alone=names[each.watch.kube.name] == 1) for each in jobs]
        return FleetTable(self._namespace, now, rows, self._clock, is_leader, problem)


def row_of(job: JobNow, now: float, *, is_alone: bool = True) -> FleetRow:
    """`is_alone`: no other job has this name."""
    from mwatch.report.html.fleet import FleetRow, job_link

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
        link=job_link(kube.namespace, kube.name, "" if is_alone else kind),
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
    from mwatch.report.html.fleet import JobAct, JobView, PodRow

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
    return JobState(report, _with_ranks(job, now), view, _places(watch))


def _with_ranks(job: JobNow, now: float) -> Snapshot | None:
    """The job's snapshot with the ranks and GPUs of all its pods."""
    if job.snapshot is None:
        return None
    views = (each.snapshot for each in job.watch.pods.values())
    gpus = tuple(gpu for each in views if each is not None for gpu in each.gpus)
    ranks = take(job.watch.engine.job, Inputs(), at=now).ranks
    return replace(job.snapshot, ranks=ranks, gpus=gpus)


def _places(watch: JobMonitor) -> dict[int, str]:
    nodes = {each.pod.name: each.pod.node for each in watch.pods.values()}
    found = {}
    for rank, state in watch.engine.job.attempt.ranks.items():
        node = nodes.get(state.stream)
        found[rank] = f"pod {state.stream}" + (f", node {node}" if node else "")
    return found


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
