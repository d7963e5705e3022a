# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that somebody deletes or has deleted, as they were when that was first seen.

A pod that crashed is over before it is deleted, one that a person deletes is not: which came first
is told by the watch alone, and only while it runs. Of a pod that went while nobody watched nothing
is known. Who deleted it the API server does not tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from mwatch.app.fleet_parts import PodSeen
from mwatch.model.kube_pod import KubePod

KEPT_SECONDS = 1800.0
_MAX_PODS = 10_000


class _Left(NamedTuple):
    pod: KubePod
    at: float
    job: str = ""
    """UID of the watched job that it was of, as long as that could be told."""


class Leavings:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left: dict[str, _Left] = {}

    def told(self, before: PodSeen | None, after: PodSeen | None) -> None:
        """By the watch's thread, of each change; None: it was not there, or is gone."""
        newest = after or before
        if newest is None or (after is not None and not after.pod.is_deleting):
            return
        with self._lock:
            known = self._left.get(newest.pod.uid)
            if known is None and len(self._left) < _MAX_PODS:
                self._left[newest.pod.uid] = _Left(newest.pod, self._clock())
            elif known is not None and newest.pod.disruption is not None:
                pod = replace(known.pod, disruption=newest.pod.disruption)
                self._left[newest.pod.uid] = known._replace(pod=pod)

    def by_job(self, tops: Mapping[str, str]) -> dict[str, tuple[KubePod, ...]]:
        """By UID of the job. `tops`: of the watched job above each that may own pods; one between
        a job and its pods may be gone with them."""
        oldest = self._clock() - KEPT_SECONDS
        found: dict[str, list[KubePod]] = {}
        with self._lock:
            kept = {uid: each for uid, each in self._left.items() if each.at >= oldest}
            for uid, each in kept.items():
                job = tops.get(each.pod.owner, each.job)
                kept[uid] = each._replace(job=job)
                if job:
                    found.setdefault(job, []).append(each.pod)
            self._left = kept
        return {job: tuple(pods) for job, pods in found.items()}
