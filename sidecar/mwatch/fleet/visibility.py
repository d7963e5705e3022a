# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The newest report of each pod's sidecar, which sources of the whole job are readable, and whether
anything has changed.

A pod whose sidecar does not answer is *unreachable*: neither healthy nor hung. The log of the job
counts as readable only while the pod that prints the iterations answers, or all pods if that pod is
not known: other pods never print, so their silence means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mwatch.engine.engine import Assessment
from mwatch.model.job import Job
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.pod import KubePod
from mwatch.model.observation import Source
from mwatch.model.snapshot.snapshot_wire import PodSnapshot


class PodView(NamedTuple):
    pod: KubePod
    address: str
    port: int
    answered_at: float | None = None
    """On the controller's clock; None: never."""
    problem: str = ""
    """Why the last poll failed; empty: it succeeded."""
    snapshot: PodSnapshot | None = None
    """The newest, with the parts that are only sent after a change: `wrapper`, `stored`, `pod`."""
    asked_since: float | None = None
    is_whole: bool = True
    """The last answer was complete: a long one comes in parts."""

    def is_answering(self, now: float, within: float) -> bool:
        is_fresh = self.answered_at is not None and now - self.answered_at <= within
        return is_fresh and not self.problem

    @property
    def looked_at(self) -> float | None:
        """When the sidecar took its last snapshot, on the controller's clock."""
        if self.answered_at is None or self.snapshot is None:
            return None
        return self.answered_at - self.snapshot.age

    def is_catching_up(self, now: float, within: float) -> bool:
        """The sidecar has not answered yet or has more to send. `within`: the longest wait."""
        if self.problem or not self.port or self.pod.phase != "Running":
            return False
        if self.answered_at is None:
            return now - (now if self.asked_since is None else self.asked_since) <= within
        return not self.is_whole and now - self.answered_at <= within


class Polled(NamedTuple):
    uid: str
    at: float
    """When the poll ended, on the controller's clock."""
    snapshot: PodSnapshot | None
    problem: str = ""
    is_whole: bool = True
    port: int = 0
    is_steady: bool = False
    """The sidecar reports no change since its last answer, except newer records of the ranks."""


OF_SOURCE = {
    "log": Source.LOG,
    "probe": Source.PROBE,
    "processes": Source.PROCESS,
    "gpus": Source.GPU,
    "nccl": Source.NCCL,
    "fabric": Source.FABRIC,
    "checkpoints": Source.CHECKPOINTS,
}


class PodsAnswering(NamedTuple):
    answering: Sequence[PodView]
    silent: Sequence[PodView]

    @property
    def reason(self) -> str:
        """Why a source is not readable; names the first pod, since the others are alike."""
        if not self.silent:
            return "no sidecar can read it"
        first = self.silent[0]
        why = first.problem or "no answer yet"
        count = len(self.silent)
        pods = first.pod.name if count == 1 else f"{first.pod.name} and {count - 1} more"
        return f"the sidecar of {pods} does not answer ({why})"


def split(pods: Mapping[str, PodView], now: float, within: float) -> PodsAnswering:
    answering: list[PodView] = []
    silent: list[PodView] = []
    for each in pods.values():
        if each.pod.phase == "Running":
            (answering if each.is_answering(now, within) else silent).append(each)
    return PodsAnswering(answering, silent)


def readable_sources(job: Job, seen: PodsAnswering) -> dict[Source, bool]:
    """Whether each source that a pod has ever reported is readable now."""
    known: dict[Source, bool] = {}
    for each in seen.answering:
        assert each.snapshot is not None
        for name, is_up in each.snapshot.sources.items():
            if (source := OF_SOURCE.get(name)) is not None:
                known[source] = known.get(source, False) or is_up
    for view in job.sources:
        known.setdefault(view, False)
    if known.get(Source.LOG):
        known[Source.LOG] = _has_iterations(job, seen)
    return known


def _has_iterations(job: Job, seen: PodsAnswering) -> bool:
    there = {each.pod.name for each in (*seen.answering, *seen.silent)}
    printers = {
        name for name, stream in job.streams.items() if stream.prints_iterations and name in there
    }
    if not printers:
        return not seen.silent
    mine = (each.snapshot for each in seen.answering if each.pod.name in printers)
    return any(each is not None and each.sources.get("log", False) for each in mine)


MIN_PODS = 64
_LONGEST_SECONDS = 5.0
_SILENT_SHARE = 0.5


class Calm:
    """Decides when a large job need not be evaluated again, because nothing has changed.

    An evaluation visits every rank, so for thousands of pods it costs a tenth of a second. A job is
    calm for some seconds while its last evaluation found nothing, no pod and no object of the
    cluster has reported a change since then, and the time without progress is below half of its
    deadline. A stall is therefore still found in the second in which it becomes one.
    """

    def __init__(self) -> None:
        self._has_changed = True
        self._evaluated_at = 0.0

    def evaluated(self, now: float) -> None:
        self._has_changed = False
        self._evaluated_at = now

    def note_poll(self, polled: Polled, before: PodView) -> None:
        if self._has_changed:
            return
        new, old = polled.snapshot, before.snapshot
        if new is None or old is None or before.problem:
            self._has_changed = True
        elif not polled.is_steady:
            self._has_changed = brings_changes(new) or _material(new) != _material(old)

    def note_facts(self, new: KubeFacts, old: KubeFacts) -> None:
        if not self._has_changed:
            self._has_changed = any(
                getattr(new, name) != getattr(old, name)
                for name in ("job", "pods", "events", "nodes", "workload", "ours", "left")
            )

    def is_calm(
        self, job: Job, last: Assessment | None, deadline: float | None, now: float
    ) -> bool:
        """`last`: the job's last assessment; `deadline`: how long it may make no progress."""
        if self._has_changed or last is None or last.findings or deadline is None:
            return False
        silence = now - job.attempt.last_progress
        return now - self._evaluated_at < _LONGEST_SECONDS and silence < _SILENT_SHARE * deadline


def brings_changes(new: PodSnapshot) -> bool:
    """Whether it has more than newer records of ranks and reports of witnesses."""
    parts = new.events, new.wrapper, new.stored, new.pod
    return any(parts) or new.gap


def _material(snapshot: PodSnapshot) -> tuple[Any, ...]:
    view = snapshot.view
    return (
        (view.attempt, view.phase, view.is_blind, view.action),
        snapshot.sources,
        [(each.detector, each.cause) for each in snapshot.findings],
        [each.what[:3] for each in snapshot.signs],  # source, state and rank
        len(snapshot.ranks),
    )
