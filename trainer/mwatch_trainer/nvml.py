# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The few calls of NVIDIA's management library (NVML) that mwatch needs, through ctypes.

Only calls that cost microseconds. A driver that lacks one, or a GPU that does not support it, gives
None; a GPU that is lost raises `Lost`, which is a fault and not a missing value. A driver that is
wedged can make any call hang: call from a thread that nobody waits for.
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable

LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_MAX_PROCESSES = 64
_SUCCESS, _NOT_FOUND, _TIMEOUT, _GPU_LOST, _RESET_REQUIRED = 0, 6, 10, 15, 16
_CLOCK_SM, _SENSOR_GPU, _UNCORRECTED, _VOLATILE = 1, 0, 1, 0
_EVENT_XID = 0x8

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
)


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Absent(Exception):
    """There is no NVML here, or it does not start; the text says why."""


class Lost(Exception):
    """The driver does not reach this GPU any more."""


class Nvml:
    """Raises Absent where it cannot be used."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library: Any = ctypes.CDLL(library)
        except OSError:
            raise Absent(f"{library} is not there") from None
        code = self._call("nvmlInit_v2")
        if code != _SUCCESS:
            raise Absent(f"NVML does not start: {self._said(code)}")

    def driver(self) -> str | None:
        return self._text("nvmlSystemGetDriverVersion")

    def devices(self) -> list[Any]:
        """Handles, by index; a GPU that cannot be opened is None."""
        count = ctypes.c_uint()
        if self._call("nvmlDeviceGetCount_v2", ctypes.byref(count)) != _SUCCESS:
            return []
        found: list[Any] = []
        for index in range(min(count.value, 64)):
            handle = ctypes.c_void_p()
            name = "nvmlDeviceGetHandleByIndex_v2"
            code = self._call(name, ctypes.c_uint(index), ctypes.byref(handle))
            found.append(handle if code == _SUCCESS else None)
        return found

    def uuid(self, device: Any) -> str | None:
        return self._text("nvmlDeviceGetUUID", device)

    def name(self, device: Any) -> str | None:
        return self._text("nvmlDeviceGetName", device)

    def utilization(self, device: Any) -> float | None:
        """A kernel was resident for this part of the time. A hung collective reads 1."""
        value = _Utilization()
        read = self._filled("nvmlDeviceGetUtilizationRates", device, ctypes.byref(value))
        return value.gpu / 100 if read else None

    def memory(self, device: Any) -> tuple[int, int] | None:
        """Bytes used and in all."""
        value = _Memory()
        read = self._filled("nvmlDeviceGetMemoryInfo", device, ctypes.byref(value))
        return (value.used, value.total) if read else None

    def power_watts(self, device: Any) -> float | None:
        value = self._number("nvmlDeviceGetPowerUsage", device)
        return None if value is None else value / 1000

    def temperature_celsius(self, device: Any) -> int | None:
        return self._number("nvmlDeviceGetTemperature", device, ctypes.c_int(_SENSOR_GPU))

    def sm_clock_hz(self, device: Any) -> int | None:
        value = self._number("nvmlDeviceGetClockInfo", device, ctypes.c_int(_CLOCK_SM))
        return None if value is None else value * 1_000_000

    def throttle(self, device: Any) -> list[str] | None:
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            bits = self._number(name, device, kind=ctypes.c_ulonglong)
            if bits is not None:
                return [said for bit, said in _THROTTLE_BITS if bits & bit]
        return None

    def ecc_uncorrected(self, device: Any) -> int | None:
        """Since the driver was loaded."""
        kinds = (ctypes.c_int(_UNCORRECTED), ctypes.c_int(_VOLATILE))
        return self._number("nvmlDeviceGetTotalEccErrors", device, *kinds, kind=ctypes.c_ulonglong)

    def pids(self, device: Any) -> list[int] | None:
        """Of the host or of the container, as the driver likes: no key to join by."""
        for name in (
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetComputeRunningProcesses_v2",
        ):
            count = ctypes.c_uint(_MAX_PROCESSES)
            found = (_Process * _MAX_PROCESSES)()
            if self._filled(name, device, ctypes.byref(count), found):
                return [each.pid for each in found[: count.value]]
        return None

    def watch_xids(self, devices: list[Any], tell: Callable[[int, int], None]) -> None:
        """Calls `tell(index, xid)` for each as it comes; returns where that cannot be watched."""
        events = ctypes.c_void_p()
        if self._call("nvmlEventSetCreate", ctypes.byref(events)) != _SUCCESS:
            return
        watched: dict[int | None, int] = {}
        for index, device in enumerate(devices):
            if device is None:
                continue
            mask = ctypes.c_ulonglong(_EVENT_XID)
            if self._call("nvmlDeviceRegisterEvents", device, mask, events) == _SUCCESS:
                watched[device.value] = index
        while watched:
            event = _Event()
            code = self._call(
                "nvmlEventSetWait_v2", events, ctypes.byref(event), ctypes.c_uint(5000)
            )
            if code == _SUCCESS and event.kind == _EVENT_XID:
                tell(watched.get(event.device, -1), int(event.data))
            elif code not in (_SUCCESS, _TIMEOUT):
                return

    def _call(self, name: str, *arguments: Any) -> int:
        function = getattr(self._library, name, None)
        return int(function(*arguments)) if function is not None else _NOT_FOUND

    def _filled(self, name: str, *arguments: Any) -> bool:
        code = self._call(name, *arguments)
        if code in (_GPU_LOST, _RESET_REQUIRED):
            raise Lost(self._said(code))
        return code == _SUCCESS

    def _number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        value = kind()
        return int(value.value) if self._filled(name, *arguments, ctypes.byref(value)) else None

    def _text(self, name: str, *arguments: Any) -> str | None:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        if not self._filled(name, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES)):
            return None
        return buffer.value.decode("utf-8", "replace")

    def _said(self, code: int) -> str:
        function = getattr(self._library, "nvmlErrorString", None)
        if function is None:
            return f"error {code}"
        function.restype = ctypes.c_char_p
        return (function(ctypes.c_int(code)) or b"").decode("utf-8", "replace") or f"error {code}"
