# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a pod: each rank's GPU activity, and what breaks on them.

They are seen by one of two routes: the records that the sampler beside the trainer writes, as
long as those are fresh and name a GPU, or else NVML in this container, where it sees any. What is
known of a GPU belongs to its UUID and not to a route, so a change of route invents nothing: a GPU
that the other route does not see is not lost, and an Xid that both saw is one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from mwatch.model.fault import CatalogueEntry
from mwatch.model.gpu import Gpu
from mwatch.model.observation import Observed
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.gpu_faults import GpuFaults
from mwatch.sources.gpu_ranks import Ranks, nobody, ranks_of
from mwatch.sources.gpu_record import GpuRecord, read_record
from mwatch.sources.gpu_signs import GpuSigns
from mwatch.sources.node_file import NodeFile, Sample, objects, text, whole
from mwatch.sources.nvml import Nvml
from mwatch_trainer.contract import NODE_FOLDER, NODE_GPUS

MAX_GPUS = 64
Route = Literal["wrapper", "nvml"]
_FILES: dict[Route, str] = {"wrapper": f"{NODE_FOLDER}/{NODE_GPUS}", "nvml": "nvml"}
_REST_SECONDS = 60.0
"""Our own NVML stays open so long after the wrapper's records are back."""


class Gpus:
    def __init__(
        self,
        folder: str,
        stream: str,
        catalogue: Mapping[str, CatalogueEntry],
        *,
        ranks: Ranks = nobody,
        node: str | None = None,
        nvml: Nvml | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`folder` is `$MWATCH_DIR`; `ranks` tells the rank of each pid, as the kernel sees it.

        One is made for each attempt, and tells nothing of before; `nvml` may outlive it.
        """
        self._file = NodeFile(os.path.join(folder, NODE_FOLDER, NODE_GPUS), clock)
        self._nvml = Nvml(clock=clock) if nvml is None else nvml
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

    def _look(self, route: Route, sample: Sample) -> Reading[tuple[Observed, ...]]:
        if sample.monotonic < self._began:
            return Absent("what is there was read before this attempt")
        self.route = route
        said = tuple(self._read(route, sample)) if sample.is_new else ()
        # What a broken GPU says is told, also where none is left that can be read.
        if said or any(gpu.is_up for gpu in self.gpus):
            return Ok(said)
        return Failed(text(sample.body.get("reason")) or "nobody said why")

    def _read(self, route: Route, sample: Sample) -> list[Observed]:
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
            gpu._replace(rank=before.get(gpu.uuid) if rank is None and not gpu.is_up else rank)
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


def _with_gpus(reading: Reading[Sample]) -> Reading[Sample]:
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
