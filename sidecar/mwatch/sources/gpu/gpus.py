# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the GPUs of a pod: the activity of each rank's GPU, and GPU faults.

There are two routes: the samples that the wrapper writes beside the trainer, while they are fresh
and list a GPU; otherwise NVML in this container. State is kept per GPU UUID, not per route: a GPU
that is missing from the other route is not lost, and an Xid that both routes report counts once.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import structs

from mwatch.model.fault import CatalogueEntry
from mwatch.model.observation import Observed, Sign, SignSource, SignState
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.model.snapshot.pod import Gpu
from mwatch.sources.background import BackgroundCall, Observations
from mwatch.sources.gpu.records import GpuFaults, GpuRecord, read_record
from mwatch.sources.json_file import FileSample, NodeFile, objects, text, whole
from mwatch_trainer.contract import NODE_FOLDER, NODE_GPUS
from mwatch_trainer.gpu.nvml import Nvml, open_nvml
from mwatch_trainer.gpu.sampler import GpuSampler

Ranks = Callable[[], Mapping[int, int]]
"""Returns the rank of each pid, as the kernel numbers it."""


def ranks_of(gpus: list[Gpu], ranks: Mapping[int, int]) -> list[int | None]:
    """Return the rank that works on each GPU.

    The pids that the driver reports may belong to another PID namespace. Then ranks and GPUs are
    matched in order, if there are as many of both.
    """
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
"""The plateau must stand out from idle power. An H200 draws 78 W with its clocks down, 121 W once a
program has opened it, 122 W while NCCL waits or a small model trains, and 380 to 640 W at work."""
_FLAT_SHARE = 0.6
_MOVING_SHARE = 0.8

_TENSOR_SHOWN = 0.002
"""Tensor activity counts once a window had this much. A job in fp32 has none while it works, and a
model of a few layers on an H200 a few tenths of a percent."""
_TENSOR_FLAT = 0.0005
_TENSOR_FLAT_SHARE = 0.05
"""In a hang the value is exactly 0: the limit only leaves room for rounding. A job with one short
step between long waits for data is not flat."""
_TENSOR_MOVING_SHARE = 0.1
"""An evaluation, or a step that mostly waits, still has this share of the activity in training."""


class Activity(NamedTuple):
    state: SignState
    text: str


class _Moment(NamedTuple):
    monotonic: float
    watts: float | None
    utilization: float | None
    tensor: float | None


class GpuActivity:
    """Assesses whether one GPU works, by its tensor cores or else its power, against its own past.

    Utilisation does not prove work: it is 100 % while an NCCL kernel waits for another rank. But
    such a kernel never uses a tensor core and draws far less power than computation; and zero
    utilisation proves idleness. Between these levels, and before the GPU has shown its level at
    work, the state is unknown: MOVING would be evidence against a hang. An idle GPU alone is not a
    hang: it may wait for data or a checkpoint.
    """

    def __init__(self) -> None:
        self._moments: deque[_Moment] = deque(maxlen=_MAX_SAMPLES)
        self._plateau = 0.0
        """The highest mean power of a window; it never decreases, because a hang may last long."""
        self._rest = math.inf
        self._tensor_shown = 0.0

    def add(
        self,
        monotonic: float,
        watts: float | None,
        utilization: float | None,
        tensor: float | None = None,
    ) -> Activity | None:
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
            return Activity(SignState.UNKNOWN, "neither power nor utilisation can be read")
        if self._plateau <= _PLATEAU_FACTOR * self._rest:
            return Activity(SignState.UNKNOWN, f"{mean:.0f} W, unchanged since the start")
        share = mean / self._plateau
        text = f"{mean:.0f} W, {share:.0%} of its power at work"
        if share <= _FLAT_SHARE:
            return Activity(SignState.FLAT, text)
        is_moving = share >= _MOVING_SHARE
        return Activity(SignState.MOVING if is_moving else SignState.UNKNOWN, text)

    def _by_tensor(self, window: list[float | None]) -> Activity | None:
        """Return None if tensor core use has not been high enough to measure the GPU's work."""
        active = [each for each in window if each is not None]
        if len(active) < _MIN_SAMPLES or window[-1] is None:
            return None
        shown = self._tensor_shown = max(self._tensor_shown, sum(active) / len(active))
        if shown < _TENSOR_SHOWN:
            return None
        flat = min(_TENSOR_FLAT, _TENSOR_FLAT_SHARE * shown)
        if max(active) <= flat:
            return Activity(SignState.FLAT, "tensor cores are idle")
        text = f"tensor cores were active {active[-1]:.2%} of the time"
        is_moving = active[-1] >= _TENSOR_MOVING_SHARE * shown
        return Activity(SignState.MOVING if is_moving else SignState.UNKNOWN, text)


