# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a pod: each rank's GPU activity, and what breaks on them.

They are seen by one of two routes: the records that the sampler beside the trainer writes, as
long as those are fresh and name a GPU, or else NVML in this container, where it sees any. What is
known of a GPU belongs to its UUID and not to a route, so a change of route invents nothing: a GPU
that the other route does not see is not lost, and an Xid that both saw is one.

Which rank works on which GPU.

Told by the pids that the driver names; those may be of another PID namespace, and then by their
order where there are as many ranks as GPUs. Where neither fits, nobody is named.

Whether a GPU works, by its tensor cores, or else by its power, against what it has itself shown.

Utilisation is no proof of work: an NCCL kernel that waits for another rank reads 100 %. But such
a kernel never touches a tensor core, and such a GPU draws far less than one that computes; and a
utilisation of zero is proof of rest. Between the levels nothing is claimed, nor before the GPU has
shown what it does at work: to claim that it moves would be to speak against a hang.

That a GPU rests is no hang: it may wait for data, or its job writes a checkpoint.

Each rank's GPU activity as a sign, or the pod's where nobody knows whose a GPU is.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import structs

from mwatch.model.fault import CatalogueEntry
from mwatch.model.observation import Observed, Sign, SignSource, SignState
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.model.snapshot.hardware import Gpu
from mwatch.sources.base.json_file import FileSample, NodeFile, objects, text, whole
from mwatch.sources.gpu.nvml import NvmlSource
from mwatch.sources.gpu.records import GpuFaults, GpuRecord, read_record
from mwatch_trainer.contract import NODE_FOLDER, NODE_GPUS

Ranks = Callable[[], Mapping[int, int]]
"""The rank of each pid, as the kernel sees it."""


def nobody() -> Mapping[int, int]:
    return {}


def ranks_of(gpus: list[Gpu], ranks: Mapping[int, int]) -> list[int | None]:
    by_pid = [next((ranks[pid] for pid in gpu.pids if pid in ranks), None) for gpu in gpus]
    if any(rank is not None for rank in by_pid) or len(ranks) != len(gpus):
        return by_pid
    in_order = sorted(range(len(gpus)), key=lambda place: gpus[place].number)
    found: list[int | None] = [None] * len(gpus)
    for place, rank in zip(in_order, sorted(ranks.values()), strict=True):
        found[place] = rank
    return found


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


MAX_GPUS = 64
Route = Literal["wrapper", "nvml"]
_FILES: dict[Route, str] = {"wrapper": f"{NODE_FOLDER}/{NODE_GPUS}", "nvml": "nvml"}
_REST_SECONDS = 60.0
"""Our own NVML stays open so long after the wrapper's records are back."""


