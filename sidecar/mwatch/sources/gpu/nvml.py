# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs that this container sees itself, by NVML.

Every call may hang, so all of them are made by one thread that nobody waits for. Without a
driver nothing is loaded, and it is looked for once a minute.

Xids and the other events of GPUs, by `nvidia-ml-py`. As `mwatch_trainer.gpu.nvml`.

How much the tensor cores of a GPU worked between two looks (GPM), by `nvidia-ml-py`.

As `mwatch_trainer.gpu.nvml`.

The calls of NVML that mwatch needs, by `nvidia-ml-py`: the same as `mwatch_trainer.gpu.nvml`.

The package is loaded only where there is a driver's library: it costs 5 MiB. Releases of it lack
calls as drivers do; both are "not supported".
"""

from __future__ import annotations

import ctypes
import importlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.base.json_file import FileSample
from mwatch.sources.base.worker import Worker
from mwatch_trainer.gpu.nvml_api import (
    ANY_TENSOR,
    EVENT_MASK,
    EVENT_XID,
    MAX_GPUS,
    NOTHING_THERE,
    SUCCESS,
    THROTTLE_CALLS,
    TIMEOUT,
    UNKNOWN_ERROR,
    WAIT_MILLISECONDS,
    Calls,
    Lost,
    NvmlBroken,
    Tell,
    check,
    event_name,
    throttle_names,
    unopened,
)
from mwatch_trainer.gpu.nvml_api import NvmlAbsent as NvmlAbsent
from mwatch_trainer.gpu.sampler import GpuSampler as Sampler


def watch(
    module: Any,
    ask: Callable[..., Any],
    devices: list[Any],
    tell: Tell,
    is_over: Callable[[], bool],
) -> None:
    """Tells each as it comes; returns when it is over, or cannot be watched (any more)."""
    events = ask("nvmlEventSetCreate")
    if events is None:
        return
    try:
        watched = _register(module, devices, events)
        while watched and not is_over():
            try:
                event = module.nvmlEventSetWait_v2(events, WAIT_MILLISECONDS)
            except module.NVMLError as error:
                if error.value != TIMEOUT:
                    return
                continue
            name = event_name(event.eventType)
            if name is not None:
                tell(watched.get(_address(event.device), -1), name, int(event.eventData))
    finally:
        ask("nvmlEventSetFree", events)


def _register(module: Any, devices: list[Any], events: Any) -> dict[int | None, int]:
    watched: dict[int | None, int] = {}
    for index, device in enumerate(devices):
        if device is None or isinstance(device, Lost):
            continue
        try:
            mask = module.nvmlDeviceGetSupportedEventTypes(device) & EVENT_MASK
        except module.NVMLError:
            mask = EVENT_XID
        try:
            if mask:
                module.nvmlDeviceRegisterEvents(device, mask, events)
                watched[_address(device)] = index
        except module.NVMLError:
            continue
    return watched


def _address(device: Any) -> int | None:
    return ctypes.cast(device, ctypes.c_void_p).value


class NvmlMeter:
    def __init__(
        self, module: Any, ask: Callable[..., Any], device: Any, samples: list[Any]
    ) -> None:
        self._ask, self._device = ask, device
        self._samples = samples
        self._is_first = True
        self._request = module.c_nvmlGpmMetricsGet_t()
        self._request.version = module.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = 1
        self._request.metrics[0].metricId = ANY_TENSOR

    def read(self) -> float | None:
        before, now = self._samples
        if self._ask("nvmlGpmSampleGet", self._device, now) is None:
            self._is_first = True  # what is in the buffer is of unknown age
            return None
        self._samples = [now, before]
        if self._is_first:
            self._is_first = False
            return None
        self._request.sample1, self._request.sample2 = before, now
        if self._ask("nvmlGpmMetricsGet", self._request) is None:
            return None
        found = self._request.metrics[0]
        is_known = found.nvmlReturn == SUCCESS and math.isfinite(found.value)
        return min(max(found.value / 100, 0.0), 1.0) if is_known else None

    def close(self) -> None:
        for sample in self._samples:
            self._ask("nvmlGpmSampleFree", sample)


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
        raise NvmlAbsent(f"{_LIBRARY} is not there") from None
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        raise NvmlAbsent("nvidia-ml-py is not installed") from None
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        failure = NvmlAbsent if error.value in NOTHING_THERE else NvmlBroken
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

    def tensor_meter(self, device: Any) -> NvmlMeter | None:
        support = self.ask("nvmlGpmQueryDeviceSupport", device)
        if support is None or not support.isSupportedDevice:
            return None
        samples = [self.ask("nvmlGpmSampleAlloc") for _ in range(2)]
        is_whole = all(each is not None for each in samples)
        return NvmlMeter(self._module, self.ask, device, samples) if is_whole else None

    def watch(self, devices: list[Any], tell: Tell, is_over: Callable[[], bool]) -> None:
        watch(self._module, self.ask, devices, tell, is_over)

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


_LIMIT_SECONDS = 10.0
_NOT_YET = Absent("NVML has not answered yet")
_TENSOR_SECONDS = 4.0
"""Twice as long as beside the trainer: the sidecar has one percent of a core for everything."""


class NvmlSource:
    def __init__(
        self,
        open_nvml: Callable[[], Calls] = open_nvml,
        *,
        every_seconds: float = 1.0,
        limit_seconds: float = _LIMIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler = Sampler(open_nvml, tensor_seconds=_TENSOR_SECONDS, clock=clock)
        self._every, self._limit = every_seconds, limit_seconds
        self._clock = clock
        self._worker: Worker[dict[str, Any]] = Worker(
            "mwatch-nvml", self._sample, limit_seconds=limit_seconds, clock=clock
        )
        self._lock = threading.Lock()
        self._is_open = False
        self._next = -math.inf
        self._reading: Reading[FileSample] = _NOT_YET

    @property
    def is_awaited(self) -> bool:
        """It was asked, has not answered since it was opened, and is not late."""
        return self._reading is _NOT_YET

    def read(self) -> Reading[FileSample]:
        """What it last said, at once; starts the next look when it is due."""
        answer = self._worker.take()
        if answer is not None:
            self._reading = _as_sample(answer)
        elif isinstance(self._reading, Ok):
            self._reading = Ok(self._reading.value._replace(is_new=False))
        now = self._clock()
        if isinstance(self._reading, Ok) and now - self._reading.value.monotonic > 2 * self._limit:
            self._reading = _NOT_YET  # it has not been asked for a while
        if now >= self._next and self._worker.start():
            self._next = now + self._every
            self._is_open = True
        return self._reading

    def wait(self, seconds: float) -> bool:
        """Whether the look that is out came back in time."""
        return self._worker.wait(seconds)

    def close(self) -> None:
        """Leaves NVML, as soon as it lets go of the call that is out."""
        if self._is_open:
            self._is_open = False
            threading.Thread(target=self._shut, name="mwatch-nvml-end", daemon=True).start()
        self._reading = _NOT_YET

    def _sample(self) -> Reading[dict[str, Any]]:
        with self._lock:
            return Ok(self._sampler.sample())

    def _shut(self) -> None:
        with self._lock:
            self._sampler.close()


def _as_sample(answer: Reading[dict[str, Any]]) -> Reading[FileSample]:
    if not isinstance(answer, Ok):
        return answer
    body = answer.value
    match body["state"]:
        case "absent":
            return Absent(body["reason"])
        case "failed" if not body["gpus"]:
            return Failed(body["reason"])
        case _:
            return Ok(FileSample(body["at"], body["monotonic"], body, is_new=True))
