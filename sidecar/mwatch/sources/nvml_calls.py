# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of NVML that mwatch needs, by `nvidia-ml-py`: the same as `mwatch_trainer.nvml`.

The package is loaded only where there is a driver's library: it costs 5 MiB. Releases of it lack
calls as drivers do; both are "not supported".
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from mwatch.sources import nvml_events
from mwatch.sources.nvml_tensor import Meter
from mwatch_trainer.nvml_contract import (
    MAX_GPUS,
    NOTHING_THERE,
    THROTTLE_CALLS,
    UNKNOWN_ERROR,
    Absent,
    Broken,
    Tell,
    check,
    throttle_names,
    unopened,
)

_LIBRARY = "libnvidia-ml.so.1"
_CLOCK_SM, _SENSOR_GPU, _VOLATILE = 1, 0, 0
_PROCESS_CALLS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)
_FIELD_KINDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def open_nvml() -> NvmlCalls:
    """Raises Absent where there is no driver or no package, Broken where NVML does not start."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        raise Absent(f"{_LIBRARY} is not there") from None
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        raise Absent("nvidia-ml-py is not installed") from None
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        failure = Absent if error.value in NOTHING_THERE else Broken
        raise failure(f"NVML does not start: {error}") from None
    return NvmlCalls(module)


class NvmlCalls:
    def __init__(self, module: Any) -> None:
        self._module = module

    def close(self) -> None:
        self.ask("nvmlShutdown")

    def driver(self) -> str | None:
        return _text(self.ask("nvmlSystemGetDriverVersion"))

    def devices(self) -> list[Any]:
        """By index: its handle, Lost where the driver does not reach it, None: not for us."""
        count = self.ask("nvmlDeviceGetCount") or 0
        return [self._device(index) for index in range(min(count, MAX_GPUS))]

    def uuid(self, device: Any) -> str | None:
        return _text(self.ask("nvmlDeviceGetUUID", device))

    def name(self, device: Any) -> str | None:
        return _text(self.ask("nvmlDeviceGetName", device))

    def utilization(self, device: Any) -> float | None:
        found = self.ask("nvmlDeviceGetUtilizationRates", device)
        return None if found is None else found.gpu / 100

    def memory(self, device: Any) -> tuple[int, int] | None:
        newer = getattr(self._module, "nvmlMemory_v2", None)
        found = newer and self.ask("nvmlDeviceGetMemoryInfo", device, version=newer)
        found = found or self.ask("nvmlDeviceGetMemoryInfo", device)
        return None if found is None else (int(found.used), int(found.total))

    def power_watts(self, device: Any) -> float | None:
        return _thousandth(self.ask("nvmlDeviceGetPowerUsage", device))

    def power_limit_watts(self, device: Any) -> float | None:
        return _thousandth(self.ask("nvmlDeviceGetEnforcedPowerLimit", device))

    def temperature_celsius(self, device: Any) -> int | None:
        found = self.ask("nvmlDeviceGetTemperatureV", device, _SENSOR_GPU)
        if found is None:
            found = self.ask("nvmlDeviceGetTemperature", device, _SENSOR_GPU)
        return None if found is None else int(found)

    def sm_clock_hz(self, device: Any) -> int | None:
        found = self.ask("nvmlDeviceGetClockInfo", device, _CLOCK_SM)
        return None if found is None else int(found) * 1_000_000

    def throttle(self, device: Any) -> list[str] | None:
        for name in THROTTLE_CALLS:
            bits = self.ask(name, device)
            if bits is not None:
                return throttle_names(int(bits))
        return None

    def ecc_errors(self, device: Any, corrected: bool) -> int | None:
        kind = 0 if corrected else 1
        found = self.ask("nvmlDeviceGetTotalEccErrors", device, kind, _VOLATILE)
        return None if found is None else int(found)

    def remapped_rows(self, device: Any) -> tuple[int, int, bool, bool] | None:
        found = self.ask("nvmlDeviceGetRemappedRows", device)
        if found is None:
            return None
        corrected, uncorrected, pending, failed = found
        return int(corrected), int(uncorrected), bool(pending), bool(failed)

    def pids(self, device: Any) -> list[int] | None:
        for name in _PROCESS_CALLS:
            found = self.ask(name, device)
            if found is not None:
                return [int(each.pid) for each in found if each.pid is not None]
        return None

    def pcie_replays(self, device: Any) -> int | None:
        found = self.ask("nvmlDeviceGetPcieReplayCounter", device)
        return None if found is None else int(found)

    def fields(self, device: Any, wanted: Sequence[tuple[int, int]]) -> list[float | None]:
        found = self.ask("nvmlDeviceGetFieldValues", device, list(wanted))
        return [None] * len(wanted) if found is None else [self._field(each) for each in found]

    def tensor_meter(self, device: Any) -> Meter | None:
        support = self.ask("nvmlGpmQueryDeviceSupport", device)
        if support is None or not support.isSupportedDevice:
            return None
        samples = [self.ask("nvmlGpmSampleAlloc") for _ in range(2)]
        is_whole = all(each is not None for each in samples)
        return Meter(self._module, self.ask, device, samples) if is_whole else None

    def watch(self, devices: list[Any], tell: Tell, is_over: Callable[[], bool]) -> None:
        nvml_events.watch(self._module, self.ask, devices, tell, is_over)

    def ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        """None: not supported here. Raises Lost, Broken and Unclear."""
        function = getattr(self._module, name, None)
        if function is None:
            return None
        try:
            return function(*arguments, **named)
        except self._module.NVMLError as error:
            words = str(error)
            check(error.value, lambda _: words)
            return None

    def _device(self, index: int) -> Any:
        try:
            return self._module.nvmlDeviceGetHandleByIndex(index)
        except self._module.NVMLError as error:
            words = str(error)
            return unopened(error.value, lambda _: words)

    def _field(self, slot: Any) -> float | None:
        code = int(slot.nvmlReturn)
        if code == UNKNOWN_ERROR:
            return None  # one field of many
        is_read = check(code, lambda told: str(self._module.NVMLError(told)))
        if not is_read or slot.valueType >= len(_FIELD_KINDS):
            return None
        return getattr(slot.value, _FIELD_KINDS[slot.valueType])  # type: ignore[no-any-return]


def _text(value: object) -> str | None:
    """Older releases of the package give bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
