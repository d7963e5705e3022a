# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a pod, as the wrapper read them by NVML (`node/gpus.json`).

Gives each rank's GPU activity, and as faults of the catalogue: Xids, new uncorrectable memory
errors, and a GPU that the driver no longer reaches. Which rank works on which GPU is told by the
pids that the driver names; those may be of another PID namespace, and then by their order where
there are as many ranks as GPUs. Where neither fits, the pod is spoken of as a whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mwatch.model.event import Fault
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.model.gpu import Gpu
from mwatch.model.observation import Observed, Sign, SignSource, SignState
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.gpu_activity import Activity, GpuActivity
from mwatch.sources.node_file import NodeFile, Sample, number, objects, text, whole
from mwatch_trainer.contract import NODE_FOLDER, NODE_GPUS

MAX_GPUS = 64
_MAX_PIDS = 256
_UNKNOWN_XID = "xid-unknown"
_ECC = "gpu-ecc-uncorrectable"
_LOST = "gpu-lost"

Ranks = Callable[[], Mapping[int, int]]


def _nobody() -> Mapping[int, int]:
    return {}


class NodeGpus:
    def __init__(
        self,
        folder: str,
        stream: str,
        catalogue: Mapping[str, CatalogueEntry],
        *,
        ranks: Ranks = _nobody,
        node: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` is `$MWATCH_DIR`; `ranks` tells the rank of each pid, as the kernel sees it."""
        self._file = NodeFile(os.path.join(folder, NODE_FOLDER, NODE_GPUS), clock)
        self._stream = stream
        self._node = node
        self._ranks = ranks
        self._catalogue = catalogue
        self._xids = {entry.xid: entry for entry in catalogue.values() if entry.xid is not None}
        self._activity: dict[str, GpuActivity] = {}
        self._uuids: dict[int, str] = {}
        """A GPU that is lost no longer tells its own."""
        self._xid: dict[str, tuple[int, float | None]] = {}
        self._errors: dict[str, int] = {}
        self._lost: set[str] = set()
        self.gpus: tuple[Gpu, ...] = ()
        """As last read; empty while they cannot be."""

    def read(self) -> Reading[tuple[Observed, ...]]:
        reading = self._file.read()
        self.gpus = self.gpus if isinstance(reading, Ok) else ()
        if not isinstance(reading, Ok):
            return reading
        sample = reading.value
        state = sample.body.get("state")
        why = text(sample.body.get("reason")) or "nobody said why"
        if state == "absent":
            self.gpus = ()
            return Absent(why)
        said = self._look(sample) if sample.is_new else ()
        # What a broken GPU says is told, also where none is left that can be read.
        return Ok(said) if said or self.gpus else Failed(why)

    def _look(self, sample: Sample) -> tuple[Observed, ...]:
        listed = objects(sample.body.get("gpus"), MAX_GPUS)
        every = _with_ranks([self._gpu(each) for each in listed], self._ranks())
        lost = {gpu.uuid for gpu, body in zip(every, listed, strict=True) if body.get("error")}
        self.gpus = tuple(gpu for gpu in every if gpu.uuid not in lost)
        self._activity = {
            gpu.uuid: self._activity.get(gpu.uuid) or GpuActivity() for gpu in self.gpus
        }
        said = [Observed(sample.at, self._stream, sign) for sign in self._signs(sample.monotonic)]
        for gpu, body in zip(every, listed, strict=True):
            xid_at = number(body.get("xid_at"))
            said += self._faults(gpu, xid_at, sample.at)
            if gpu.uuid in lost and gpu.uuid not in self._lost:
                words = f"NVML: GPU {gpu.number}: {str(body.get('error'))[:200]}"
                said.append(Observed(sample.at, self._stream, self._fault(_LOST, gpu, words)))
        self._lost = lost
        return tuple(said)

    def _gpu(self, body: dict[str, Any]) -> Gpu:
        index = whole(body.get("index")) or 0
        uuid = text(body.get("uuid")) or self._uuids.get(index) or f"gpu-{index}"
        if len(self._uuids) < MAX_GPUS:
            self._uuids[index] = uuid
        return _gpu(body, index, uuid)

    def _signs(self, monotonic: float) -> Iterator[Sign]:
        found: list[tuple[Gpu, Activity]] = []
        for gpu in self.gpus:
            memory = self._activity[gpu.uuid]
            activity = memory.add(monotonic, gpu.power_watts, gpu.utilization)
            if activity is not None:
                found.append((gpu, activity))
        nameless = [activity for gpu, activity in found if gpu.rank is None]
        for gpu, activity in found:
            if gpu.rank is not None:
                words = f"GPU {gpu.number} of rank {gpu.rank}: {activity.words}"
                yield Sign(SignSource.GPU_ACTIVITY, activity.state, gpu.rank, words)
        if nameless and len(nameless) == len(self.gpus):
            yield _of_the_pod(nameless)

    def _faults(self, gpu: Gpu, xid_at: float | None, at: float) -> Iterator[Observed]:
        """An Xid is one event, however long it stays the last; memory errors are counted."""
        if gpu.xid is not None and self._xid.get(gpu.uuid) != (gpu.xid, xid_at):
            self._xid[gpu.uuid] = (gpu.xid, xid_at)
            moment = at if xid_at is None else min(xid_at, at)
            yield Observed(moment, self._stream, self._xid_fault(gpu, gpu.xid))
        if gpu.ecc_uncorrected is None:
            return
        known = self._errors.get(gpu.uuid, gpu.ecc_uncorrected)
        self._errors[gpu.uuid] = gpu.ecc_uncorrected
        if gpu.ecc_uncorrected > known:
            more = gpu.ecc_uncorrected - known
            words = f"NVML: {more} more uncorrectable ECC errors on GPU {gpu.number}"
            yield Observed(at, self._stream, self._fault(_ECC, gpu, words))

    def _xid_fault(self, gpu: Gpu, xid: int) -> Fault:
        entry = self._xids.get(xid)
        # In the kernel's own words, by which the number of an unknown one is found again.
        words = f"NVRM: Xid ({gpu.uuid}): {xid}, told by NVML"
        return self._fault(_UNKNOWN_XID if entry is None else entry.id, gpu, words)

    def _fault(self, id: str, gpu: Gpu, words: str) -> Fault:
        entry = self._catalogue.get(id)
        role = Role.ROOT if entry is None else entry.role
        return Fault(id, self._node, gpu.uuid, words, role.value, None, gpu.rank, NODE_GPUS, 0)


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


def _with_ranks(gpus: list[Gpu], ranks: Mapping[int, int]) -> tuple[Gpu, ...]:
    by_pid = [
        gpu._replace(rank=next((ranks[pid] for pid in gpu.pids if pid in ranks), None))
        for gpu in gpus
    ]
    if any(gpu.rank is not None for gpu in by_pid) or len(ranks) != len(gpus):
        return tuple(by_pid)
    in_order = sorted(gpus, key=lambda gpu: gpu.number)
    pairs = zip(in_order, sorted(ranks.values()), strict=True)
    return tuple(gpu._replace(rank=rank) for gpu, rank in pairs)


def _gpu(body: dict[str, Any], index: int, uuid: str) -> Gpu:
    return Gpu(
        number=index,
        uuid=uuid,
        name=text(body.get("name")) or "",
        rank=None,
        utilization=number(body.get("utilization")),
        memory_used_bytes=number(body.get("memory_used_bytes")),
        memory_total_bytes=number(body.get("memory_total_bytes")),
        power_watts=number(body.get("power_watts")),
        temperature_celsius=number(body.get("temperature_celsius")),
        sm_clock_hz=number(body.get("sm_clock_hz")),
        throttle=_names(body.get("throttle")),
        ecc_uncorrected=whole(body.get("ecc_uncorrected")),
        xid=whole(body.get("xid")),
        pids=_pids(body.get("pids")),
    )


def _names(value: object) -> tuple[str, ...]:
    found = value if isinstance(value, list) else []
    return tuple(each[:40] for each in found[:16] if isinstance(each, str))


def _pids(value: object) -> tuple[int, ...]:
    found = value if isinstance(value, list) else []
    return tuple(each for each in map(whole, found[:_MAX_PIDS]) if each is not None)
