# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine as one document: `node/gpus.json`.

`state` says whether there is anything to see: `absent` (no NVML, no GPU) is not `failed`. NVML is
opened once and kept open; where it cannot be, or fails as a whole, it is tried again later and
ever more rarely. Any call may hang: `waiting_seconds` tells others how long one has been out.
"""

from __future__ import annotations

import time
from typing import Any, Callable

from mwatch_trainer.gpus_device import Device
from mwatch_trainer.gpus_events import GpuEvents
from mwatch_trainer.nvml_contract import Absent, Broken, Calls, Lost, Unclear

OK, ABSENT, FAILED = "ok", "absent", "failed"
TENSOR_SECONDS = 2.0
"""A read costs 1.3 ms for each GPU: half a percent of a core for eight."""
_AGAIN_SECONDS = 10.0
_ABSENT_SECONDS = 60.0
_LONGEST_SECONDS = 300.0


def _by_ctypes() -> Calls:
    try:
        # Not every Python has ctypes, and this process is good for more than GPUs.
        from mwatch_trainer import nvml
    except ImportError:
        raise Absent("this Python has no ctypes") from None
    return nvml.Nvml()


class Gpus:
    def __init__(
        self,
        open_nvml: Callable[[], Calls] = _by_ctypes,
        *,
        tensor_seconds: float = TENSOR_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is opened before the first sample: that too may hang."""
        self._open_nvml = open_nvml
        self._tensor_seconds = tensor_seconds
        self._clock = clock
        self._nvml: Calls | None = None
        self._driver: str | None = None
        self._devices: list[Device | Lost | None] = []
        self._events = GpuEvents()
        self._state, self._reason = ABSENT, "not looked yet"
        self._again_at = float("-inf")
        self._pause = _AGAIN_SECONDS
        self._asked_at: float | None = None

    def waiting_seconds(self) -> float:
        """How long the sample that is being taken has taken so far; 0 where none is."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else self._clock() - asked_at

    def sample(self) -> dict[str, Any]:
        self._asked_at = self._clock()
        try:
            return self._sample()
        finally:
            self._asked_at = None

    def close(self) -> None:
        self._shut()
        self._again_at = float("-inf")

    def _sample(self) -> dict[str, Any]:
        if self._nvml is None and self._clock() >= self._again_at:
            self._open()
        if self._nvml is None:
            return self._document(self._state, self._reason, [])
        try:
            gpus = [
                self._gpu(index, each)
                for index, each in enumerate(self._devices)
                if each is not None
            ]
        except Broken as error:
            self._fail(FAILED, str(error))
            return self._document(FAILED, self._reason, [])
        errors = [f"GPU {each['index']}: {each['error']}" for each in gpus if each["error"]]
        return self._document(FAILED if errors else OK, "; ".join(errors), gpus)

    def _document(self, state: str, reason: str, gpus: list[Any]) -> dict[str, Any]:
        return document(state, reason, self._driver, gpus, self._clock)

    def _gpu(self, index: int, device: Device | Lost) -> dict[str, Any]:
        facts = {"index": index, "error": None, "error_code": None, **self._events.of(index)}
        if isinstance(device, Lost):
            return {**facts, "error": str(device), "error_code": device.code}
        try:
            return {**facts, **device.read(self._clock())}
        except Lost as error:
            lost = {"error": str(error), "error_code": error.code}
            return {**facts, **device.known(), **lost}

    def _open(self) -> None:
        try:
            nvml = self._open_nvml()
        except Absent as error:
            self._fail(ABSENT, str(error))
            return
        except Broken as error:
            self._fail(FAILED, str(error))
            return
        self._nvml = nvml
        try:
            self._driver = nvml.driver()
            handles = nvml.devices()
        except (Broken, Lost, Unclear) as error:
            self._fail(FAILED, str(error))
            return
        self._devices = [self._device(nvml, each) for each in handles]
        if all(each is None for each in self._devices):
            self._fail(ABSENT, "there is no GPU")
            return
        self._pause = _AGAIN_SECONDS
        self._events.start(nvml, handles)

    def _device(self, nvml: Calls, handle: Any) -> Device | Lost | None:
        if handle is None or isinstance(handle, Lost):
            return handle
        return Device(nvml, handle, self._tensor_seconds)

    def _fail(self, state: str, reason: str) -> None:
        self._shut()
        self._state, self._reason = state, reason
        pause = _ABSENT_SECONDS if state == ABSENT else self._pause
        self._pause = min(2 * self._pause, _LONGEST_SECONDS)
        self._again_at = self._clock() + pause

    def _shut(self) -> None:
        """What still waits for an event inside NVML would fall with it: then it stays open."""
        nvml, self._nvml = self._nvml, None
        if nvml is None or not self._events.stop():
            return
        for device in self._devices:
            if isinstance(device, Device):
                device.close()
        self._devices = []
        nvml.close()


def document(
    state: str,
    reason: str,
    driver: str | None,
    gpus: list[Any],
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    return {
        "at": time.time(),
        "monotonic": clock(),
        "state": state,
        "reason": reason or None,
        "driver": driver,
        "gpus": gpus,
    }
