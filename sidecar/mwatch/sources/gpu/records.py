# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes GPU samples (`node/gpus.json`, or from NVML directly) and reports faults of a GPU.

An Xid is an event. Every other fault is a change: a condition that existed at the first sample (old
memory errors, a row that could not be replaced last week) did not break this job. Each fault is
reported once, whichever route observed it. If the kernel log has an Xid for a fault, the text is
written as the kernel writes it, so that the same patterns match.
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
from mwatch.model.snapshot.pod import Gpu
from mwatch.sources.json_file import number, text, whole

_MAX_PIDS = 256
_MAX_NAMES = 16
_MAX_EVENTS = 16
_NAME = 40


class GpuRecord(NamedTuple):
    gpu: Gpu
    error: str | None
    error_code: int | None
    xids: tuple[tuple[int, float | None], ...]
    """The last Xids with their wall times, oldest first."""
    events: tuple[tuple[str, float], ...]
    """Other events of the driver, with their wall times."""


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
    """Read the Xids; samplers before 0.6 wrote only the last one."""
    listed = body.get("xids")
    if not isinstance(listed, list):
        listed = [[body.get("xid"), body.get("xid_at")]]
    found = [(whole(xid), number(at)) for xid, at in _pairs(listed)]
    return tuple((xid, at) for xid, at in found if xid is not None)


def _events(listed: object) -> tuple[tuple[str, float], ...]:
    found = [(text(name, _NAME), number(at)) for name, at in _pairs(listed)]
    return tuple((name, at) for name, at in found if name is not None and at is not None)


def _pairs(listed: object) -> list[list[Any]]:
    found = listed[-_MAX_EVENTS:] if isinstance(listed, list) else []
    return [each for each in found if isinstance(each, list) and len(each) == 2]


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
"""No reason to end the job, so the text must not match the pattern of the Xid that is one."""


def kernel_text(gpu: Gpu, xid: int) -> str:
    return f"NVRM: Xid ({gpu.uuid}): {xid}"


def changes(before: Gpu, now: Gpu) -> Iterator[tuple[str, str]]:
    """Yield the catalogue entry and a text for each value that became worse."""
    more = _more(before.ecc_uncorrected, now.ecc_uncorrected)
    if more:
        text = f"NVML: {more} more uncorrectable ECC errors on GPU {now.number}"
        yield "gpu-ecc-uncorrectable", text
    if before.remap_pending is False and now.remap_pending:
        yield "xid-63", f"{kernel_text(now, 63)}, reported by NVML: a row waits for a reset"
    if before.remap_failed is False and now.remap_failed:
        yield "xid-64", f"{kernel_text(now, 64)}, reported by NVML: a row could not be replaced"
    due, was_due = now.recovery_action, before.recovery_action
    if due is not None and was_due is not None and due != was_due:
        yield f"xid-{RECOVERY}", f"{kernel_text(now, RECOVERY)}, {_recovery(was_due, due)}"


def _recovery(before: int, now: int) -> str:
    if now not in _ACTIONS:
        action = _AFTER_THE_JOB.get(now, f"recovery action {now}")
        return f"reported by NVML: {action}, when the job has ended"
    was = _ACTIONS.get(before) or _AFTER_THE_JOB.get(before, "unknown")
    return f"GPU recovery action changed from {before:#x} ({was}) to {now:#x} ({_ACTIONS[now]})"


