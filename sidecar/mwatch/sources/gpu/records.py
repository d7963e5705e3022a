# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One GPU of a document of GPUs (`node/gpus.json`, or what our own NVML gives) as values.

A document of another release may hold anything: what is not of the right kind is not known.

What became worse on one GPU between two looks, in entries of the catalogue.

Where the kernel log has an Xid for it, it is told in the kernel's words: whoever reads those
reads these. A driver that only wants the GPU reset once the job has ended is no reason to end it,
so that is told in words that ask for nothing.

Whether the NVLinks of a GPU err so fast that they slow it down, or are about to fail.

A link corrects what it loses, so a count says little and its rate says all. NVIDIA's own health
check (DCGM) lets CRC errors pass below 100 a second, and no link that had to be brought up anew.

What breaks on GPUs, as faults of the catalogue: each is told once, whoever saw it.

An Xid is an event. All else is a change: what was so at the first look (old memory errors, a
row that could not be replaced last week) did not break this job, and is only shown. Not known
here: whether the job outlives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import structs

from mwatch.model.event import Fault
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.model.observation import Observed
from mwatch.model.snapshot.hardware import Gpu
from mwatch.sources.base.json_file import number, text, whole

_MAX_PIDS = 256
_MAX_NAMES = 16
_MAX_EVENTS = 16
_NAME = 40


class GpuRecord(NamedTuple):
    gpu: Gpu
    error: str | None
    """Why the driver does not reach it."""
    error_code: int | None
    xids: tuple[tuple[int, float | None], ...]
    """The last ones with their wall times, the newest last."""
    events: tuple[tuple[str, float], ...]
    """Other events that the driver gave out, by name."""


def read_record(body: Mapping[str, Any], index: int, uuid: str) -> GpuRecord:
    error = text(body.get("error"))
    gpu = _gpu(body, index, uuid)
    if error is not None:
        known = {"name": gpu.name, "xid": gpu.xid}
        gpu = structs.replace(_gpu(known, index, uuid), is_up=False)
    return GpuRecord(
        gpu, error, whole(body.get("error_code")), _xids(body), _events(body.get("events"))
    )


def _gpu(body: Mapping[str, Any], index: int, uuid: str) -> Gpu:
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
        tensor_active=number(body.get("tensor_active")),
        power_limit_watts=number(body.get("power_limit_watts")),
        ecc_corrected=whole(body.get("ecc_corrected")),
        remapped_rows=_counts(body.get("remapped_rows")),
        remap_pending=_truth(body.get("remap_pending")),
        remap_failed=_truth(body.get("remap_failed")),
        recovery_action=whole(body.get("recovery_action")),
        nvlink_errors=_counts(body.get("nvlink_errors")),
        pcie_replays=whole(body.get("pcie_replays")),
        throttled_seconds=_numbers(body.get("throttled_seconds")),
    )


def _xids(body: Mapping[str, Any]) -> tuple[tuple[int, float | None], ...]:
    """A sampler of before 0.6 told only the last."""
    listed = body.get("xids")
    if not isinstance(listed, list):
        xid = whole(body.get("xid"))
        return () if xid is None else ((xid, number(body.get("xid_at"))),)
    pairs = [each for each in listed[-_MAX_EVENTS:] if isinstance(each, list) and len(each) == 2]
    found = [(whole(xid), number(at)) for xid, at in pairs]
    return tuple((xid, at) for xid, at in found if xid is not None)


def _events(listed: object) -> tuple[tuple[str, float], ...]:
    found = listed[-_MAX_EVENTS:] if isinstance(listed, list) else []
    pairs = [each for each in found if isinstance(each, list) and len(each) == 2]
    said = [(text(name, _NAME), number(at)) for name, at in pairs]
    return tuple((name, at) for name, at in said if name is not None and at is not None)


def _names(value: object) -> tuple[str, ...]:
    found = value if isinstance(value, list) else []
    return tuple(each[:_NAME] for each in found[:_MAX_NAMES] if isinstance(each, str))


