# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One GPU of a document of GPUs (`node/gpus.json`, or what our own NVML gives) as values.

A document of another release may hold anything: what is not of the right kind is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from mwatch.model.gpu import Gpu
from mwatch.sources.node_file import number, text, whole

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
        gpu = _gpu(known, index, uuid)._replace(is_up=False)
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
