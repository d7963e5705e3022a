# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library (NVML), through `nvidia-ml-py`.

The package (module `pynvml`, one file) is bundled in the `.pyz` and imported only if the driver's
library is present: it takes 6 MiB of memory from the `.pyz`, 2 MiB if already compiled. A call that
the driver, the GPU or the package's release does not support returns None; a lost GPU raises
`Lost`. If the driver is wedged, any call may hang: call from a thread that nothing waits for.

Not used because of their cost: PCIe throughput (21 ms a call), the energy counter (3 ms) and the
temperature margin (0.8 ms). The numbers are NVIDIA's; the names are label values and do not change.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, Callable, Sequence

_LIBRARY = "libnvidia-ml.so.1"
UNKNOWN_ERROR = 999
_SUCCESS, _TIMEOUT = 0, 10
_UNINITIALIZED, _DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND = 1, 9, 12
_FUNCTION_NOT_FOUND, _GPU_LOST, _RESET_REQUIRED, _VERSION_MISMATCH = 13, 15, 16, 18
_NOTHING_THERE = frozenset({_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, _FUNCTION_NOT_FOUND})
"""Errors that mean "no driver" when NVML is opened; any other error there is a failure."""
_LIBRARY_DOWN = frozenset({_UNINITIALIZED, _DRIVER_NOT_LOADED, _VERSION_MISMATCH})
"""Errors of later calls after which NVML must be initialized again."""
_LOST = frozenset({_GPU_LOST, _RESET_REQUIRED})

_MAX_GPUS = 64
MAX_LINKS = 36
_MAX_PROCESSES = 64
_WAIT_MILLISECONDS = 2000  # for events; the stop flag is checked at least this often

_THROTTLE_BITS = (
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)
_THROTTLE_CALLS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)  # the current name, and the name in drivers before 535
THROTTLE_TIMES = (
    (74, "sw_power_cap"),
    (75, "thermal"),
    (269, "sw_thermal_slowdown"),
    (270, "hw_thermal_slowdown"),
    (271, "hw_power_brake_slowdown"),
)  # fields, in nanoseconds since the driver was loaded
LINK_COUNT = 91
RECOVERY_ACTION = 230
NVLINK_ERRORS = ((161, "replay"), (162, "recovery"), (163, "crc"))
"""Error fields of one link, up to Hopper."""
NVLINK5_ERRORS = (
    (206, "malformed_packet"),
    (207, "buffer_overrun"),
    (208, "receive"),
    (211, "integrity"),
    (214, "recovery_failed"),
    (215, "recovery"),
    (219, "effective"),
)  # error fields of one link from Blackwell on, without symbol errors, which the link corrects

_EVENT_XID = 0x8
_EVENTS = {
    0x2: "double_bit_ecc",
    _EVENT_XID: "xid",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failed",
    0x1000: "poison",
    0x2000: "fatal_poison",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
_EVENT_MASK = sum(_EVENTS)
_ANY_TENSOR = 5  # the GPM metric, in percent
_CLOCK_SM, _SENSOR_GPU, _VOLATILE = 1, 0, 0
_PROCESS_CALLS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)
_FIELD_KINDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Union member that holds a field's value, indexed by the field's value type."""


class NvmlAbsent(Exception):
    pass


class NvmlBroken(Exception):
    """NVML as a whole does not answer and must be reopened later."""


class Lost(Exception):
    """The driver no longer reaches this GPU."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Unclear(Exception):
    """`Unknown Error`: from one call it means little; from every call, that the GPU is lost."""


OnEvent = Callable[[int, str, int], None]
"""Callback: index of the GPU (-1: unknown), name of the event, its number."""


def open_nvml() -> Nvml:
    """Open NVML. Raises NvmlAbsent without a driver or the package, NvmlBroken on other errors."""
    try:
        ctypes = importlib.import_module("ctypes")
    except ImportError:
        raise NvmlAbsent("this Python has no ctypes") from None
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NvmlAbsent(f"{_LIBRARY} is not there") from None
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        raise NvmlAbsent("nvidia-ml-py is not installed") from None
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # compiling the package from the .pyz leaves 10 MiB of freed memory behind
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        failure = NvmlAbsent if error.value in _NOTHING_THERE else NvmlBroken
        raise failure(f"NVML does not start: {error}") from None
    return Nvml(module)


