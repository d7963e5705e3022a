# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reasons to hold back a due action: gates, common causes, and the limit of parallel restarts.

Common cause: jobs that stall together and share a node, a switch, a volume or a zone. A restart
would cost each job its startup time and would not repair the storage or the switch. Blaming the
shared part is a guess, so it requires several jobs that stalled close in time and are a large share
of all jobs on that part: two of fifty jobs on one volume may be coincidence.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from mwatch.config.fleet import FleetSettings
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.resources import CLAIMS
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.incident import bundle_id
from mwatch.model.kube.fields import items, text
from mwatch.model.kube.job import KubeJob, pause_of
from mwatch.model.kube.ledger import MAX_COMMON, CommonCause, Halt, LedgerData
from mwatch.model.kube.node import ZONE, KubeNode
from mwatch.model.kube.pod import KubePod

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor


STALLS = frozenset({Cause.HANG, Cause.FABRIC, Cause.STORAGE, Cause.LOST_POD, Cause.KILLED})
_RANK = ("node", "switch", "volume", "storage class", "zone")
"""Narrowest first: if the same jobs share several parts, the narrowest is reported."""


class SharedPart(NamedTuple):
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Stalled(NamedTuple):
    key: str
    since: float


class AffectedJobs(NamedTuple):
    part: SharedPart
    keys: tuple[str, ...]
    since: float


def parts_of(
    job: KubeJob,
    pods: Iterable[KubePod],
    nodes: Iterable[KubeNode],
    *,
    switch_labels: Sequence[str],
    classes: Mapping[str, str],
) -> frozenset[SharedPart]:
    """The parts that the job depends on. `classes`: the storage class of each claim, if known."""
    on = {pod.node for pod in pods if pod.node}
    found = {SharedPart("node", name) for name in on}
    for node in nodes:
        if node.name in on:
            found |= {
                SharedPart("switch", f"{label}={node.labels[label]}")
                for label in switch_labels
                if label in node.labels
            }
            found |= {SharedPart("zone", node.labels[ZONE])} if ZONE in node.labels else set()
    for volume in _volumes(job):
        found.add(volume)
        if volume.name in classes:
            found.add(SharedPart("storage class", classes[volume.name]))
    return frozenset(found)


def _volumes(job: KubeJob) -> set[SharedPart]:
    found = set()
    for group in job.groups:
        for each in items(group.template, "spec", "volumes"):
            claim = text(each, "persistentVolumeClaim", "claimName")
            server = text(each, "nfs", "server")
            if claim:
                found.add(SharedPart("volume", claim))
            if server:
                found.add(SharedPart("volume", f"{server}:{text(each, 'nfs', 'path')}"))
    return found


def common(
    stalled: Iterable[Stalled], parts: Mapping[str, frozenset[SharedPart]], rule: FleetSettings
) -> list[AffectedJobs]:
    """Group the stalled jobs by shared part; a job is in at most one group. `parts`: by key, of all
    watched jobs, including healthy ones."""
    sharing = Counter(part for each in parts.values() for part in each)
    on: dict[SharedPart, list[Stalled]] = defaultdict(list)
    for each in stalled:
        for part in parts.get(each.key, ()):
            on[part].append(each)
    found = []
    for part, jobs in on.items():
        together = _together(jobs, rule.common_cause_seconds)
        if len(together) >= max(rule.common_cause_least, rule.common_cause_share * sharing[part]):
            keys = tuple(sorted(each.key for each in together))
            found.append(AffectedJobs(part, keys, min(each.since for each in together)))
    found.sort(key=lambda each: (-len(each.keys), _RANK.index(each.part.kind), each.part.name))
    return _disjoint(found, rule.common_cause_least)


def _together(jobs: list[Stalled], seconds: float) -> list[Stalled]:
    order = sorted(jobs, key=lambda each: each.since)
    best: list[Stalled] = []
    for index, first in enumerate(order):
        inside = [each for each in order[index:] if each.since - first.since <= seconds]
        best = max(best, inside, key=len)
    return best


def _disjoint(groups: list[AffectedJobs], least: int) -> list[AffectedJobs]:
    taken: set[str] = set()
    kept = []
    for group in groups:
        left = tuple(key for key in group.keys if key not in taken)
        if len(left) >= least:
            kept.append(group._replace(keys=left))
            taken.update(left)
    return kept


WORD = "common-cause"
_MAX_CHANGED = 64


class Episode(NamedTuple):
    cause: CommonCause
    group: AffectedJobs


