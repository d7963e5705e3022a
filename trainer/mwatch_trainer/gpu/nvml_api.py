# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the two readers of NVIDIA's management library (NVML) share: numbers, names, failures.

One reads by ctypes beside the trainer, the other by `nvidia-ml-py` in the sidecar. The numbers
are NVIDIA's; the names are the values of labels, and stay as they are.
"""

from __future__ import annotations

from typing import Any, Callable, Protocol, Sequence

SUCCESS, NOT_FOUND, TIMEOUT, FUNCTION_NOT_FOUND = 0, 6, 10, 13
GPU_LOST, RESET_REQUIRED, UNKNOWN_ERROR = 15, 16, 999
_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND = 9, 12
NOTHING_THERE = frozenset({_DRIVER_NOT_LOADED, _LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND})
"""At the start: no driver. Any other failure of the start is a failure."""
_UNINITIALIZED, _VERSION_MISMATCH = 1, 18
_LIBRARY_DOWN = frozenset({_UNINITIALIZED, _DRIVER_NOT_LOADED, _VERSION_MISMATCH})
"""Later: the library is to be started anew."""

MAX_GPUS = 64
MAX_LINKS = 36
MAX_PROCESSES = 64
WAIT_MILLISECONDS = 2000
"""For events; whoever watches them sees at least so often that it is to stop."""

THROTTLE_BITS = (
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
THROTTLE_CALLS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
"""The new name, and the one of drivers before 535."""
THROTTLE_TIMES = (
    (74, "sw_power_cap"),
    (75, "thermal"),
    (269, "sw_thermal_slowdown"),
    (270, "hw_thermal_slowdown"),
    (271, "hw_power_brake_slowdown"),
)
"""Fields, in nanoseconds since the driver was loaded."""
LINK_COUNT = 91
RECOVERY_ACTION = 230
NVLINK_ERRORS = ((161, "replay"), (162, "recovery"), (163, "crc"))
"""Fields of one link, up to Hopper."""
NVLINK5_ERRORS = (
    (206, "malformed_packet"),
    (207, "buffer_overrun"),
    (208, "receive"),
    (211, "integrity"),
    (214, "recovery_failed"),
    (215, "recovery"),
    (219, "effective"),
)
"""Fields of one link from Blackwell on. Symbol errors are left out: the link corrects them."""

EVENT_XID = 0x8
EVENTS = (
    (0x2, "double_bit_ecc"),
    (EVENT_XID, "xid"),
    (0x400, "dram_retirement"),
    (0x800, "dram_retirement_failed"),
    (0x1000, "poison"),
    (0x2000, "fatal_poison"),
    (0x4000, "gpu_unavailable"),
    (0x8000, "recovery_action"),
)
EVENT_MASK = sum(bit for bit, _ in EVENTS)
ANY_TENSOR = 5
"""The metric of GPM, in percent."""


class NvmlAbsent(Exception):
    """There is no NVML here, or no driver; the text says why."""


class NvmlBroken(Exception):
    """NVML as a whole does not answer: it is to be opened anew, later."""


class Lost(Exception):
    """The driver does not reach this GPU any more."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class Unclear(Exception):
    """`Unknown Error`: of one call it means little, of every call that the GPU is gone."""


def check(code: int, words: Callable[[int], str]) -> bool:
    """Whether a call gave its value. A value that is not to be had is no failure."""
    if code in (GPU_LOST, RESET_REQUIRED):
        raise Lost(code, words(code))
    if code in _LIBRARY_DOWN:
        raise NvmlBroken(words(code))
    if code == UNKNOWN_ERROR:
        raise Unclear(words(code))
    return code == SUCCESS


def unopened(code: int, words: Callable[[int], str]) -> Lost | None:
    """A GPU that cannot be opened; None: one that is not for this container."""
    is_lost = code in (GPU_LOST, RESET_REQUIRED, UNKNOWN_ERROR)
    return Lost(code, words(code)) if is_lost else None


Tell = Callable[[int, str, int], None]
"""Index of the GPU (-1: not known), name of the event, its number."""


class TensorMeter(Protocol):
    def read(self) -> float | None:
        """0 to 1, since the last read; None at the first, or where it cannot be told."""

    def close(self) -> None: ...


class Calls(Protocol):
    """NVML, once opened. None: not supported here. Each may raise Lost, Broken or Unclear."""

    def close(self) -> None: ...
    def driver(self) -> str | None: ...
    def devices(self) -> list[Any]: ...
    def uuid(self, device: Any) -> str | None: ...
    def name(self, device: Any) -> str | None: ...
    def utilization(self, device: Any) -> float | None: ...
    def memory(self, device: Any) -> tuple[int, int] | None: ...
    def power_watts(self, device: Any) -> float | None: ...
    def power_limit_watts(self, device: Any) -> float | None: ...
    def temperature_celsius(self, device: Any) -> int | None: ...
    def sm_clock_hz(self, device: Any) -> int | None: ...
    def throttle(self, device: Any) -> list[str] | None: ...
    def ecc_errors(self, device: Any, corrected: bool) -> int | None: ...
    def remapped_rows(self, device: Any) -> tuple[int, int, bool, bool] | None: ...
    def pids(self, device: Any) -> list[int] | None: ...
    def pcie_replays(self, device: Any) -> int | None: ...
    def fields(self, device: Any, wanted: Sequence[tuple[int, int]]) -> list[float | None]: ...
    def tensor_meter(self, device: Any) -> TensorMeter | None: ...
    def watch(self, devices: list[Any], tell: Tell, is_over: Callable[[], bool]) -> None: ...


def throttle_names(bits: int) -> list[str]:
    return [name for bit, name in THROTTLE_BITS if bits & bit]


def event_name(kind: int) -> str | None:
    return dict(EVENTS).get(kind)
