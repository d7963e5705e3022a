# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What of a job can be seen at all, by what its pods' sidecars see and which of them answer.

The log counts as seen only while the pod that prints the iterations answers; where none is known
to, while all do: the silence of pods that never print is no silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mwatch.app.pod_sight import PodSight
from mwatch.model.job import Job
from mwatch.model.observation import Sight

OF_SOURCE = {
    "log": Sight.LOG,
    "probe": Sight.PROBE,
    "processes": Sight.PROCESS,
    "gpus": Sight.GPU,
    "nccl": Sight.NCCL,
    "fabric": Sight.FABRIC,
    "checkpoints": Sight.CHECKPOINTS,
}
_MAX_NAMES = 3


class Seen(NamedTuple):
    answering: Sequence[PodSight]
    silent: Sequence[PodSight]
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


def split(pods: Mapping[str, PodSight], now: float, within: float) -> Seen:
    runs = [each for each in pods.values() if each.pod.phase == "Running"]
    answering = [each for each in runs if each.is_answering(now, within)]
    return Seen(answering, [each for each in runs if not each.is_answering(now, within)])


def sights(job: Job, seen: Seen) -> dict[Sight, bool]:
    """Of those that anybody has ever told of."""
    known: dict[Sight, bool] = {}
    for each in seen.answering:
        assert each.snapshot is not None
        for name, is_up in each.snapshot.sources.items():
            if (sight := OF_SOURCE.get(name)) is not None:
                known[sight] = known.get(sight, False) or is_up
    for sight in job.sights:
        known.setdefault(sight, False)
    if known.get(Sight.LOG):
        known[Sight.LOG] = _tells(job, seen)
    return known


def _tells(job: Job, seen: Seen) -> bool:
    there = {each.pod.name for each in (*seen.answering, *seen.silent)}
    tellers = {
        name for name, stream in job.streams.items() if stream.prints_iterations and name in there
    }
    if not tellers:
        return not seen.silent
    return any(each.pod.name in tellers and _has_log(each) for each in seen.answering)


def _has_log(each: PodSight) -> bool:
    return each.snapshot is not None and each.snapshot.sources.get("log", False)


def named(pods: Sequence[PodSight]) -> str:
    names = [each.pod.name for each in pods[:_MAX_NAMES]]
    more = f" and {len(pods) - _MAX_NAMES} more" if len(pods) > _MAX_NAMES else ""
    return ", ".join(names) + more
