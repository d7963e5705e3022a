# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What breaks on GPUs, as faults of the catalogue: each is told once, whoever saw it.

An Xid is an event. All else is a change: what was so at the first look (old memory errors, a
row that could not be replaced last week) did not break this job, and is only shown. Not known
here: whether the job outlives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from mwatch.model.event import Fault
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.model.gpu import Gpu
from mwatch.model.observation import Observed
from mwatch.sources.gpu_changes import RECOVERY, changes, kernel_words
from mwatch.sources.gpu_link_errors import LinkErrors
from mwatch.sources.gpu_record import GpuRecord

_UNKNOWN_XID = "xid-unknown"
_RESET_REQUIRED = 16
_SAME_SECONDS = 10.0
"""Two witnesses tell of one event by their own clocks, and look at their own times."""
_MAX_KEPT = 32

_BY_EVENT = {
    "double_bit_ecc": ("gpu-ecc-uncorrectable", "a double-bit ECC error"),
    "fatal_poison": ("gpu-ecc-uncorrectable", "poisoned memory that is not contained"),
    "dram_retirement_failed": ("xid-64", "a row of memory could not be replaced"),
    "gpu_unavailable": ("gpu-lost", "the GPU is no longer available"),
}
"""The other events (contained poison, a row that was replaced) come with an Xid that says it."""


class _Claim(NamedTuple):
    """That a fault happened, as one witness saw it."""

    uuid: str
    id: str
    words: str
    at: float
    witness: str
    key: float | None
    """What tells two claims of one witness apart: the moment that it named."""


class GpuFaults:
    def __init__(
        self, stream: str, catalogue: Mapping[str, CatalogueEntry], node: str | None
    ) -> None:
        self._stream, self._catalogue, self._node = stream, catalogue, node
        self._xids = {entry.xid: entry.id for entry in catalogue.values() if entry.xid is not None}
        self._told: dict[tuple[str, str], deque[_Claim]] = {}
        """By GPU and entry of the catalogue: of both there are not many."""
        self._before: dict[str, Gpu] = {}
        """As last read, while the driver reached it."""
        self._lost: set[str] = set()
        self._links: dict[str, LinkErrors] = {}

    def look(self, record: GpuRecord, at: float, route: str, file: str) -> Iterator[Observed]:
        """`at` is the wall time of the sample."""
        found = [*self._events(record, at, route)]
        found += self._losses(record, at) if record.error else self._changes(record.gpu, at)
        for claim in found:
            told = self._told.setdefault((claim.uuid, claim.id), deque(maxlen=_MAX_KEPT))
            if _is_new(claim, told):
                told.append(claim)
                fault = self._fault(claim, record.gpu, file)
                yield Observed(min(claim.at, at), self._stream, fault)

    def _events(self, record: GpuRecord, at: float, route: str) -> Iterator[_Claim]:
        gpu = record.gpu
        before = self._before.get(gpu.uuid, gpu)
        for xid, seen_at in record.xids:
            if xid == RECOVERY and before.recovery_action is not None:
                continue  # its field changes too, and says to what
            id = self._xids.get(xid, _UNKNOWN_XID)
            moment = at if seen_at is None else seen_at
            words = f"{kernel_words(gpu, xid)}, told by NVML"
            yield _Claim(gpu.uuid, id, words, moment, f"xid by {route}", seen_at)
        for name, seen_at in record.events:
            if name in _BY_EVENT:
                id, said = _BY_EVENT[name]
                words = f"NVML: GPU {gpu.number}: {said}"
                yield _Claim(gpu.uuid, id, words, seen_at, f"event by {route}", seen_at)

    def _losses(self, record: GpuRecord, at: float) -> Iterator[_Claim]:
        gpu = record.gpu
        if gpu.uuid not in self._lost:
            self._lost.add(gpu.uuid)
            is_reset = record.error_code == _RESET_REQUIRED
            id = "gpu-reset-required" if is_reset else "gpu-lost"
            words = f"NVML: GPU {gpu.number}: {record.error}"
            yield _Claim(gpu.uuid, id, words, at, "look", at)

    def _changes(self, gpu: Gpu, at: float) -> Iterator[_Claim]:
        self._lost.discard(gpu.uuid)
        before = self._before.get(gpu.uuid, gpu)
        self._before[gpu.uuid] = gpu
        links = self._links.setdefault(gpu.uuid, LinkErrors())
        rising = links.add(at, gpu.nvlink_errors)
        found = [*changes(before, gpu)]
        if rising is not None:
            found.append(("nvlink-errors", f"NVML: GPU {gpu.number}: NVLink errors: {rising}"))
        for id, words in found:
            yield _Claim(gpu.uuid, id, words, at, "look", at)

    def _fault(self, claim: _Claim, gpu: Gpu, file: str) -> Fault:
        entry = self._catalogue.get(claim.id)
        role = Role.ROOT if entry is None else entry.role
        words = claim.words[:400]
        return Fault(claim.id, self._node, gpu.uuid, words, role.value, None, gpu.rank, file, 0)


def _is_new(claim: _Claim, told: Iterable[_Claim]) -> bool:
    """Neither told by this witness already, nor by another one at about that time."""
    for each in told:
        if each.id == _UNKNOWN_XID and each.words != claim.words:
            continue
        if each.witness == claim.witness:
            if each.key == claim.key:
                return False
        elif abs(each.at - claim.at) <= _SAME_SECONDS:
            return False
    return True
