# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a worker is given to do to one job, and what comes of it: values, no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mwatch.app.pod_talk import PodAddress
from mwatch.model.decision import Act, Action
from mwatch.model.gang import Plan, Refusal
from mwatch.model.incident import IncidentRecord, Kept
from mwatch.model.kube_job import KubeJob
from mwatch.model.kube_node import KubeNode
from mwatch.model.next_start import NextStart


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    key: str
    job: KubeJob
    attempt: int
    """The one that ends."""
    action: Action
    reason: str
    is_asked: bool
    pods: tuple[PodAddress, ...]
    """Whose sidecar can be asked, the most telling first."""
    unseen: tuple[tuple[str, str], ...]
    nodes: tuple[KubeNode, ...] | None
    can_in_place: bool
    avoid: str = ""
    """The node that is sick."""
    blamed: str = ""
    """UID of the pod to blame."""
    token: str = ""


class Ready(NamedTuple):
    plan: Plan
    evidence: Kept | None


class Words(NamedTuple):
    """What is written down with the act."""

    act: Act
    record: IncidentRecord
    start: NextStart | None
    """None: nothing starts after it."""


class Done(NamedTuple):
    is_done: bool
    """False: somebody else is the leader by now, and goes on with it."""
    text: str


class Halted(Exception):
    """A person has stopped all acting meanwhile."""


class DoneBefore(Exception):
    """Somebody else has done it about this very attempt."""


class KeptBack(Exception):
    """Begun in place, and neither to be ended so nor, for now, in another way. It is in the
    ledger: to be gone on with later."""

    def __init__(self, tried: str, refusal: Refusal) -> None:
        super().__init__(f"not in place: {tried}; {refusal.text}")
        self.tried = tried
        """Why not in place."""
        self.refusal = refusal
