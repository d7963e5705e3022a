# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The calls of NVIDIA's management library (NVML) that mwatch needs, through ctypes.

A call that the driver or the GPU does not support gives None; a GPU that is lost raises `Lost`,
which is a fault and not a missing value. Left out for what they cost: PCIe throughput (21 ms a
call), the energy counter (3 ms) and the temperature margin (0.8 ms).

The library itself: a call by its name, and what its answer means.

A driver that lacks a call answers as one that does not support it. A driver that is wedged can
make any call hang: call from a thread that nobody waits for.

The structures that NVML fills, laid out as its header has them.

A structure with a version holds its own size and number in it, by which the driver tells which
one it was given.

Xids and the other events of GPUs, as the driver gives them out.

Only what happens while somebody is registered is told, and without the words of the kernel log.

How much the tensor cores of a GPU worked between two looks (GPM, Hopper and newer).

A GPU that is older, and a process that may not read it, have no meter. A read costs about 1.3 ms.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Callable, Sequence

from mwatch_trainer.gpu.nvml_api import (
    ANY_TENSOR,
    EVENT_MASK,
    EVENT_XID,
    FUNCTION_NOT_FOUND,
    MAX_GPUS,
    MAX_PROCESSES,
    NOTHING_THERE,
    SUCCESS,
    THROTTLE_CALLS,
    TIMEOUT,
    UNKNOWN_ERROR,
    WAIT_MILLISECONDS,
    Lost,
    NvmlAbsent,
    NvmlBroken,
    Tell,
    TensorMeter,
    Unclear,
    check,
    event_name,
    throttle_names,
    unopened,
)
from mwatch_trainer.gpu.nvml_api import check as checked

LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96


class Library:
    """Raises Absent where there is none, Broken where it does not start."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library: Any = ctypes.CDLL(library)
        except OSError:
            raise NvmlAbsent(f"{library} is not there") from None
        code = self.call("nvmlInit_v2")
        if code in NOTHING_THERE:
            raise NvmlAbsent(f"NVML does not start: {self.said(code)}")
        if code != SUCCESS:
            raise NvmlBroken(f"NVML does not start: {self.said(code)}")

    def call(self, name: str, *arguments: Any) -> int:
        function = getattr(self._library, name, None)
        return int(function(*arguments)) if function is not None else FUNCTION_NOT_FOUND

    def fill(self, name: str, *arguments: Any) -> bool:
        """Whether what the arguments point to was filled. Raises Lost, Broken, Unclear."""
        return checked(self.call(name, *arguments), self.said)

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        value = kind()
        return int(value.value) if self.fill(name, *arguments, ctypes.byref(value)) else None

    def text(self, name: str, *arguments: Any) -> str | None:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        if not self.fill(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES)):
            return None
        return buffer.value.decode("utf-8", "replace")

    def said(self, code: int) -> str:
        function = getattr(self._library, "nvmlErrorString", None)
        if function is None:
            return f"error {code}"
        function.restype = ctypes.c_char_p
        return (function(ctypes.c_int(code)) or b"").decode("utf-8", "replace") or f"error {code}"


_GPM_METRICS = 512
"""More than any release has. The driver touches only as many as are asked for, but whoever
compiled it had an array of its own length in mind."""


def version(structure: type[ctypes.Structure], number: int) -> int:
    return ctypes.sizeof(structure) | (number << 24)


class Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class NvmlMemory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Memory2(ctypes.Structure):
    """Here `used` does not hold what the driver keeps for itself."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Temperature(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("sensor", ctypes.c_int),
        ("celsius", ctypes.c_int),
    )


