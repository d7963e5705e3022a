# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How much the tensor cores of a GPU worked between two looks (GPM), by `nvidia-ml-py`.

As `mwatch_trainer.nvml_tensor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mwatch_trainer.nvml_contract import ANY_TENSOR, SUCCESS


class Meter:
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
