# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of NVIDIA's management library (NVML) that mwatch needs, through ctypes.

A call that the driver or the GPU does not support gives None; a GPU that is lost raises `Lost`,
which is a fault and not a missing value. Left out for what they cost: PCIe throughput (21 ms a
call), the energy counter (3 ms) and the temperature margin (0.8 ms).
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Sequence

from mwatch_trainer import nvml_events, nvml_tensor
from mwatch_trainer.nvml_contract import (
    MAX_GPUS,
    MAX_PROCESSES,
    SUCCESS,
    THROTTLE_CALLS,
    UNKNOWN_ERROR,
    Tell,
    TensorMeter,
    check,
    throttle_names,
    unopened,
)
from mwatch_trainer.nvml_library import LIBRARY, Library
from mwatch_trainer.nvml_types import (
    FIELD_KINDS,
    Field,
    Memory,
    Memory2,
    Process,
    Temperature,
    Utilization,
    version,
)

_CLOCK_SM, _SENSOR_GPU, _VOLATILE = 1, 0, 0
_PROCESS_CALLS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)


class Nvml:
    """Raises Absent or Broken where it cannot be used."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = Library(library)

    def close(self) -> None:
        self._library.call("nvmlShutdown")

    def driver(self) -> str | None:
        return self._library.text("nvmlSystemGetDriverVersion")

    def devices(self) -> list[Any]:
        """By index: its handle, Lost where the driver does not reach it, None: not for us."""
        count = self._library.number("nvmlDeviceGetCount_v2") or 0
        return [self._device(index) for index in range(min(count, MAX_GPUS))]

    def uuid(self, device: Any) -> str | None:
        return self._library.text("nvmlDeviceGetUUID", device)

    def name(self, device: Any) -> str | None:
        return self._library.text("nvmlDeviceGetName", device)

    def utilization(self, device: Any) -> float | None:
        """A kernel was resident for this part of the time. A hung collective reads 1."""
        value = Utilization()
        is_read = self._library.fill("nvmlDeviceGetUtilizationRates", device, ctypes.byref(value))
        return value.gpu / 100 if is_read else None

    def memory(self, device: Any) -> tuple[int, int] | None:
        """Bytes used and in all."""
        value = Memory2(version=version(Memory2, 2))
        if self._library.fill("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(value)):
            return value.used, value.total
        older = Memory()
        is_read = self._library.fill("nvmlDeviceGetMemoryInfo", device, ctypes.byref(older))
        return (older.used, older.total) if is_read else None

    def power_watts(self, device: Any) -> float | None:
        return _thousandth(self._library.number("nvmlDeviceGetPowerUsage", device))

    def power_limit_watts(self, device: Any) -> float | None:
        return _thousandth(self._library.number("nvmlDeviceGetEnforcedPowerLimit", device))

    def temperature_celsius(self, device: Any) -> int | None:
        value = Temperature(version=version(Temperature, 1), sensor=_SENSOR_GPU)
        if self._library.fill("nvmlDeviceGetTemperatureV", device, ctypes.byref(value)):
            return int(value.celsius)
        sensor = ctypes.c_int(_SENSOR_GPU)
        return self._library.number("nvmlDeviceGetTemperature", device, sensor)

    def sm_clock_hz(self, device: Any) -> int | None:
        clock = ctypes.c_int(_CLOCK_SM)
        value = self._library.number("nvmlDeviceGetClockInfo", device, clock)
        return None if value is None else value * 1_000_000

    def throttle(self, device: Any) -> list[str] | None:
        for name in THROTTLE_CALLS:
            bits = self._library.number(name, device, kind=ctypes.c_ulonglong)
            if bits is not None:
                return throttle_names(bits)
        return None

    def ecc_errors(self, device: Any, corrected: bool) -> int | None:
        """Since the driver was loaded."""
        kinds = (ctypes.c_int(0 if corrected else 1), ctypes.c_int(_VOLATILE))
        name = "nvmlDeviceGetTotalEccErrors"
        return self._library.number(name, device, *kinds, kind=ctypes.c_ulonglong)

    def remapped_rows(self, device: Any) -> tuple[int, int, bool, bool] | None:
        """By corrected errors, by uncorrected ones, one is pending, one has failed."""
        rows = [ctypes.c_uint() for _ in range(4)]
        pointers = map(ctypes.byref, rows)
        if not self._library.fill("nvmlDeviceGetRemappedRows", device, *pointers):
            return None
        corrected, uncorrected, pending, failed = (each.value for each in rows)
        return corrected, uncorrected, bool(pending), bool(failed)

    def pids(self, device: Any) -> list[int] | None:
        """Of the host or of the container, as the driver likes: no key to join by."""
        for name in _PROCESS_CALLS:
            count = ctypes.c_uint(MAX_PROCESSES)
            found = (Process * MAX_PROCESSES)()
            if self._library.fill(name, device, ctypes.byref(count), found):
                return [each.pid for each in found[: min(count.value, MAX_PROCESSES)]]
        return None

    def pcie_replays(self, device: Any) -> int | None:
        return self._library.number("nvmlDeviceGetPcieReplayCounter", device)

    def fields(self, device: Any, wanted: Sequence[tuple[int, int]]) -> list[float | None]:
        """The value of each (field, scope), all in one call."""
        array = (Field * len(wanted))()
        for slot, (number, scope) in zip(array, wanted):
            slot.id, slot.scope = number, scope
        name = "nvmlDeviceGetFieldValues"
        if not self._library.fill(name, device, ctypes.c_int(len(wanted)), array):
            return [None] * len(wanted)
        return [self._field(slot) for slot in array]

    def tensor_meter(self, device: Any) -> TensorMeter | None:
        return nvml_tensor.open_meter(self._library, device)

    def watch(self, devices: list[Any], tell: Tell, is_over: Callable[[], bool]) -> None:
        nvml_events.watch(self._library, devices, tell, is_over)

    def _device(self, index: int) -> Any:
        handle = ctypes.c_void_p()
        name = "nvmlDeviceGetHandleByIndex_v2"
        code = self._library.call(name, ctypes.c_uint(index), ctypes.byref(handle))
        return handle if code == SUCCESS else unopened(code, self._library.said)

    def _field(self, slot: Field) -> float | None:
        if slot.code == UNKNOWN_ERROR:
            return None  # one field of many
        is_read = check(slot.code, self._library.said)
        if not is_read or slot.kind >= len(FIELD_KINDS):
            return None
        return getattr(slot.value, FIELD_KINDS[slot.kind])  # type: ignore[no-any-return]


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