class CommonCauses:
    """Tracks the open episodes; `changed` returns each when it begins and when it ends."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._open: dict[SharedPart, Episode] = {}
        self._changed: deque[Episode] = deque(maxlen=_MAX_CHANGED)
        self._number = 0
        self.classes: Mapping[str, str] = {}
        """The storage class of each claim, filled in by a background job."""
        self.wants_classes = False

    def look(self, jobs: Sequence[JobMonitor], now: float) -> None:
        stalled = [each for job in jobs if (each := _stalled(job, now)) is not None]
        self.wants_classes = len(stalled) >= self._settings.common_cause_least
        groups = self._groups(jobs, stalled) if self.wants_classes else []
        for group in groups:
            known = self._open.get(group.part) or self._begin(group, now)
            self._open[group.part] = known._replace(group=group)
        there = {each.part for each in groups}
        for part in [each for each in self._open if each not in there]:
            ended = self._open.pop(part)
            self._changed.append(ended._replace(cause=structs.replace(ended.cause, ended_at=now)))

    def changed(self) -> list[Episode]:
        found, self._changed = list(self._changed), deque(maxlen=_MAX_CHANGED)
        return found

    def holding(self, key: str, now: float) -> Episode | None:
        for each in self._open.values():
            is_young = now - each.cause.at < self._settings.common_cause_hold_seconds
            if key in each.group.keys and is_young:
                return each
        return None

    def _groups(self, jobs: Sequence[JobMonitor], stalled: list[Stalled]) -> list[AffectedJobs]:
        parts = {
            job.key: parts_of(
                job.kube, job.facts.pods, job.facts.nodes or (),
                switch_labels=self._settings.switch_labels, classes=self.classes,
            )
            for job in jobs
        }  # fmt: skip
        return common(stalled, parts, self._settings)

    def _begin(self, group: AffectedJobs, now: float) -> Episode:
        self._number += 1
        id = bundle_id(now, self._number, WORD)
        episode = Episode(CommonCause(id, now, str(group.part), group.keys), group)
        self._changed.append(episode)
        return episode


def written(cause: CommonCause, book: LedgerData) -> LedgerData:
    others = tuple(each for each in book.common if each.id != cause.id)
    return replace(book, common=(*others, cause)[-MAX_COMMON:])


def storage_classes(access: Access, namespace: str) -> dict[str, str]:
    """Storage class by claim name; empty if the claims cannot be listed."""
    try:
        claims = access.list(CLAIMS, namespace).objects
    except KubeError:
        return {}
    by_claim = {
        text(each, "metadata", "name"): text(each, "spec", "storageClassName") for each in claims
    }
    return {claim: name for claim, name in by_claim.items() if name}


def _stalled(job: JobMonitor, now: float) -> Stalled | None:
    if job.assessment is None:
        return None
    since = [
        now if each.since_time is None else each.since_time
        for each in job.assessment.findings
        if each.cause in STALLS and each.severity is not Severity.INFO
    ]
    return Stalled(job.key, min(since)) if since else None


BACK_SECONDS = 60.0


class HeldBy(StrEnum):
    """Why a due action is held back. A plan's refusal is a `Reason` instead."""

    OBSERVE = "observe"
    PAUSE = "pause"
    HALT = "halt"
    SWITCH = "switch"
    MAINTENANCE = "maintenance"
    COMMON_CAUSE = "common_cause"
    BREAKER = "breaker"
    NOT_LEADER = "not_leader"
    STALE_VIEW = "stale_view"
    LEDGER = "ledger"
    CLUSTER = "cluster"
    PODS = "pods"
    """New pods have not requested their attempt yet."""
    TOKEN = "token"
    """The job's token is not available yet, and sidecars give no evidence without it."""


class Gate(NamedTuple):
    held_by: HeldBy
    text: str


def gate(
    job: KubeJob,
    settings: FleetSettings,
    halt: Halt | None,
    *,
    now: float,
    view_age: float | None,
    is_asked: bool,
) -> Gate | None:
    if view_age is None or view_age > settings.max_view_age_seconds:
        when = "never" if view_age is None else f"{view_age:.0f} s ago"
        return Gate(HeldBy.STALE_VIEW, f"the cluster was last seen {when}")
    return None if is_asked else _by_people(job, settings, halt, now)


def _by_people(job: KubeJob, settings: FleetSettings, halt: Halt | None, now: float) -> Gate | None:
    if not settings.acting:
        return Gate(HeldBy.SWITCH, "acting is switched off in the fleet's settings")
    if halt is not None and halt.holds(now):
        text = f"all acting is stopped{_until(halt.until)} by {halt.who}: {halt.why}"
        return Gate(HeldBy.HALT, text)
    pause = pause_of(job, now)
    if pause is not None:
        return Gate(HeldBy.PAUSE, f"paused{_until(pause.until)} by {pause.words}")
    window = settings.maintained(now)
    if window is not None:
        why = window.why or "no reason given"
        return Gate(HeldBy.MAINTENANCE, f"in a maintenance window: {why}")
    return None


def stalled_together(episode: Episode | None) -> Gate | None:
    if episode is None:
        return None
    count, shared = len(episode.group.keys), episode.cause.shared
    text = f"{count} jobs stalled together on {shared} ({episode.cause.id})"
    return Gate(HeldBy.COMMON_CAUSE, text)


def not_back(job: JobMonitor, since: float, waiting: Collection[str], now: float) -> Gate | None:
    """Hold back the restart of a gang that lost pods until the wrappers of its new pods wait, so
    that these pods need not be replaced again. `since`: when the restart became due, which is once
    all pods run."""
    if not job.is_broken or now - since >= BACK_SECONDS:
        return None
    for each in job.pods.values():
        wrapper = None if each.snapshot is None else each.snapshot.wrapper
        if wrapper is None and each.pod.name not in waiting:
            return Gate(HeldBy.PODS, f"{each.pod.name} has not asked for its attempt yet")
    return None


def _until(moment: float | None) -> str:
    if moment is None:
        return ""
    return f" until {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"


class Waiting(NamedTuple):
    key: str
    due_at: float
    is_asked: bool = False
    """Requested by a person: it skips the queue, but counts as busy."""


class Admitted(NamedTuple):
    now: tuple[str, ...]
    line: tuple[str, ...]


def admit(waiting: Iterable[Waiting], busy: Collection[str], most: int) -> Admitted:
    order = sorted(waiting, key=lambda each: (not each.is_asked, each.due_at, each.key))
    asked = [each.key for each in order if each.is_asked]
    others = [each.key for each in order if not each.is_asked]
    free = max(0, most - len(set(busy) | set(asked)))
    return Admitted((*asked, *others[:free]), tuple(others[free:]))
