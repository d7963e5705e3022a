# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a GPU works, by its tensor cores, or else by its power, against what it has itself shown.

Utilisation is no proof of work: an NCCL kernel that waits for another rank reads 100 %. But such
a kernel never touches a tensor core, and such a GPU draws far less than one that computes; and a
utilisation of zero is proof of rest. Between the levels nothing is claimed, nor before the GPU has
shown what it does at work: to claim that it moves would be to speak against a hang.

That a GPU rests is no hang: it may wait for data, or its job writes a checkpoint.
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

_TENSOR_SHOWN = 0.002
"""Tensor activity counts once a window had so much of it. A job in fp32 has none while it works,
and a model of a few layers on an H200 a few tenths of a percent."""
_TENSOR_FLAT = 0.0005
_TENSOR_FLAT_SHARE = 0.05
"""Flat is nothing: a hang reads 0 exactly, so the limit leaves room for rounding and no more. A
job that does a thousandth of its work (one short step between long waits for data) is not flat."""
_TENSOR_MOVING_SHARE = 0.1
"""An evaluation, or a step that mostly waits, still has this much of what training had."""


class Activity(NamedTuple):
    state: SignState
    words: str


class _Moment(NamedTuple):
    monotonic: float
    watts: float | None
    utilization: float | None
    tensor: float | None


class GpuActivity:
    """The memory of one GPU; an attempt begins with a new one."""

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque(maxlen=_MAX_SAMPLES)
        self._plateau = 0.0
        """The highest mean of a window. It never falls: a hang may last longer than any memory."""
        self._rest = math.inf
        """The lowest."""
        self._tensor_shown = 0.0
        """The highest mean of a window."""

    def add(
        self,
        monotonic: float,
        watts: float | None,
        utilization: float | None,
        tensor: float | None = None,
    ) -> Activity | None:
        """None while there is too little to go by."""
        self._moments.append(_Moment(monotonic, watts, utilization, tensor))
        while monotonic - self._moments[0].monotonic > 2 * WINDOW_SECONDS:
            self._moments.popleft()
        window = [each for each in self._moments if monotonic - each.monotonic <= WINDOW_SECONDS]
        is_filled = monotonic - self._moments[0].monotonic >= WINDOW_SECONDS
        if not is_filled or len(window) < _MIN_SAMPLES:
            return None
        by_power = self._by_power(self._mean(window))
        by_tensor = self._by_tensor([each.tensor for each in window])
        return _agreed(by_tensor, by_power) if by_tensor else _by_use(window) or by_power

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

    def _by_tensor(self, window: list[float | None]) -> Activity | None:
        """None where the tensor cores have not shown that they are a measure of its work."""
        active = [each for each in window if each is not None]
        if len(active) < _MIN_SAMPLES or window[-1] is None:
            return None
        shown = self._tensor_shown = max(self._tensor_shown, sum(active) / len(active))
        if shown < _TENSOR_SHOWN:
            return None
        flat = min(_TENSOR_FLAT, _TENSOR_FLAT_SHARE * shown)
        if max(active) <= flat:
            return Activity(SignState.FLAT, "its tensor cores rest")
        words = f"its tensor cores were active {active[-1]:.2%} of the time"
        is_moving = active[-1] >= _TENSOR_MOVING_SHARE * shown
        return Activity(SignState.MOVING if is_moving else SignState.UNKNOWN, words)


def _agreed(by_tensor: Activity, by_power: Activity) -> Activity:
    """Power at the level of work without tensor cores is other work: it is no rest."""
    if by_tensor.state is SignState.FLAT and by_power.state is SignState.MOVING:
        return Activity(SignState.UNKNOWN, f"{by_tensor.words}, but it draws {by_power.words}")
    return by_tensor


def _by_use(window: list[_Moment]) -> Activity | None:
    used = [each.utilization for each in window]
    if all(use is not None and use < _IDLE_UTILIZATION for use in used):
        return Activity(SignState.FLAT, "no kernel ran on it")
    return None
