# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU works, by its power against the plateau that it has itself shown.

Utilisation is no proof of work: an NCCL kernel that waits for another rank reads 100 %. But such
a GPU draws far less than one that computes, and a utilisation of zero is proof of rest. Between
the two levels nothing is claimed, nor before the GPU has shown what it draws at work: to claim
that it moves would be to speak against a hang.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from mwatch.model.observation import SignState

WINDOW_SECONDS = 5.0
_MIN_SAMPLES = 3
_MAX_SAMPLES = 64
_IDLE_UTILIZATION = 0.01
_PLATEAU_FACTOR = 2.5
"""The plateau must stand out from rest: small models on large GPUs hardly show in the power. An
H200 with its clocks down draws 78 W, 121 W once a program has opened it, 122 W while NCCL waits
or a small model trains, and 380 to 640 W at work."""
_FLAT_SHARE = 0.6
_MOVING_SHARE = 0.8


class Activity(NamedTuple):
    state: SignState
    words: str


class _Moment(NamedTuple):
    monotonic: float
    watts: float | None
    utilization: float | None


class GpuActivity:
    """The memory of one GPU; an attempt begins with a new one."""

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque(maxlen=_MAX_SAMPLES)
        self._plateau = 0.0
        """The highest mean of a window. It never falls: a hang may last longer than any memory."""
        self._rest = math.inf
        """The lowest."""

    def add(
        self, monotonic: float, watts: float | None, utilization: float | None
    ) -> Activity | None:
        """None while there is too little to go by."""
        self._moments.append(_Moment(monotonic, watts, utilization))
        while monotonic - self._moments[0].monotonic > 2 * WINDOW_SECONDS:
            self._moments.popleft()
        window = [each for each in self._moments if monotonic - each.monotonic <= WINDOW_SECONDS]
        is_filled = monotonic - self._moments[0].monotonic >= WINDOW_SECONDS
        if not is_filled or len(window) < _MIN_SAMPLES:
            return None
        mean = self._mean(window)
        return _by_use(window) or self._by_power(mean)

    def _mean(self, window: list[_Moment]) -> float | None:
        watts = [each.watts for each in window if each.watts is not None]
        if len(watts) < _MIN_SAMPLES:
            return None
        mean = sum(watts) / len(watts)
        self._plateau = max(mean, self._plateau)
        self._rest = min(mean, self._rest)
        return mean

    def _by_power(self, mean: float | None) -> Activity:
        if mean is None:
            return Activity(SignState.UNKNOWN, "neither its power nor its use can be read")
        if self._plateau <= _PLATEAU_FACTOR * self._rest:
            return Activity(SignState.UNKNOWN, f"{mean:.0f} W, as all the time")
        share = mean / self._plateau
        words = f"{mean:.0f} W, {share:.0%} of what it drew at work"
        if share <= _FLAT_SHARE:
            return Activity(SignState.FLAT, words)
        is_moving = share >= _MOVING_SHARE
        return Activity(SignState.MOVING if is_moving else SignState.UNKNOWN, words)


def _by_use(window: list[_Moment]) -> Activity | None:
    used = [each.utilization for each in window]
    if all(use is not None and use < _IDLE_UTILIZATION for use in used):
        return Activity(SignState.FLAT, "no kernel ran on it")
    return None