class Nvml:
    """An open NVML. None: not supported. A call may raise Lost, NvmlBroken or Unclear."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def close(self) -> None:
        self.call("nvmlShutdown")

    def driver(self) -> str | None:
        return _text(self.call("nvmlSystemGetDriverVersion"))

    def devices(self) -> list[Any]:
        """Return by index: the handle; Lost if unreachable; None if not accessible."""
        count = self.call("nvmlDeviceGetCount") or 0
        return [self._device(index) for index in range(min(count, _MAX_GPUS))]

    def uuid(self, device: Any) -> str | None:
        return _text(self.call("nvmlDeviceGetUUID", device))

    def name(self, device: Any) -> str | None:
        return _text(self.call("nvmlDeviceGetName", device))

    def utilization(self, device: Any) -> float | None:
        """Return the share of time with a kernel running; a hung collective also shows 1."""
        found = self.call("nvmlDeviceGetUtilizationRates", device)
        return None if found is None else found.gpu / 100

    def memory(self, device: Any) -> tuple[int, int] | None:
        """Return used and total bytes, if possible without the memory reserved by the driver."""
        newer = getattr(self._module, "nvmlMemory_v2", None)
        found = newer and self.call("nvmlDeviceGetMemoryInfo", device, version=newer)
        found = found or self.call("nvmlDeviceGetMemoryInfo", device)
        return None if found is None else (int(found.used), int(found.total))

    def power_watts(self, device: Any) -> float | None:
        return _thousandth(self.call("nvmlDeviceGetPowerUsage", device))

    def power_limit_watts(self, device: Any) -> float | None:
        return _thousandth(self.call("nvmlDeviceGetEnforcedPowerLimit", device))

    def temperature_celsius(self, device: Any) -> int | None:
        found = self._integer("nvmlDeviceGetTemperatureV", device, _SENSOR_GPU)
        if found is None:
            found = self._integer("nvmlDeviceGetTemperature", device, _SENSOR_GPU)
        return found

    def sm_clock_hz(self, device: Any) -> int | None:
        megahertz = self._integer("nvmlDeviceGetClockInfo", device, _CLOCK_SM)
        return None if megahertz is None else megahertz * 1_000_000

    def throttle(self, device: Any) -> list[str] | None:
        for name in _THROTTLE_CALLS:
            bits = self.call(name, device)
            if bits is not None:
                return [reason for bit, reason in _THROTTLE_BITS if bits & bit]
        return None

    def ecc_errors(self, device: Any, corrected: bool) -> int | None:
        kind = 0 if corrected else 1
        return self._integer("nvmlDeviceGetTotalEccErrors", device, kind, _VOLATILE)

    def remapped_rows(self, device: Any) -> tuple[int, int, bool, bool] | None:
        """Return rows remapped for corrected and uncorrected errors, whether one is pending or
        failed.
        """
        found = self.call("nvmlDeviceGetRemappedRows", device)
        if found is None:
            return None
        corrected, uncorrected, pending, failed = found
        return int(corrected), int(uncorrected), bool(pending), bool(failed)

    def pids(self, device: Any) -> list[int] | None:
        """Return pids, in the host's or the container's namespace depending on the driver."""
        for name in _PROCESS_CALLS:
            found = self.call(name, device)
            if found is not None:
                pids = [int(each.pid) for each in found if each.pid is not None]
                return pids[:_MAX_PROCESSES]
        return None

    def pcie_replays(self, device: Any) -> int | None:
        return self._integer("nvmlDeviceGetPcieReplayCounter", device)

    def fields(self, device: Any, wanted: Sequence[tuple[int, int]]) -> list[float | None]:
        found = self.call("nvmlDeviceGetFieldValues", device, list(wanted))
        return [None] * len(wanted) if found is None else [self._field(each) for each in found]

    def tensor_meter(self, device: Any) -> TensorMeter | None:
        """Return None if the GPU is older than Hopper or this process may not read it."""
        support = self.call("nvmlGpmQueryDeviceSupport", device)
        if support is None or not support.isSupportedDevice:
            return None
        samples = [self.call("nvmlGpmSampleAlloc") for _ in range(2)]
        is_whole = all(each is not None for each in samples)
        request = self._module.c_nvmlGpmMetricsGet_t()
        request.version = self._module.NVML_GPM_METRICS_GET_VERSION
        return TensorMeter(self.call, device, samples, request) if is_whole else None

    def watch_events(
        self, devices: list[Any], report: OnEvent, is_over: Callable[[], bool]
    ) -> None:
        """Report Xids and other events until `is_over`; return if events are not supported or fail.

        The driver reports events only while an event set is registered, and without the kernel
        log's text.
        """
        events = self.call("nvmlEventSetCreate")
        if events is None:
            return
        try:
            watched = self._register(devices, events)
            while watched and not is_over():
                try:
                    event = self._module.nvmlEventSetWait_v2(events, _WAIT_MILLISECONDS)
                except self._module.NVMLError as error:
                    if error.value != _TIMEOUT:
                        return
                    continue
                name = _EVENTS.get(event.eventType)
                if name is not None:
                    report(watched.get(_address(event.device), -1), name, int(event.eventData))
        finally:
            self.call("nvmlEventSetFree", events)

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call by name; None: not supported. Raises Lost, NvmlBroken and Unclear."""
        function = getattr(self._module, name, None)
        if function is None:
            return None
        try:
            return function(*arguments, **named)
        except self._module.NVMLError as error:
            _raise_if_failed(error)
            return None

    def _integer(self, name: str, *arguments: Any) -> int | None:
        found = self.call(name, *arguments)
        return None if found is None else int(found)

    def _device(self, index: int) -> Any:
        try:
            return self._module.nvmlDeviceGetHandleByIndex(index)
        except self._module.NVMLError as error:
            is_lost = error.value in (*_LOST, UNKNOWN_ERROR)
            return Lost(error.value, str(error)) if is_lost else None

    def _register(self, devices: list[Any], events: Any) -> dict[int | None, int]:
        watched: dict[int | None, int] = {}
        for index, device in enumerate(devices):
            if device is None or isinstance(device, Lost):
                continue
            try:
                mask = self._module.nvmlDeviceGetSupportedEventTypes(device) & _EVENT_MASK
            except self._module.NVMLError:
                mask = _EVENT_XID
            try:
                if mask:
                    self._module.nvmlDeviceRegisterEvents(device, mask, events)
                    watched[_address(device)] = index
            except self._module.NVMLError:
                continue
        return watched

    def _field(self, slot: Any) -> float | None:
        code = int(slot.nvmlReturn)
        if code == UNKNOWN_ERROR:
            return None  # one field of many: no evidence that the GPU is lost
        if code != _SUCCESS:
            _raise_if_failed(self._module.NVMLError(code))
            return None
        if slot.valueType >= len(_FIELD_KINDS):
            return None
        return getattr(slot.value, _FIELD_KINDS[slot.valueType])  # type: ignore[no-any-return]


