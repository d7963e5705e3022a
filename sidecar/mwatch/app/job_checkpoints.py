# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch checkpoints JOB`: what a sidecar of a live job sees in its save folder.

Which rollbacks there were stands beside the checkpoints and is not sent: on a machine that mounts
the folder `mwatch checkpoints DIR` tells more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mwatch.app.at_once import Missed, ask_all
from mwatch.app.diagnose_job import named, no_such_job, open_access
from mwatch.app.diagnose_job_pods import PodWords, ask_sidecar
from mwatch.kube.access import Access
from mwatch.kube.find import find_whole
from mwatch.kube.jobs import owners_of_pods, pod_labels
from mwatch.kube.listing import list_all
from mwatch.kube.resources import PODS
from mwatch.model.kube_pod import pod_of
from mwatch.model.observation import Stored, StoredCheckpoint

_SECONDS = 4.0
_COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class JobCheckpoints:
    job: str
    observed_at: float
    stored: Stored | None
    """None: no sidecar tells of a save folder."""
    pod: str = ""
    """Whose sidecar was believed: the one that saw most."""
    tracker: str | None = None
    why: str = ""
    """Why nothing is known."""

    @property
    def checkpoints(self) -> list[StoredCheckpoint]:
        """The newest first."""
        found = self.stored.checkpoints if self.stored is not None else ()
        return sorted(found, key=lambda each: -each.iteration)

    @property
    def newest_complete(self) -> StoredCheckpoint | None:
        return next((each for each in self.checkpoints if each.state == _COMPLETE), None)

    @property
    def exit_code(self) -> int:
        if not self.checkpoints:
            return 3
        return 0 if self.newest_complete is not None else 1

    def age_seconds(self, checkpoint: StoredCheckpoint) -> float | None:
        at = checkpoint.written_at
        return None if at is None else self.observed_at - at

    def to_json(self) -> dict[str, Any]:
        newest = self.newest_complete
        return {
            "job": self.job,
            "folder": None if self.stored is None else self.stored.folder,
            "observed_at": self.observed_at,
            "pod": self.pod or None,
            "tracker": self.tracker,
            "checkpoints": [
                {**each._asdict(), "age_seconds": self.age_seconds(each)}
                for each in self.checkpoints
            ],
            "newest_complete": None if newest is None else newest.iteration,
            "why": self.why or None,
        }


def look(
    job: str, namespace: str | None, kubeconfig: str | None, context: str | None, now: float
) -> JobCheckpoints:
    """InputError where there is no such job; KubeError where nothing can be asked."""
    access = open_access(kubeconfig, context)
    try:
        return look_with(access, job, namespace or access.namespace, now)
    finally:
        access.close()


def look_with(access: Access, job: str, namespace: str, now: float) -> JobCheckpoints:
    kind, name = named(job)
    found = find_whole(access, namespace, name, kind)
    if found is None:
        raise no_such_job(access, namespace, name)
    owners = owners_of_pods(access, found.job)
    listing = list_all(access, PODS, namespace, labels=pod_labels(found.job))
    bodies = listing.objects if listing is not None else ()
    mine = [(pod_of(each), each) for each in bodies]
    asks = {
        pod.name: (lambda pod=pod, body=body: ask_sidecar(access, pod, body))
        for pod, body in mine
        if pod.owner in owners and pod.phase == "Running"
    }
    told = ask_all(asks, seconds=_SECONDS)
    words = [each for each in told.values() if not isinstance(each, Missed)]
    return _best(name, now, words, len(asks))


def _best(job: str, now: float, words: list[PodWords], pods: int) -> JobCheckpoints:
    """Network file systems show pods different listings: the longest is the newest."""
    seen = [
        (each.snapshot.stored, each)
        for each in words
        if each.snapshot is not None and each.snapshot.stored is not None
    ]
    found = [(one.what, each) for one, each in seen if isinstance(one.what, Stored)]
    if not found:
        silent = [each.sidecar for each in words if each.sidecar]
        why = "no pod runs" if not pods else "no sidecar tells of a save folder"
        return JobCheckpoints(job, now, None, why=f"{why}: {silent[0]}" if silent else why)
    stored, best = max(found, key=lambda each: len(each[0].checkpoints))
    snapshot = best.snapshot
    assert snapshot is not None
    shift = snapshot.shift(best.received_at)
    moved = tuple(
        each._replace(written_at=None if each.written_at is None else each.written_at + shift)
        for each in stored.checkpoints
    )
    tracker = snapshot.pod.tracker if snapshot.pod is not None else None
    return JobCheckpoints(job, now, stored._replace(checkpoints=moved), best.pod.name, tracker)
