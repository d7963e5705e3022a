# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How much the tensor cores of a GPU worked between two looks (GPM, Hopper and newer).

A GPU that is older, and a process that may not read it, have no meter. A read costs about 1.3 ms.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from mwatch_trainer.nvml_contract import ANY_TENSOR, SUCCESS, Unclear
from mwatch_trainer.nvml_library import Library
from mwatch_trainer.nvml_types import GpmMetrics, GpmSupport


class Meter:
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


def open_meter(library: Library, device: Any) -> Meter | None:
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
    return Meter(library, device, samples)