def _agreed(by_tensor: Activity, by_power: Activity) -> Activity:
    """Combine both: full power without tensor cores is other work, not idleness."""
    if by_tensor.state is SignState.FLAT and by_power.state is SignState.MOVING:
        return Activity(SignState.UNKNOWN, f"{by_tensor.text}, but it draws {by_power.text}")
    return by_tensor


def _by_use(window: list[_Moment]) -> Activity | None:
    used = [each.utilization for each in window]
    if all(use is not None and use < _IDLE_UTILIZATION for use in used):
        return Activity(SignState.FLAT, "no kernel ran")
    return None


_MAX_REMEMBERED = 128


def _pod_sign(found: list[Activity]) -> Sign:
    """Return the state of the pod: moving if one GPU is, flat if all are."""
    states = {activity.state for activity in found}
    state = SignState.UNKNOWN
    if SignState.MOVING in states:
        state = SignState.MOVING
    elif states == {SignState.FLAT}:
        state = SignState.FLAT
    text = f"{len(found)} GPUs: {found[0].text}"
    return Sign(SignSource.GPU_ACTIVITY, state, None, text)


_NVML_SECONDS = 1.0
_NVML_LIMIT_SECONDS = 10.0
_NOT_YET = Absent("NVML has not answered yet")
_TENSOR_SECONDS = 4.0
"""Twice the wrapper's interval: the sidecar has one percent of a core for everything."""


