# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A live job and all that was seen of it: what the checks of a running job may look at.

None, or a reason in `unseen`: it could not be asked for. Nothing here is a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mwatch.model.checks.workload import Workload
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.observation import StoredCheckpoints
from mwatch.model.snapshot.pod import PodFacts

CRD = "crd"
CLAIMS = "claims"
NODES = "nodes"
SERVICES = "services"
LOGS = "logs"
VOLUME = "volume"


class Claim(NamedTuple):
    """A claim for a volume, with what becomes of the data when it is deleted."""

    name: str
    storage_class: str
    reclaim: str
    """`Delete`, `Retain`; empty: not known."""


class KeptFields(NamedTuple):
    """What the CRD of the job's kind keeps of an init container."""

    restart_policy: bool
    restart_rules: bool


class JobProgress(NamedTuple):
    """What logs and sidecars told."""

    iteration: int | None = None
    total_iterations: int | None = None
    line_at: float | None = None
    """When the last iteration line was printed."""
    line_seconds: float | None = None
    """Usual time between two of them."""
    line_pods: tuple[str, ...] = ()
    """That print them: the last rank's."""
    read_pods: int = 0
    """Whose log or sidecar was read."""
    step_seconds: float | None = None
    save_interval: int | None = None
    world_size: int | None = None
    attempts: int = 0
    is_done: bool = False
    asked_to_end: bool = False
    """An exit that the user gave the trainer."""
    random_start: str = ""
    """The newest attempt began with random weights: what it printed."""


@dataclass(frozen=True, slots=True)
class Running:
    facts: KubeFacts
    workload: Workload
    """The object as the API server has it."""
    applied: Workload | None = None
    """As somebody gave it to kubectl: what the API server dropped is still in there."""
    progress: JobProgress = field(default_factory=JobProgress)
    rendezvous: Mapping[str, str] = field(default_factory=dict)
    """RDZV_ID by pod, where a pod has one."""
    pods: Mapping[str, PodFacts] = field(default_factory=dict)
    """By pod whose sidecar answered."""
    stored: StoredCheckpoints | None = None
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    """Of the trainer as it runs: by its command line, or as it printed them."""
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Arguments with several values: the data paths."""
    claims: tuple[Claim, ...] | None = None
    services: tuple[str, ...] | None = None
    """Names in the namespace."""
    kept: KeptFields | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    """Why something could not be looked at."""

    def why(self, what: str, otherwise: str) -> str:
        return self.unavailable.get(what) or otherwise