def _more(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else max(now - before, 0)


_LOOK_SECONDS = 60.0
"""Twice the period at which the counters are read."""
_AGAIN_SECONDS = 600.0
_PER_SECOND = {"crc": 100.0, "recovery": 0.0, "recovery_failed": 0.0}
_OTHERS_PER_SECOND = 1.0


class LinkErrors:
    """Reports NVLink errors of one GPU at rates that slow it down or precede a failure.

    A link corrects its errors, so only the rate matters. NVIDIA's health check (DCGM) tolerates
    less than 100 CRC errors a second, and no link that had to be retrained.
    """

    def __init__(self) -> None:
        self._counts: Mapping[str, int] | None = None
        self._at = 0.0
        self._reported_at = float("-inf")

    def add(self, at: float, counts: Mapping[str, int]) -> str | None:
        if self._counts is None:
            if counts:
                self._counts, self._at = counts, at
            return None
        seconds = at - self._at
        if 0 <= seconds < _LOOK_SECONDS:
            return None
        before, self._counts, self._at = self._counts, counts or self._counts, at
        rising = (_rise(name, before, counts, seconds) for name in counts)
        found = ", ".join(text for text in rising if text)
        if not found or at - self._reported_at < _AGAIN_SECONDS:
            return None
        self._reported_at = at
        return found


def _rise(
    name: str, before: Mapping[str, int], now: Mapping[str, int], seconds: float
) -> str | None:
    more = now[name] - before.get(name, now[name])
    if seconds <= 0 or more <= 0:
        return None  # the counters or the clock were reset
    rate = more / seconds
    if rate < _PER_SECOND.get(name, _OTHERS_PER_SECOND):
        return None
    return f"{more} more of kind {name} in {seconds:.0f} s"


_UNKNOWN_XID = "xid-unknown"
_RESET_REQUIRED = 16
_SAME_SECONDS = 10.0
"""Reports within this time are one event: two routes have different clocks and sampling times."""
_MAX_KEPT = 32

_BY_EVENT = {
    "double_bit_ecc": ("gpu-ecc-uncorrectable", "a double-bit ECC error"),
    "fatal_poison": ("gpu-ecc-uncorrectable", "poisoned memory that is not contained"),
    "dram_retirement_failed": ("xid-64", "a row of memory could not be replaced"),
    "gpu_unavailable": ("gpu-lost", "the GPU is no longer available"),
}
"""The other events (contained poison, a replaced row) are reported by an Xid too."""


class _Claim(NamedTuple):
    uuid: str
    id: str
    text: str
    at: float
    witness: str
    key: float | None
    """The time that the witness reported; distinguishes two of its claims."""


class GpuFaults:
    def __init__(
        self, stream: str, catalogue: Mapping[str, CatalogueEntry], node: str | None
    ) -> None:
        self._stream, self._catalogue, self._node = stream, catalogue, node
        self._xids = {entry.xid: entry.id for entry in catalogue.values() if entry.xid is not None}
        self._reported: dict[tuple[str, str], deque[_Claim]] = {}
        self._before: dict[str, Gpu] = {}
        self._lost: set[str] = set()
        self._links: dict[str, LinkErrors] = {}

    def check(self, record: GpuRecord, at: float, route: str, file: str) -> Iterator[Observed]:
        """Yield new faults; `at` is the wall time of the sample."""
        found = [*self._events(record, at, route)]
        found += self._losses(record, at) if record.error else self._changes(record.gpu, at)
        for claim in found:
            known = self._reported.setdefault((claim.uuid, claim.id), deque(maxlen=_MAX_KEPT))
            if _is_new(claim, known):
                known.append(claim)
                fault = self._fault(claim, record.gpu, file)
                yield Observed(min(claim.at, at), self._stream, fault)

    def _events(self, record: GpuRecord, at: float, route: str) -> Iterator[_Claim]:
        gpu = record.gpu
        before = self._before.get(gpu.uuid, gpu)
        for xid, seen_at in record.xids:
            if xid == RECOVERY and before.recovery_action is not None:
                continue  # the field `recovery_action` changes too, and is more precise
            id = self._xids.get(xid, _UNKNOWN_XID)
            moment = at if seen_at is None else seen_at
            text = f"{kernel_text(gpu, xid)}, reported by NVML"
            yield _Claim(gpu.uuid, id, text, moment, f"xid by {route}", seen_at)
        for name, seen_at in record.events:
            if name in _BY_EVENT:
                id, event = _BY_EVENT[name]
                text = f"NVML: GPU {gpu.number}: {event}"
                yield _Claim(gpu.uuid, id, text, seen_at, f"event by {route}", seen_at)

    def _losses(self, record: GpuRecord, at: float) -> Iterator[_Claim]:
        gpu = record.gpu
        if gpu.uuid not in self._lost:
            self._lost.add(gpu.uuid)
            is_reset = record.error_code == _RESET_REQUIRED
            id = "gpu-reset-required" if is_reset else "gpu-lost"
            text = f"NVML: GPU {gpu.number}: {record.error}"
            yield _Claim(gpu.uuid, id, text, at, "sample", at)

    def _changes(self, gpu: Gpu, at: float) -> Iterator[_Claim]:
        self._lost.discard(gpu.uuid)
        before = self._before.get(gpu.uuid, gpu)
        self._before[gpu.uuid] = gpu
        links = self._links.setdefault(gpu.uuid, LinkErrors())
        rising = links.add(at, gpu.nvlink_errors)
        found = [*changes(before, gpu)]
        if rising is not None:
            found.append(("nvlink-errors", f"NVML: GPU {gpu.number}: NVLink errors: {rising}"))
        yield from (_Claim(gpu.uuid, id, what, at, "sample", at) for id, what in found)

    def _fault(self, claim: _Claim, gpu: Gpu, file: str) -> Fault:
        entry = self._catalogue.get(claim.id)
        role = Role.ROOT if entry is None else entry.role
        text = claim.text[:400]
        return Fault(claim.id, self._node, gpu.uuid, text, role.value, None, gpu.rank, file, 0)


def _is_new(claim: _Claim, known: Iterable[_Claim]) -> bool:
    """Return whether neither this witness, nor another one at about that time, reported it."""
    for each in known:
        if each.id == _UNKNOWN_XID and each.text != claim.text:
            continue
        if each.witness == claim.witness:
            if each.key == claim.key:
                return False
        elif abs(each.at - claim.at) <= _SAME_SECONDS:
            return False
    return True
