# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the controller finds besides the job's own engine: Kubernetes causes, pods that do not
answer, a policy that cannot be used; and where a culprit is.

A pod that was preempted or drained is soon gone, and with it the word of why: that cause is held
until the gang has been whole again for a while. Where it took pods of a gang whose others are
left, the gang has to be restarted, once its new pods are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mwatch.app.engine import Assessment
from mwatch.app.job_watch_sights import Seen, named
from mwatch.app.pod_sight import PodSight
from mwatch.checks.kube_causes import kube_causes
from mwatch.model.finding import Cause, Culprit, Finding, Severity
from mwatch.model.kube_facts import KubeFacts

_ORDER = (
    Cause.SUSPENDED, Cause.PREEMPTED, Cause.DRAINED, Cause.VOLUME, Cause.IMAGE,
    Cause.UNSCHEDULABLE, Cause.DELETED_BY_USER,
)  # fmt: skip
"""That somebody deleted pods is past; what keeps new ones away is not."""
_PASSING = frozenset({Cause.PREEMPTED, Cause.DRAINED})
TAKEN = _PASSING | {Cause.DELETED_BY_USER}
"""They take pods from a gang that runs."""
_SETTLE_SECONDS = 60.0
_LONGEST_SECONDS = 1800.0


class HeldCauses:
    def __init__(self) -> None:
        self._held: dict[Cause, tuple[Finding, float]] = {}
        self._attempt = 0
        self._whole_since: float | None = None

    def look(self, facts: KubeFacts, now: float, attempt: int) -> list[Finding]:
        """The most telling first: a suspended job's pods also wait, or are being deleted."""
        found = kube_causes(facts)
        if attempt != self._attempt:  # it has begun anew: what was done to the last one is past
            self._attempt, self._held = attempt, {}
        for finding in found:
            if finding.cause in _PASSING:
                self._held[finding.cause] = finding, now
        is_quiet = is_whole(facts) and not any(each.cause in _PASSING for each in found)
        if not is_quiet:
            self._whole_since = None
        elif self._whole_since is None:
            self._whole_since = now
        settled = self._whole_since is not None and now - self._whole_since >= _SETTLE_SECONDS
        self._held = {
            cause: (finding, at)
            for cause, (finding, at) in self._held.items()
            if not settled and now - at < _LONGEST_SECONDS
        }
        known = {each.cause: each for each in (*(held for held, _ in self._held.values()), *found)}
        if facts.job is None or facts.job.is_deleting:
            return [each for each in found if each.cause is Cause.DELETED_BY_USER]
        return sorted(known.values(), key=lambda each: _ORDER.index(each.cause))


def broken(finding: Finding, gone_at: float) -> Finding:
    """What is left of the gang cannot go on: nobody else will restart it."""
    return replace(
        finding,
        severity=Severity.CRITICAL,
        summary=f"{finding.summary}; what is left of the gang cannot go on without it"[:500],
        since_time=gone_at,
        cannot_heal=True,
    )


def is_whole(facts: KubeFacts) -> bool:
    job = facts.job
    if job is None or len(facts.pods) < job.pods_wanted:
        return False
    return all(pod.phase == "Running" and not pod.is_deleting for pod in facts.pods)


def unseen(seen: Seen) -> Finding:
    """Some answer, so the job is not blind: what the others do is not known."""
    count, silent = len(seen.answering) + len(seen.silent), seen.silent
    why = silent[0].problem or "no answer yet"
    return Finding(
        detector="unseen",
        cause=Cause.UNKNOWN,
        severity=Severity.INFO,
        summary=f"{len(silent)} of {count} sidecars do not answer: {named(silent)} ({why})"[:500],
        since_time=min((each.answered_at or each.asked_since or 0.0) for each in silent) or None,
        culprit=Culprit(pod=silent[0].pod.name, node=silent[0].pod.node or None),
        fingerprint="unknown/unseen-pods",
    )


def policy_refused(problem: str) -> Finding:
    return Finding(
        detector="policy",
        cause=Cause.UNKNOWN,
        severity=Severity.INFO,
        summary=f"the job's policy is not used, the usual one is: {problem}"[:500],
        fingerprint="unknown/policy",
    )


def placed(assessment: Assessment, pods: Mapping[str, PodSight]) -> Assessment:
    """Culprits with the node, and the GPU, that their pod and rank are on."""
    by_name = {each.pod.name: each for each in pods.values()}
    found = tuple(_placed(each, by_name) for each in assessment.findings)
    decision = assessment.decision
    if decision.finding is not None:
        decision = replace(decision, finding=_placed(decision.finding, by_name))
    return assessment._replace(findings=found, decision=decision)


def _placed(finding: Finding, by_name: Mapping[str, PodSight]) -> Finding:
    culprit = finding.culprit
    sight = None if culprit is None or culprit.pod is None else by_name.get(culprit.pod)
    if culprit is None or sight is None:
        return finding
    node = culprit.node or sight.pod.node or None
    gpu = culprit.gpu_uuid or _gpu(sight, culprit.rank)
    if (node, gpu) == (culprit.node, culprit.gpu_uuid):
        return finding
    return replace(finding, culprit=replace(culprit, node=node, gpu_uuid=gpu))


def _gpu(sight: PodSight, rank: int | None) -> str | None:
    gpus = () if sight.snapshot is None or rank is None else sight.snapshot.gpus
    return next((each.uuid for each in gpus if each.rank == rank), None)
