# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The newest that is known of one pod's sidecar, and what one poll of it has brought.

A sidecar that does not answer says nothing about its trainer: the pod is *unseen*, and neither
healthy nor hung.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch.model.kube_pod import KubePod
from mwatch.model.snapshot_wire import PodSnapshot


class PodSight(NamedTuple):
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
