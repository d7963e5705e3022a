# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch status` and `mwatch top`: one line per watched job, or per run of this machine.

The preferred source is the controller, through the service proxy. Without one, Kubernetes and a few
sidecars of each job are queried, which is enough for one line. No logs are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from mwatch import json_codec
from mwatch.checks.kube_causes import kube_phase
from mwatch.diagnose.cluster_facts import CONTROLLER, CONTROLLER_PORT, job_pods
from mwatch.diagnose.pod_reports import PodReport, ask_sidecar
from mwatch.diagnose.verdict import besides, locate
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.jobs import complete, watched_jobs
from mwatch.kube.pod_pages import service_page
from mwatch.kube.resources import EVENTS
from mwatch.model.cause import Cause
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.kube.facts import KubeFacts, event_of
from mwatch.model.kube.fields import mapping, moment
from mwatch.model.kube.job import KubeJob
from mwatch.report.run_report import RunReport
from mwatch.runtime.fanout import TimedOut, gather

_PODS_ASKED = 8
"""Maximum number of pods to query per job: half of them the first, half the last."""
_SECONDS = 4.0
_CALL_SECONDS = 2.0
_GOOD = frozenset({"healthy", "finished"})
_UNKNOWN = frozenset({"unknown", "blind"})
RUN_KIND = "run"
"""Used in place of a Kubernetes kind for a run of this machine."""


class FleetLine(NamedTuple):
    kind: str
    namespace: str
    name: str
    mode: str
    phase: str
    pods_running: int | None = None
    pods_wanted: int | None = None
    answering: int = 0
    """How many sidecars answered."""
    iteration: int | None = None
    total_iterations: int | None = None
    attempt: int | None = None
    cause: str = Cause.UNKNOWN.value
    summary: str = ""
    since: float | None = None
    source: str = "kubernetes"
    """`controller`, `sidecars` or `kubernetes`; `story` for a run of this machine."""
    culprit: Culprit | None = None

    @classmethod
    def of(cls, job: KubeJob, **known: Any) -> FleetLine:
        known = {"phase": job.finished, "pods_wanted": job.pods_wanted, **known}
        return cls(job.kind.value, job.namespace, job.name, job.mode, **known)

    def to_json(self) -> dict[str, Any]:
        return self._asdict() | {"culprit": json_codec.to_builtins(self.culprit)}


def of_controller(job: KubeJob, body: Mapping[str, Any]) -> FleetLine:
    verdict, pods = mapping(body, "verdict"), mapping(body, "pods")
    cause = str(verdict.get("cause") or Cause.UNKNOWN.value)
    if job.finished == "Succeeded" and cause in _UNKNOWN:
        cause = Cause.FINISHED.value  # it ended before the controller started
    return FleetLine.of(
        job,
        phase=job.finished or str(body.get("phase") or ""),
        pods_running=_whole(pods.get("running")),
        pods_wanted=_whole(pods.get("wanted")) or job.pods_wanted,
        answering=_whole(pods.get("answering")) or 0,
        iteration=_whole(body.get("iteration")),
        total_iterations=_whole(body.get("total_iterations")),
        attempt=_whole(body.get("attempt")),
        cause=cause,
        summary=str(verdict.get("summary") or ""),
        since=moment(verdict, "since", "time"),
        source="controller",
        culprit=_culprit(verdict.get("culprit")),
    )


def of_run(name: str, report: RunReport) -> FleetLine:
    """Make the line of a run of this machine from the story in its folder."""
    verdict = report.verdict
    phase = report.phases[-1].phase if report.phases and not report.is_over else ""
    return FleetLine(
        RUN_KIND, "", name, report.mode,
        phase="ended" if report.is_over else phase,
        iteration=report.iteration,
        total_iterations=report.total_iterations,
        attempt=report.attempts[-1].number if report.attempts else None,
        cause=verdict.cause.value,
        summary=verdict.summary,
        since=None if report.clock.is_relative else verdict.since_time,
        source="story",
        culprit=verdict.culprit,
    )  # fmt: skip


def of_sidecars(job: KubeJob, facts: KubeFacts, reports: Sequence[PodReport]) -> FleetLine:
    views = [each.snapshot.view for each in reports if each.snapshot is not None]
    phase = kube_phase(facts)
    newest = max(views, key=lambda each: each.iteration or -1, default=None)
    cause, summary, since, culprit = _judged(job, facts, reports)
    own = "" if newest is None else newest.phase or ""
    return FleetLine.of(
        job,
        phase=phase.value if phase is not None else job.finished or own,
        pods_running=sum(pod.phase == "Running" for pod in facts.pods),
        answering=len(views),
        iteration=None if newest is None else newest.iteration,
        total_iterations=next(filter(None, (each.total_iterations for each in views)), None),
        attempt=max((each.attempt for each in views if each.attempt is not None), default=None),
        cause=cause.value,
        summary=summary,
        since=since,
        source="sidecars" if views else "kubernetes",
        culprit=culprit,
    )