class NvmlSource:
    """Samples the GPUs visible to this container, in a thread, because every NVML call may hang.

    Without a driver nothing is loaded, and the driver is searched for once a minute.
    """

    def __init__(
        self,
        open_nvml: Callable[[], Nvml] = open_nvml,
        *,
        limit_seconds: float = _NVML_LIMIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler = GpuSampler(open_nvml, tensor_seconds=_TENSOR_SECONDS, clock=clock)
        self._limit = limit_seconds
        self._clock = clock
        self._call: BackgroundCall[dict[str, Any]] = BackgroundCall(
            "mwatch-nvml", self._sample, limit_seconds=limit_seconds, clock=clock
        )
        self._lock = threading.Lock()
        self._is_open = False
        self._next = -math.inf
        self._reading: Reading[FileSample] = _NOT_YET

    @property
    def is_awaited(self) -> bool:
        """Whether it has not answered since it was opened, and is not late."""
        return self._reading is _NOT_YET

    def read(self) -> Reading[FileSample]:
        """Return the last sample, without waiting; start the next one when it is due."""
        answer = self._call.take()
        if answer is not None:
            self._reading = _as_sample(answer)
        elif isinstance(self._reading, Ok):
            self._reading = Ok(self._reading.value._replace(is_new=False))
        now = self._clock()
        if isinstance(self._reading, Ok) and now - self._reading.value.monotonic > 2 * self._limit:
            self._reading = _NOT_YET  # not used for a while
        if now >= self._next and self._call.start():
            self._next = now + _NVML_SECONDS
            self._is_open = True
        return self._reading

    def wait(self, seconds: float) -> bool:
        return self._call.wait(seconds)

    def close(self) -> None:
        """Close NVML as soon as the running call returns."""
        if self._is_open:
            self._is_open = False
            threading.Thread(target=self._shut, name="mwatch-nvml-end", daemon=True).start()
        self._reading = _NOT_YET

    def _sample(self) -> Reading[dict[str, Any]]:
        with self._lock:
            return Ok(self._sampler.sample())

    def _shut(self) -> None:
        with self._lock:
            self._sampler.close()


def _as_sample(answer: Reading[dict[str, Any]]) -> Reading[FileSample]:
    if not isinstance(answer, Ok):
        return answer
    body = answer.value
    match body["state"]:
        case "absent":
            return Absent(body["reason"])
        case "failed" if not body["gpus"]:
            return Failed(body["reason"])
        case _:
            return Ok(FileSample(body["at"], body["monotonic"], body, is_new=True))


MAX_GPUS = 64
_NO_REASON = "no reason was given"
Route = Literal["wrapper", "nvml"]
_FILES: dict[Route, str] = {"wrapper": f"{NODE_FOLDER}/{NODE_GPUS}", "nvml": "nvml"}
_REST_SECONDS = 60.0
"""NVML stays open this long after the wrapper's samples have resumed."""


class GpuSource:
    def __init__(
        self,
        folder: str,
        stream: str,
        catalogue: Mapping[str, CatalogueEntry],
        *,
        ranks: Ranks = dict,
        node: str | None = None,
        nvml: NvmlSource | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`folder` is `$MWATCH_DIR`. An object is for one attempt; `nvml` may outlive it."""
        self._file = NodeFile(os.path.join(folder, NODE_FOLDER, NODE_GPUS), clock)
        self._nvml = NvmlSource(clock=clock) if nvml is None else nvml
        self._stream, self._ranks, self._clock = stream, ranks, clock
        self._faults = GpuFaults(stream, catalogue, node)
        self._activity: dict[str, GpuActivity] = {}
        self._began, self._began_at = clock(), wall()
        self._uuids: dict[tuple[Route, int], str] = {}
        """The last known UUID of each index: a lost GPU no longer reports it."""
        self._needed_at: float | None = self._began
        self.gpus: tuple[Gpu, ...] = ()
        self.route: Route | None = None

    def read(self) -> Reading[Observations]:
        sampled = _with_gpus(self._file.read())
        if isinstance(sampled, Ok):
            self._rest()
            return self._observe("wrapper", sampled.value)
        self._needed_at = self._clock()
        own = _with_gpus(self._nvml.read())
        if isinstance(own, Ok):
            return self._observe("nvml", own.value)
        if self.route == "wrapper" and self._nvml.is_awaited:
            return Ok(())  # NVML is about to answer
        self.route, self.gpus = None, ()
        return _neither(sampled, own)

    def close(self) -> None:
        self._nvml.close()

    def _rest(self) -> None:
        if self._needed_at is not None and self._clock() - self._needed_at > _REST_SECONDS:
            self._needed_at = None
            self._nvml.close()

    def _observe(self, route: Route, sample: FileSample) -> Reading[Observations]:
        if sample.monotonic < self._began:
            return Absent("the sample is from before this attempt")
        self.route = route
        observed = tuple(self._read(route, sample)) if sample.is_new else ()
        # Faults of a broken GPU count even if no readable GPU is left.
        if observed or any(gpu.is_up for gpu in self.gpus):
            return Ok(observed)
        return Failed(text(sample.body.get("reason")) or _NO_REASON)

    def _read(self, route: Route, sample: FileSample) -> list[Observed]:
        listed = objects(sample.body.get("gpus"), MAX_GPUS)
        records = [self._record(route, each) for each in listed]
        self.gpus = self._with_ranks([each.gpu for each in records])
        alive = [gpu for gpu in self.gpus if gpu.is_up]
        signs = self._signs(alive, sample.monotonic)
        observed = [Observed(sample.at, self._stream, sign) for sign in signs]
        for record, gpu in zip(records, self.gpus, strict=True):
            ranked = record._replace(gpu=gpu)
            observed += self._faults.check(ranked, sample.at, route, _FILES[route])
        return observed

    def _signs(self, gpus: Sequence[Gpu], monotonic: float) -> Iterator[Sign]:
        """Yield the activity of each rank's GPU, or of the pod if no GPU has a known rank."""
        if len(self._activity) > _MAX_REMEMBERED:
            self._activity.clear()
        found: list[tuple[Gpu, Activity]] = []
        for gpu in gpus:
            memory = self._activity.setdefault(gpu.uuid, GpuActivity())
            activity = memory.add(monotonic, gpu.power_watts, gpu.utilization, gpu.tensor_active)
            if activity is not None:
                found.append((gpu, activity))
                if gpu.rank is not None:
                    text = f"GPU {gpu.number} of rank {gpu.rank}: {activity.text}"
                    yield Sign(SignSource.GPU_ACTIVITY, activity.state, gpu.rank, text)
        nameless = [activity for gpu, activity in found if gpu.rank is None]
        if nameless and len(nameless) == len(gpus):
            yield _pod_sign(nameless)

    def _with_ranks(self, gpus: list[Gpu]) -> tuple[Gpu, ...]:
        """Assign ranks; a lost GPU no longer reports processes, and keeps its rank."""
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
    """Return Ok only if the sample has a GPU, even a lost one."""
    if not isinstance(reading, Ok):
        return reading
    body = reading.value.body
    why = text(body.get("reason")) or _NO_REASON
    if body.get("state") == "absent":
        return Absent(why)
    return reading if objects(body.get("gpus"), 1) else Failed(why)


def _since(record: GpuRecord, began_at: float) -> GpuRecord:
    """Remove the events of earlier attempts; the wrapper's sampler ends with its attempt."""
    xids = tuple((xid, at) for xid, at in record.xids if at is None or at >= began_at)
    events = tuple((name, at) for name, at in record.events if at >= began_at)
    return record._replace(xids=xids, events=events)


def _neither(sampled: Absent | Failed, own: Absent | Failed) -> Absent | Failed:
    if isinstance(sampled, Failed) and isinstance(own, Failed):
        return Failed(f"{sampled.error}; NVML in the sidecar: {own.error}")
    return own if isinstance(sampled, Absent) and isinstance(own, Failed) else sampled