class TensorMeter:
    """Tensor core activity between two reads (GPM). A read costs 1.3 ms."""

    def __init__(
        self, call: Callable[..., Any], device: Any, samples: list[Any], request: Any
    ) -> None:
        self._call, self._device = call, device
        self._samples, self._request = samples, request
        self._is_first = True
        request.numMetrics = 1
        request.metrics[0].metricId = _ANY_TENSOR

    def read(self) -> float | None:
        """Return the activity since the last read, 0 to 1; None on the first read or if unknown."""
        before, now = self._samples
        if self._call("nvmlGpmSampleGet", self._device, now) is None:
            self._is_first = True  # the age of the sample in the buffer is unknown
            return None
        self._samples = [now, before]
        if self._is_first:
            self._is_first = False
            return None
        self._request.sample1, self._request.sample2 = before, now
        if self._call("nvmlGpmMetricsGet", self._request) is None:
            return None
        found = self._request.metrics[0]
        is_known = found.nvmlReturn == _SUCCESS and math.isfinite(found.value)
        return min(max(found.value / 100, 0.0), 1.0) if is_known else None

    def close(self) -> None:
        for sample in self._samples:
            self._call("nvmlGpmSampleFree", sample)


def _raise_if_failed(error: Any) -> None:
    """Raise unless the error only means that the driver does not provide the value."""
    code, reason = error.value, str(error)
    if code in _LOST:
        raise Lost(code, reason) from None
    if code in _LIBRARY_DOWN:
        raise NvmlBroken(reason) from None
    if code == UNKNOWN_ERROR:
        raise Unclear(reason) from None


def _address(device: Any) -> int | None:
    import ctypes  # not every Python has it

    return ctypes.cast(device, ctypes.c_void_p).value


def _text(value: object) -> str | None:
    """Decode a string: older releases of the package return bytes."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
