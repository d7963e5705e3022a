# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All that the API server tells about one job, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from mwatch.model.kube.event import KubeEvent
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.node import KubeNode
from mwatch.model.kube.pod import KubePod
from mwatch.model.kube.queue import KubeWorkload


@dataclass(frozen=True, slots=True)
class KubeFacts:
    """None: not seen (no right to read it, or not asked)."""

    now: float
    job: KubeJob | None
    """None: there is no such job any more."""
    name: str
    pods: tuple[KubePod, ...] = ()
    events: tuple[KubeEvent, ...] = ()
    nodes: tuple[KubeNode, ...] | None = None
    workload: KubeWorkload | None = None
    ours: frozenset[str] = frozenset()
    """UIDs of pods that mwatch itself is deleting."""
    left: tuple[KubePod, ...] = ()
    """On their way out, or gone lately: as they were when that was first seen."""

    @property
    def wants_no_pods(self) -> bool:
        """The job is gone, on its way out, over or suspended: its controller takes its pods."""
        job = self.job
        return job is None or job.is_deleting or job.is_suspended or bool(job.finished)
