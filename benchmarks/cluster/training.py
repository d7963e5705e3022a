# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A training that takes a second for each iteration until one of its pods stops.

From then on the others wait for it in their next collective, as they do in a real job.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

RANKS = 8
"""Of one pod."""


class Kind(StrEnum):
    MOVING = "moving"
    WAITING = "waiting"
    """For somebody who does not come."""
    STOPPED = "stopped"
    """Its processes by a signal; its sidecar goes on."""


class Stop(NamedTuple):
    pod: int
    """Its number."""
    at: float


class Training:
    def __init__(self, began: float, *, step_seconds: float = 1.0) -> None:
        self.began = began
        self.step_seconds = step_seconds
        self.stop: Stop | None = None

    def stops(self, pod: int, at: float) -> None:
        self.stop = Stop(pod, at)

    def kind(self, pod: int, at: float) -> Kind:
        if self.stop is None or at < self.stop.at:
            return Kind.MOVING
        if pod == self.stop.pod:
            return Kind.STOPPED
        return Kind.WAITING if at >= self._end_of_last else Kind.MOVING

    def iteration(self, at: float) -> int:
        """How many are finished."""
        moment = at if self.stop is None else min(at, self.stop.at)
        return max(0, int((moment - self.began) / self.step_seconds))

    def ended_at(self, iteration: int) -> float:
        return self.began + iteration * self.step_seconds

    @property
    def _end_of_last(self) -> float:
        assert self.stop is not None
        return self.ended_at(self.iteration(self.stop.at) + 1)
