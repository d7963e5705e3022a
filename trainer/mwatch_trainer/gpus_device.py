# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One GPU: what is read of it each time, and what only now and then for what it costs."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence, TypeVar

from mwatch_trainer.nvml_contract import (
    LINK_COUNT,
    MAX_LINKS,
    NVLINK5_ERRORS,
    NVLINK_ERRORS,
    RECOVERY_ACTION,
    THROTTLE_TIMES,
    UNKNOWN_ERROR,
    Calls,
    Lost,
    TensorMeter,
    Unclear,
)

RARELY_SECONDS = 30.0
"""PCIe replays cost 0.13 ms, the counters of 18 links as much again or more."""
_UNCLEAR_LIMIT = 2
"""An unknown error of every call in so many looks: the GPU is gone. One may be a hiccup."""

T = TypeVar("T")


class Device:
    def __init__(self, nvml: Calls, handle: Any, tensor_seconds: float) -> None:
        self._nvml, self._handle = nvml, handle
        self._tensor_seconds = tensor_seconds
        self._constant: dict[str, Any] = {}
        self._rare: dict[str, Any] = {}
        self._rare_at = -math.inf
        self._meter: TensorMeter | None = None
        self._is_metered = False
        self._tensor: float | None = None
        self._tensor_at = -math.inf
        self._unclear = 0
        self._unclear_looks = 0

    def close(self) -> None:
        if self._meter is not None:
            self._meter.close()
            self._meter = None

    def known(self) -> dict[str, Any]:
        """What a GPU that is lost can no longer tell."""
        return dict(self._constant)

    def read(self, now: float) -> dict[str, Any]:
        """Raises Lost and Broken. What a call does not give is None."""
        if not self._constant:
            # Both are the keys by which all else is told: without them there is no reading.
            self._constant = {key: self._ask(call) for key, call in self._constants()}
        facts = self._core()
        facts.update(self._counters())
        if now - self._tensor_at >= self._tensor_seconds:
            self._tensor, self._tensor_at = self._tensor_now(), now
        if now - self._rare_at >= RARELY_SECONDS:
            self._rare, self._rare_at = self._seldom(), now
        return {**self._constant, **facts, "tensor_active": self._tensor, **self._rare}

    def _constants(self) -> Sequence[tuple[str, Callable[[Any], Any]]]:
        return (("uuid", self._nvml.uuid), ("name", self._nvml.name))

    def _core(self) -> dict[str, Any]:
        """What every GPU can tell. None of it, but unknown errors: it is lost."""
        self._unclear = 0
        nvml = self._nvml
        used, total = self._ask(nvml.memory) or (None, None)
        facts = {
            "utilization": self._ask(nvml.utilization),
            "memory_used_bytes": used,
            "memory_total_bytes": total,
            "power_watts": self._ask(nvml.power_watts),
            "temperature_celsius": self._ask(nvml.temperature_celsius),
        }
        is_silent = self._unclear and all(value is None for value in facts.values())
        self._unclear_looks = self._unclear_looks + 1 if is_silent else 0
        if self._unclear_looks >= _UNCLEAR_LIMIT:
            raise Lost(UNKNOWN_ERROR, "Unknown Error, whatever it is asked")
        return facts

    def _counters(self) -> dict[str, Any]:
        nvml = self._nvml
        rows = self._ask(nvml.remapped_rows)
        by_field = [(field, 0) for field, _ in THROTTLE_TIMES] + [(RECOVERY_ACTION, 0)]
        *times, action = self._fields(by_field)
        held = zip((name for _, name in THROTTLE_TIMES), times)
        return {
            "sm_clock_hz": self._ask(nvml.sm_clock_hz),
            "power_limit_watts": self._ask(nvml.power_limit_watts),
            "throttle": self._ask(nvml.throttle),
            "throttled_seconds": {name: ns / 1e9 for name, ns in held if ns is not None},
            "ecc_uncorrected": self._ask(lambda device: nvml.ecc_errors(device, False)),
            "ecc_corrected": self._ask(lambda device: nvml.ecc_errors(device, True)),
            "remapped_rows": rows and {"corrected": rows[0], "uncorrected": rows[1]},
            "remap_pending": None if rows is None else rows[2],
            "remap_failed": None if rows is None else rows[3],
            "recovery_action": None if action is None else int(action),
            "pids": self._ask(nvml.pids),
        }

    def _seldom(self) -> dict[str, Any]:
        return {
            "pcie_replays": self._ask(self._nvml.pcie_replays),
            "nvlink_errors": self._link_errors(),
        }

    def _link_errors(self) -> dict[str, int]:
        """Over all links that count; empty where there is none, or none can be asked."""
        links = int(self._fields([(LINK_COUNT, 0)])[0] or 0)
        for table in (NVLINK_ERRORS, NVLINK5_ERRORS):
            found: dict[str, int] = {}
            wanted = [(field, link) for field, _ in table for link in range(min(links, MAX_LINKS))]
            names = dict(table)
            for (field, _), value in zip(wanted, self._fields(wanted)):
                if value is not None:
                    found[names[field]] = found.get(names[field], 0) + int(value)
            if found:
                return found
        return {}

    def _fields(self, wanted: Sequence[tuple[int, int]]) -> list[float | None]:
        if not wanted:
            return []
        found = self._ask(lambda device: self._nvml.fields(device, wanted))
        return [None] * len(wanted) if found is None else found

    def _tensor_now(self) -> float | None:
        if not self._is_metered:
            self._is_metered = True
            self._meter = self._ask(self._nvml.tensor_meter)
        meter = self._meter
        return None if meter is None else self._ask(lambda _: meter.read())

    def _ask(self, call: Callable[[Any], T]) -> T | None:
        try:
            return call(self._handle)
        except Unclear:
            self._unclear += 1
            return None
