# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs of this machine as one document: `node/gpus.json`.

`state` says whether there is anything to see: `absent` (no NVML, no GPU) is not `failed`.
"""

from __future__ import annotations

import threading
import time
from typing import Any

OK, ABSENT, FAILED = "ok", "absent", "failed"


class Gpus:
    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] = []
        self._absent = ""
        self._xids: dict[int, dict[str, float]] = {}
        try:
            # Not every Python has ctypes, and this process is good for more than GPUs.
            from mwatch_trainer import nvml
        except ImportError:
            self._absent = "this Python has no ctypes"
            return
        self._lost = nvml.Lost
        try:
            self._nvml = nvml.Nvml()
        except nvml.Absent as error:
            self._absent = str(error)
            return
        self._driver = self._nvml.driver()
        self._devices = self._nvml.devices()
        if not self._devices:
            self._absent = "there is no GPU"
            return
        watch = threading.Thread(target=self._watch_xids, name="mwatch-xid", daemon=True)
        watch.start()

    @property
    def is_absent(self) -> bool:
        return bool(self._absent)

    def sample(self) -> dict[str, Any]:
        now = {"at": time.time(), "monotonic": time.monotonic()}
        if self._absent:
            return {**now, "state": ABSENT, "reason": self._absent, "driver": None, "gpus": []}
        gpus = [self._gpu(index, device) for index, device in enumerate(self._devices)]
        errors = [f"GPU {each['index']}: {each['error']}" for each in gpus if each["error"]]
        state = FAILED if errors else OK
        return {
            **now,
            "state": state,
            "reason": "; ".join(errors) or None,
            "driver": self._driver,
            "gpus": gpus,
        }

    def _gpu(self, index: int, device: Any) -> dict[str, Any]:
        facts: dict[str, Any] = {"index": index, "error": None, "xid": None, "xid_at": None}
        facts.update(self._xids.get(index, {}))
        if device is None:
            return {**facts, "error": "it cannot be opened"}
        nvml = self._nvml
        try:
            used, total = nvml.memory(device) or (None, None)
            return {
                **facts,
                "uuid": nvml.uuid(device),
                "name": nvml.name(device),
                "utilization": nvml.utilization(device),
                "memory_used_bytes": used,
                "memory_total_bytes": total,
                "power_watts": nvml.power_watts(device),
                "temperature_celsius": nvml.temperature_celsius(device),
                "sm_clock_hz": nvml.sm_clock_hz(device),
                "throttle": nvml.throttle(device),
                "ecc_uncorrected": nvml.ecc_uncorrected(device),
                "pids": nvml.pids(device),
            }
        except self._lost as error:
            return {**facts, "error": str(error)}

    def _watch_xids(self) -> None:
        def tell(index: int, xid: int) -> None:
            self._xids[index] = {"xid": xid, "xid_at": time.time()}

        self._nvml.watch_xids(self._devices, tell)
