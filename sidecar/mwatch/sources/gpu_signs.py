# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Each rank's GPU activity as a sign, or the pod's where nobody knows whose a GPU is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mwatch.model.gpu import Gpu
from mwatch.model.observation import Sign, SignSource, SignState
from mwatch.sources.gpu_activity import Activity, GpuActivity

_MAX_REMEMBERED = 128


class GpuSigns:
    def __init__(self) -> None:
        self._activity: dict[str, GpuActivity] = {}

    def of(self, gpus: Sequence[Gpu], monotonic: float) -> Iterator[Sign]:
        if len(self._activity) > _MAX_REMEMBERED:
            self._activity.clear()
        found: list[tuple[Gpu, Activity]] = []
        for gpu in gpus:
            memory = self._activity.setdefault(gpu.uuid, GpuActivity())
            activity = memory.add(monotonic, gpu.power_watts, gpu.utilization, gpu.tensor_active)
            if activity is not None:
                found.append((gpu, activity))
        nameless = [activity for gpu, activity in found if gpu.rank is None]
        for gpu, activity in found:
            if gpu.rank is not None:
                words = f"GPU {gpu.number} of rank {gpu.rank}: {activity.words}"
                yield Sign(SignSource.GPU_ACTIVITY, activity.state, gpu.rank, words)
        if nameless and len(nameless) == len(gpus):
            yield _of_the_pod(nameless)


def _of_the_pod(found: list[Activity]) -> Sign:
    """One that moves is enough; all must rest to say that nothing does."""
    states = {activity.state for activity in found}
    state = SignState.UNKNOWN
    if SignState.MOVING in states:
        state = SignState.MOVING
    elif states == {SignState.FLAT}:
        state = SignState.FLAT
    words = f"{len(found)} GPUs: {found[0].words}"
    return Sign(SignSource.GPU_ACTIVITY, state, None, words)