class NvmlProcess(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Value(ctypes.Union):
    _fields_ = (
        ("double", ctypes.c_double),
        ("uint", ctypes.c_uint),
        ("ulong", ctypes.c_ulong),
        ("ulonglong", ctypes.c_ulonglong),
        ("longlong", ctypes.c_longlong),
        ("int", ctypes.c_int),
        ("ushort", ctypes.c_ushort),
    )


FIELD_KINDS = ("double", "uint", "ulong", "ulonglong", "longlong", "int", "ushort")
"""By the number of its type, which name of the union holds the value of a field."""


class Field(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", _Value),
    )


class GpmMetric(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("short_name", ctypes.c_char_p),
        ("long_name", ctypes.c_char_p),
        ("unit", ctypes.c_char_p),
    )


class GpmMetrics(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("metrics", GpmMetric * _GPM_METRICS),
    )


class GpmSupport(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("is_supported", ctypes.c_uint))


def watch(library: Library, devices: list[Any], tell: Tell, is_over: Callable[[], bool]) -> None:
    """Tells each as it comes; returns when it is over, or cannot be watched (any more)."""
    events = ctypes.c_void_p()
    if library.call("nvmlEventSetCreate", ctypes.byref(events)) != SUCCESS:
        return
    try:
        watched = _register(library, devices, events)
        while watched and not is_over():
            event = Event()
            wait = ctypes.c_uint(WAIT_MILLISECONDS)
            code = library.call("nvmlEventSetWait_v2", events, ctypes.byref(event), wait)
            name = event_name(event.kind)
            if code == SUCCESS and name is not None:
                tell(watched.get(event.device, -1), name, int(event.data))
            elif code not in (SUCCESS, TIMEOUT):
                return
    finally:
        library.call("nvmlEventSetFree", events)


def _register(
    library: Library, devices: list[Any], events: ctypes.c_void_p
) -> dict[int | None, int]:
    watched: dict[int | None, int] = {}
    for index, device in enumerate(devices):
        if device is None or isinstance(device, Lost):
            continue
        supported = ctypes.c_ulonglong()
        name = "nvmlDeviceGetSupportedEventTypes"
        is_told = library.call(name, device, ctypes.byref(supported)) == SUCCESS
        mask = ctypes.c_ulonglong(supported.value & EVENT_MASK if is_told else EVENT_XID)
        if mask.value == 0:
            continue
        if library.call("nvmlDeviceRegisterEvents", device, mask, events) == SUCCESS:
            watched[device.value] = index
    return watched


class GpmMeter:
    def __init__(self, library: Library, device: Any, samples: list[ctypes.c_void_p]) -> None:
        self._library, self._device = library, device
        self._samples = samples
        self._is_first = True
        self._request = GpmMetrics(version=1, count=1)
        self._request.metrics[0].id = ANY_TENSOR

    def read(self) -> float | None:
        before, now = self._samples
        if not self._library.fill("nvmlGpmSampleGet", self._device, now):
            self._is_first = True  # what is in the buffer is of unknown age
            return None
        self._samples = [now, before]
        if self._is_first:
            self._is_first = False
            return None
        request = self._request
        request.first, request.second = before, now
        if not self._library.fill("nvmlGpmMetricsGet", ctypes.byref(request)):
            return None
        found = request.metrics[0]
        is_known = found.code == SUCCESS and math.isfinite(found.value)
        return min(max(found.value / 100, 0.0), 1.0) if is_known else None

    def close(self) -> None:
        for sample in self._samples:
            self._library.call("nvmlGpmSampleFree", sample)


def open_meter(library: Library, device: Any) -> GpmMeter | None:
    support = GpmSupport(version=1)
    try:
        is_told = library.fill("nvmlGpmQueryDeviceSupport", device, ctypes.byref(support))
    except Unclear:
        return None
    if not is_told or not support.is_supported:
        return None
    samples = [ctypes.c_void_p(), ctypes.c_void_p()]
    for sample in samples:
        if library.call("nvmlGpmSampleAlloc", ctypes.byref(sample)) != SUCCESS:
            return None
    return GpmMeter(library, device, samples)


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
        older = NvmlMemory()
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
            found = (NvmlProcess * MAX_PROCESSES)()
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
        return open_meter(self._library, device)

    def watch(self, devices: list[Any], tell: Tell, is_over: Callable[[], bool]) -> None:
        watch(self._library, devices, tell, is_over)

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
