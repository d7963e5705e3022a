# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One job in one line, by what its controller says, or by its sidecars and Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mwatch.app.diagnose_job_pods import PodWords
from mwatch.app.diagnose_job_verdict import besides
from mwatch.checks.kube_causes import kube_phase
from mwatch.model.finding import Cause, Finding, Severity
from mwatch.model.kube_facts import KubeFacts
from mwatch.model.kube_fields import moment
from mwatch.model.kube_job import KubeJob

_UNSEEN = (Cause.UNKNOWN.value, Cause.BLIND.value)
_HISTORY = frozenset({"blind"})
"""A sidecar of a middle pod sees no iteration line: that is not the job's blindness."""


class FleetLine(NamedTuple):
    kind: str
    namespace: str
    name: str
    mode: str
    phase: str
    pods_running: int | None
    pods_wanted: int | None
    answering: int
    """Sidecars."""
    iteration: int | None
    total_iterations: int | None
    attempt: int | None
    cause: str
    summary: str
    since: float | None
    source: str
    """`controller`, `sidecars` or `kubernetes`."""

    def to_json(self) -> dict[str, Any]:
        return self._asdict()

    @staticmethod
    def unseen(job: KubeJob, why: str) -> FleetLine:
        return _line(job, cause=Cause.UNKNOWN.value, summary=why)


def of_controller(job: KubeJob, body: Mapping[str, Any]) -> FleetLine:
    said = body.get("verdict")
    said = said if isinstance(said, Mapping) else {}
    cause = str(said.get("cause") or Cause.UNKNOWN.value)
    if job.finished == "Succeeded" and cause in _UNSEEN:
        cause = Cause.FINISHED.value  # it was over before the controller came
    pods = body.get("pods")
    pods = pods if isinstance(pods, Mapping) else {}
    return _line(
        job,
        phase=job.finished or str(body.get("phase") or ""),
        pods_running=_whole(pods.get("running")),
        pods_wanted=_whole(pods.get("wanted")) or job.pods_wanted,
        answering=_whole(pods.get("answering")) or 0,
        iteration=_whole(body.get("iteration")),
        total_iterations=_whole(body.get("total_iterations")),
        attempt=_whole(body.get("attempt")),
        cause=cause,
        summary=str(said.get("summary") or ""),
        since=moment(said, "since", "time"),
        source="controller",
    )


def of_sidecars(job: KubeJob, facts: KubeFacts, words: Sequence[PodWords]) -> FleetLine:
    told = [each for each in words if each.snapshot is not None]
    views = [each.snapshot.view for each in told if each.snapshot is not None]
    phase = kube_phase(facts)
    newest = max(views, key=lambda each: each.iteration or -1, default=None)
    cause, summary, since = _judged(job, facts, told, words)
    own = "" if newest is None else newest.phase or ""
    return _line(
        job,
        phase=phase.value if phase is not None else job.finished or own,
        pods_running=sum(pod.phase == "Running" for pod in facts.pods),
        answering=len(told),
        iteration=None if newest is None else newest.iteration,
        total_iterations=next((each.total_iterations for each in views if each.total_iterations),
                              None),
        attempt=max((each.attempt for each in views if each.attempt is not None), default=None),
        cause=cause.value,
        summary=summary,
        since=since,
        source="sidecars" if told else "kubernetes",
    )  # fmt: skip


def _judged(
    job: KubeJob, facts: KubeFacts, told: Sequence[PodWords], words: Sequence[PodWords]
) -> tuple[Cause, str, float | None]:
    outside = besides(facts)
    if job.finished == "Succeeded":
        return Cause.FINISHED, "Succeeded", None
    if outside:
        return outside[0].cause, outside[0].summary, outside[0].since_time
    worst = _worst(told)
    if worst is not None:
        finding, shift = worst
        since = None if finding.since_time is None else finding.since_time + shift
        return finding.cause, finding.summary, since
    if job.finished:
        return Cause.CRASH, f"{job.kind.value} is Failed", None
    if kube_phase(facts) is not None:
        return Cause.HEALTHY, "waits for its pods", None
    if told:
        return Cause.HEALTHY, "", None
    why = next((each.sidecar for each in words if each.sidecar), "it has no sidecar")
    return Cause.UNKNOWN, f"not seen ({why}); type: mwatch diagnose {job.name}", None


def _worst(told: Sequence[PodWords]) -> tuple[Finding, float] | None:
    order = list(Severity)
    found = [
        (each, words.snapshot.shift(words.received_at))
        for words in told
        if words.snapshot is not None
        for each in words.snapshot.findings
        if each.severity is not Severity.INFO and each.detector not in _HISTORY
    ]
    return max(
        found,
        key=lambda each: (order.index(each[0].severity), each[0].cannot_heal, each[0].confidence),
        default=None,
    )


def _line(job: KubeJob, **known: Any) -> FleetLine:
    base: dict[str, Any] = dict.fromkeys(FleetLine._fields)
    base |= {
        "kind": job.kind.value,
        "namespace": job.namespace,
        "name": job.name,
        "mode": job.mode,
        "phase": job.finished,
        "pods_wanted": job.pods_wanted,
        "answering": 0,
        "source": "kubernetes",
    }
    return FleetLine(**{**base, **known})


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
