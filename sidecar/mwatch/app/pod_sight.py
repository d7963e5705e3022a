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

    def is_answering(self, now: float, within: float) -> bool:
        """The last poll went well, and not too long ago."""
        is_fresh = self.answered_at is not None and now - self.answered_at <= within
        return is_fresh and not self.problem


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