class GpuSource:
    def __init__(
        self,
        folder: str,
        stream: str,
        catalogue: Mapping[str, CatalogueEntry],
        *,
        ranks: Ranks = nobody,
        node: str | None = None,
        nvml: NvmlSource | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`folder` is `$MWATCH_DIR`; `ranks` tells the rank of each pid, as the kernel sees it.

        One is made for each attempt, and tells nothing of before; `nvml` may outlive it.
        """
        self._file = NodeFile(os.path.join(folder, NODE_FOLDER, NODE_GPUS), clock)
        self._nvml = NvmlSource(clock=clock) if nvml is None else nvml
        self._stream, self._ranks, self._clock = stream, ranks, clock
        self._faults = GpuFaults(stream, catalogue, node)
        self._signs = GpuSigns()
        self._began, self._began_at = clock(), wall()
        self._uuids: dict[tuple[Route, int], str] = {}
        """A GPU that is lost no longer tells its own."""
        self._needed_at: float | None = self._began
        """When our own NVML was last asked; None: it rests."""
        self.gpus: tuple[Gpu, ...] = ()
        """As last read; empty while they cannot be."""
        self.route: Route | None = None

    def read(self) -> Reading[tuple[Observed, ...]]:
        """What is new; never waits."""
        told = _with_gpus(self._file.read())
        if isinstance(told, Ok):
            self._rest()
            return self._look("wrapper", told.value)
        self._needed_at = self._clock()
        seen = _with_gpus(self._nvml.read())
        if isinstance(seen, Ok):
            return self._look("nvml", seen.value)
        if self.route == "wrapper" and self._nvml.is_awaited:
            return Ok(())  # in a moment it is known whether they are out of sight
        self.route, self.gpus = None, ()
        return _neither(told, seen)

    def close(self) -> None:
        self._nvml.close()

    def _rest(self) -> None:
        if self._needed_at is not None and self._clock() - self._needed_at > _REST_SECONDS:
            self._needed_at = None
            self._nvml.close()

    def _look(self, route: Route, sample: FileSample) -> Reading[tuple[Observed, ...]]:
        if sample.monotonic < self._began:
            return Absent("what is there was read before this attempt")
        self.route = route
        said = tuple(self._read(route, sample)) if sample.is_new else ()
        # What a broken GPU says is told, also where none is left that can be read.
        if said or any(gpu.is_up for gpu in self.gpus):
            return Ok(said)
        return Failed(text(sample.body.get("reason")) or "nobody said why")

    def _read(self, route: Route, sample: FileSample) -> list[Observed]:
        listed = objects(sample.body.get("gpus"), MAX_GPUS)
        records = [self._record(route, each) for each in listed]
        self.gpus = self._with_ranks([each.gpu for each in records])
        alive = [gpu for gpu in self.gpus if gpu.is_up]
        signs = self._signs.of(alive, sample.monotonic)
        said = [Observed(sample.at, self._stream, sign) for sign in signs]
        for record, gpu in zip(records, self.gpus, strict=True):
            ranked = record._replace(gpu=gpu)
            said += self._faults.look(ranked, sample.at, route, _FILES[route])
        return said

    def _with_ranks(self, gpus: list[Gpu]) -> tuple[Gpu, ...]:
        """A GPU that is lost names no process any more: it is still its rank's."""
        found = ranks_of(gpus, self._ranks())
        before = {gpu.uuid: gpu.rank for gpu in self.gpus}
        return tuple(
            structs.replace(
                gpu, rank=before.get(gpu.uuid) if rank is None and not gpu.is_up else rank
            )
            for gpu, rank in zip(gpus, found, strict=True)
        )

    def _record(self, route: Route, body: dict[str, Any]) -> GpuRecord:
        index = whole(body.get("index")) or 0
        known = self._uuids.get((route, index))
        uuid = text(body.get("uuid")) or known or f"gpu-{index}"
        if known is not None or len(self._uuids) < 2 * MAX_GPUS:
            self._uuids[route, index] = uuid
        record = read_record(body, index, uuid)
        return record if route == "wrapper" else _since(record, self._began_at)


def _with_gpus(reading: Reading[FileSample]) -> Reading[FileSample]:
    """Ok only with a GPU in it, and be it one that is lost."""
    if not isinstance(reading, Ok):
        return reading
    body = reading.value.body
    why = text(body.get("reason")) or "nobody said why"
    if body.get("state") == "absent":
        return Absent(why)
    return reading if objects(body.get("gpus"), 1) else Failed(why)


def _since(record: GpuRecord, began_at: float) -> GpuRecord:
    """Without the events of earlier attempts. The sampler beside the trainer ends with its own."""
    xids = tuple((xid, at) for xid, at in record.xids if at is None or at >= began_at)
    events = tuple((name, at) for name, at in record.events if at >= began_at)
    return record._replace(xids=xids, events=events)


def _neither(told: Absent | Failed, seen: Absent | Failed) -> Absent | Failed:
    """The wrapper is beside the trainer: where it says that there is none, there is none."""
    match told, seen:
        case Failed(error), Failed(own):
            return Failed(f"{error}; by our own NVML: {own}")
        case Failed(), _:
            return told
        case _, Failed():
            return seen
        case _:
            return told
