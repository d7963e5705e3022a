# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What of a job can be seen at all, by what its pods' sidecars see and which of them answer.

The log counts as seen only while the pod that prints the iterations answers; where none is known
to, while all do: the silence of pods that never print is no silence.

The newest that is known of one pod's sidecar, and what one poll of it has brought.

A sidecar that does not answer says nothing about its trainer: the pod is *unseen*, and neither
healthy nor hung.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mwatch.model.job import Job
from mwatch.model.kube.pod import KubePod
from mwatch.model.observation import Source
from mwatch.model.snapshot.snapshot_wire import PodSnapshot


class PodView(NamedTuple):
    pod: KubePod
    """As the API server last told of it."""
    address: str
    port: int
    answered_at: float | None = None
    """On the controller's clock; None: never."""
    problem: str = ""
    """Why the last poll failed; empty: it did not."""
    snapshot: PodSnapshot | None = None
    """The newest; parts that change seldom (`wrapper`, `stored`, `pod`) are merged in."""
    asked_since: float | None = None
    """From when on it was expected to answer, on the controller's clock."""
    is_whole: bool = True
    """Its last answer was all that it had to tell."""

    def is_answering(self, now: float, within: float) -> bool:
        """The last poll went well, and not too long ago."""
        is_fresh = self.answered_at is not None and now - self.answered_at <= within
        return is_fresh and not self.problem

    @property
    def looked_at(self) -> float | None:
        """When the sidecar made the look that it last told of, on the controller's clock."""
        if self.answered_at is None or self.snapshot is None:
            return None
        return self.answered_at - self.snapshot.age

    def is_half_told(self, now: float, within: float) -> bool:
        """It was never asked, or has more to tell; `within`: nobody waits longer for it."""
        if self.problem or not self.port or self.pod.phase != "Running":
            return False
        if self.answered_at is None:
            return now - (now if self.asked_since is None else self.asked_since) <= within
        return not self.is_whole and now - self.answered_at <= within


class Polled(NamedTuple):
    """What one poll of one pod has brought."""

    uid: str
    at: float
    """On the controller's clock, when the answer was there, or was given up."""
    snapshot: PodSnapshot | None
    problem: str = ""
    is_whole: bool = True
    """All that the sidecar has to tell: a long answer comes in parts."""
    port: int = 0
    """That answered."""


OF_SOURCE = {
    "log": Source.LOG,
    "probe": Source.PROBE,
    "processes": Source.PROCESS,
    "gpus": Source.GPU,
    "nccl": Source.NCCL,
    "fabric": Source.FABRIC,
    "checkpoints": Source.CHECKPOINTS,
}
_MAX_NAMES = 3


class PodsAnswering(NamedTuple):
    answering: Sequence[PodView]
    silent: Sequence[PodView]
    """That run, and whose sidecars do not answer."""

    @property
    def reason(self) -> str:
        """Why nothing can be seen; of the first, for the others are alike."""
        if not self.silent:
            return "no sidecar can read it"
        first = self.silent[0]
        why = first.problem or "no answer yet"
        count = len(self.silent)
        who = first.pod.name if count == 1 else f"{first.pod.name} and {count - 1} more"
        return f"the sidecar of {who} does not answer ({why})"


def split(pods: Mapping[str, PodView], now: float, within: float) -> PodsAnswering:
    runs = [each for each in pods.values() if each.pod.phase == "Running"]
    answering = [each for each in runs if each.is_answering(now, within)]
    return PodsAnswering(answering, [each for each in runs if not each.is_answering(now, within)])


def sights(job: Job, seen: PodsAnswering) -> dict[Source, bool]:
    """Of those that anybody has ever told of."""
    known: dict[Source, bool] = {}
    for each in seen.answering:
        assert each.snapshot is not None
        for name, is_up in each.snapshot.sources.items():
            if (view := OF_SOURCE.get(name)) is not None:
                known[view] = known.get(view, False) or is_up
    for view in job.sources:
        known.setdefault(view, False)
    if known.get(Source.LOG):
        known[Source.LOG] = _tells(job, seen)
    return known


def _tells(job: Job, seen: PodsAnswering) -> bool:
    there = {each.pod.name for each in (*seen.answering, *seen.silent)}
    tellers = {
        name for name, stream in job.streams.items() if stream.prints_iterations and name in there
    }
    if not tellers:
        return not seen.silent
    return any(each.pod.name in tellers and _has_log(each) for each in seen.answering)


def _has_log(each: PodView) -> bool:
    return each.snapshot is not None and each.snapshot.sources.get("log", False)


def named(pods: Sequence[PodView]) -> str:
    names = [each.pod.name for each in pods[:_MAX_NAMES]]
    more = f" and {len(pods) - _MAX_NAMES} more" if len(pods) > _MAX_NAMES else ""
    return ", ".join(names) + more