def _pids(value: object) -> tuple[int, ...]:
    found = value if isinstance(value, list) else []
    return tuple(each for each in map(whole, found[:_MAX_PIDS]) if each is not None)


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _counts(value: object) -> Mapping[str, int]:
    found = {name: whole(each) for name, each in _items(value)}
    return MappingProxyType({name: each for name, each in found.items() if each is not None})


def _numbers(value: object) -> Mapping[str, float]:
    found = {name: number(each) for name, each in _items(value)}
    return MappingProxyType({name: each for name, each in found.items() if each is not None})


def _items(value: object) -> list[tuple[str, object]]:
    items = list(value.items())[:_MAX_NAMES] if isinstance(value, dict) else []
    return [(name[:_NAME], each) for name, each in items if isinstance(name, str)]


RECOVERY = 154
_ACTIONS = {
    0: "None",
    1: "GPU Reset Required",
    2: "Node Reboot Required",
    5: "Recover IMEX Domain",
    6: "Bus Reset Required",
    7: "System Reboot Required",
}
_AFTER_THE_JOB = {3: "drain P2P", 4: "drain and reset"}


def kernel_words(gpu: Gpu, xid: int) -> str:
    """By which also the number of an unknown Xid is found again."""
    return f"NVRM: Xid ({gpu.uuid}): {xid}"


def changes(before: Gpu, now: Gpu) -> Iterator[tuple[str, str]]:
    """Id of the entry, and words."""
    more = _more(before.ecc_uncorrected, now.ecc_uncorrected)
    if more:
        words = f"NVML: {more} more uncorrectable ECC errors on GPU {now.number}"
        yield "gpu-ecc-uncorrectable", words
    if before.remap_pending is False and now.remap_pending:
        yield "xid-63", f"{kernel_words(now, 63)}, told by NVML: a row waits for a reset"
    if before.remap_failed is False and now.remap_failed:
        yield "xid-64", f"{kernel_words(now, 64)}, told by NVML: a row could not be replaced"
    due, was_due = now.recovery_action, before.recovery_action
    if due is not None and was_due is not None and due != was_due:
        yield f"xid-{RECOVERY}", f"{kernel_words(now, RECOVERY)}, {_recovery(was_due, due)}"


def _recovery(before: int, now: int) -> str:
    if now not in _ACTIONS:
        said = _AFTER_THE_JOB.get(now, f"recovery action {now}")
        return f"told by NVML: {said}, when the job has ended"
    was = _ACTIONS.get(before) or _AFTER_THE_JOB.get(before, "not known")
    return f"GPU recovery action changed from {before:#x} ({was}) to {now:#x} ({_ACTIONS[now]})"


def _more(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else max(now - before, 0)


_LOOK_SECONDS = 60.0
"""Twice the period at which the counters are read."""
_AGAIN_SECONDS = 600.0
_PER_SECOND = {"crc": 100.0, "recovery": 0.0, "recovery_failed": 0.0}
_OTHERS_PER_SECOND = 1.0


class LinkErrors:
    """The memory of one GPU."""

    def __init__(self) -> None:
        self._counts: Mapping[str, int] | None = None
        self._at = 0.0
        self._told_at = float("-inf")

    def add(self, at: float, counts: Mapping[str, int]) -> str | None:
        """What rises, in words; told again only after a while."""
        if self._counts is None:
            if counts:
                self._counts, self._at = counts, at
            return None
        seconds = at - self._at
        if 0 <= seconds < _LOOK_SECONDS:
            return None
        before, self._counts, self._at = self._counts, counts or self._counts, at
        rising = (_rise(name, before, counts, seconds) for name in counts)
        found = ", ".join(words for words in rising if words)
        if not found or at - self._told_at < _AGAIN_SECONDS:
            return None
        self._told_at = at
        return found


def _rise(
    name: str, before: Mapping[str, int], now: Mapping[str, int], seconds: float
) -> str | None:
    more = now[name] - before.get(name, now[name])
    if seconds <= 0 or more <= 0:
        return None  # the counters, or the clock, were set back
    rate = more / seconds
    if rate < _PER_SECOND.get(name, _OTHERS_PER_SECOND):
        return None
    return f"{more} more of kind {name} in {seconds:.0f} s"


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