def _judged(
    job: KubeJob, facts: KubeFacts, reports: Sequence[PodReport]
) -> tuple[Cause, str, float | None, Culprit | None]:
    outside = besides(facts)
    if job.finished == "Succeeded":
        return Cause.FINISHED, "Succeeded", None, None
    if outside:
        first = outside[0]
        return first.cause, first.summary, first.since_time, first.culprit
    worst = _worst(reports)
    if worst is not None:
        finding, shift = worst
        since = None if finding.since_time is None else finding.since_time + shift
        return finding.cause, finding.summary, since, locate(finding.culprit, reports)
    alone = [each for each in reports if each.snapshot and each.snapshot.view.unwatched]
    if alone and not job.finished:
        why = alone[0].snapshot and alone[0].snapshot.view.unwatched
        count = f"{len(alone)} of {len(reports)} pods train without mwatch"
        return Cause.BLIND, f"not watched: {count}: {why}", None, None
    if job.finished:
        return Cause.CRASH, f"{job.kind.value} is Failed", None, None
    if kube_phase(facts) is not None:
        return Cause.HEALTHY, "waiting for its pods", None, None
    if any(each.snapshot for each in reports):
        return Cause.HEALTHY, "", None, None
    why = next((each.sidecar for each in reports if each.sidecar), "it has no sidecar")
    return Cause.UNKNOWN, f"no data ({why}); type: mwatch diagnose {job.name}", None, None


def _worst(reports: Sequence[PodReport]) -> tuple[Finding, float] | None:
    order = list(Severity)
    found = [
        (each, report.snapshot.shift(report.received_at))
        for report in reports
        if report.snapshot is not None
        for each in report.snapshot.findings
        if each.severity is not Severity.INFO
        and each.detector != "blind"  # a pod in the middle of the pipeline prints no iterations
    ]
    return max(
        found,
        key=lambda each: (order.index(each[0].severity), each[0].cannot_heal, each[0].confidence),
        default=None,
    )


def _culprit(body: Any) -> Culprit | None:
    """Decode a culprit; None if there is none or another release sent an unknown format."""
    try:
        return json_codec.decode(json_codec.encode(body), Culprit) if body else None
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Fleet(NamedTuple):
    at: float
    lines: tuple[FleetLine, ...]
    problems: tuple[str, ...]
    """One line for each read that failed."""
    took_seconds: float

    @classmethod
    def of(cls, parts: Sequence[Fleet]) -> Fleet:
        """Merge several fleets into one."""
        return cls(
            max(each.at for each in parts),
            tuple(line for each in parts for line in each.lines),
            tuple(problem for each in parts for problem in each.problems),
            sum(each.took_seconds for each in parts),
        )

    @property
    def exit_code(self) -> int:
        causes = {each.cause for each in self.lines}
        if causes - _GOOD - _UNKNOWN:
            return 1
        return 3 if causes & _UNKNOWN else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "at": self.at,
            "jobs": [each.to_json() for each in self.lines],
            "problems": list(self.problems),
        }


def look(access: Access, namespace: str | None, now: float) -> Fleet:
    """Read the jobs of one namespace, or of all; raise KubeError if jobs cannot be listed."""
    began = time.monotonic()
    found = watched_jobs(access, namespace)
    spaces = sorted({job.namespace for job in found.jobs})
    answers = gather(
        {space: partial(_controller, access, space) for space in spaces}, seconds=_CALL_SECONDS
    )
    known = {space: _by_job(answer) for space, answer in answers.items()}
    lines: list[FleetLine] = []
    asks: dict[str, Callable[[], FleetLine]] = {}
    for job in found.jobs:
        body = known[job.namespace].get((job.kind.value, job.name))
        if body is not None:
            lines.append(of_controller(job, body))
        else:
            asks[job.key] = partial(_ask, access, job, now)
    jobs = {job.key: job for job in found.jobs}
    for key, answer in gather(asks, seconds=_SECONDS).items():
        missed = isinstance(answer, TimedOut)
        lines.append(FleetLine.of(jobs[key], summary=answer.why) if missed else answer)
    order = sorted(lines, key=lambda each: (each.namespace, each.name))
    return Fleet(now, tuple(order), tuple(found.problems), time.monotonic() - began)


def _controller(access: Access, namespace: str) -> Mapping[str, Any]:
    return service_page(
        access, namespace, CONTROLLER, CONTROLLER_PORT, "/v1/jobs", seconds=_CALL_SECONDS
    )


def _by_job(answer: Any) -> dict[tuple[str, str], Mapping[str, Any]]:
    if isinstance(answer, TimedOut):
        return {}
    listed = answer.get("jobs")
    bodies: Iterable[Any] = listed if isinstance(listed, list) else ()
    return {
        (str(each.get("kind")), str(each.get("name"))): each
        for each in bodies
        if isinstance(each, Mapping)
    }


def _ask(access: Access, job: KubeJob, now: float) -> FleetLine:
    job = complete(access, job)
    pods = job_pods(access, job)
    facts = KubeFacts(now, job, job.name, tuple(pod for _, pod in pods), _events(access, job))
    asked = [each for each in pods if each[1].phase == "Running"]
    if len(asked) > _PODS_ASKED:  # the first pod has rank 0, the last often has the last rank
        asked = [*asked[: _PODS_ASKED // 2], *asked[-_PODS_ASKED // 2 :]]
    return of_sidecars(job, facts, [ask_sidecar(access, pod, body) for body, pod in asked])


def _events(access: Access, job: KubeJob) -> tuple[Any, ...]:
    """Return the events of the job itself; those of pods are reflected in the pods' states."""
    try:
        listing = access.list(EVENTS, job.namespace, fields=f"involvedObject.name={job.name}")
    except KubeError:
        return ()
    return tuple(map(event_of, listing.objects))
