# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The GPUs that this container sees itself, through NVML.

Every call may hang, so all of them are made by one thread that nobody waits for. Without a
driver nothing is loaded, and it is looked for once a minute.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.sources.base.json_file import FileSample
from mwatch.sources.base.worker import Worker
from mwatch_trainer.gpu.nvml import Nvml, open_nvml
from mwatch_trainer.gpu.sampler import GpuSampler

_LIMIT_SECONDS = 10.0
_NOT_YET = Absent("NVML has not answered yet")
_TENSOR_SECONDS = 4.0
"""Twice as long as beside the trainer: the sidecar has one percent of a core for everything."""


class NvmlSource:
    def __init__(
        self,
        open_nvml: Callable[[], Nvml] = open_nvml,
        *,
        every_seconds: float = 1.0,
        limit_seconds: float = _LIMIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler = GpuSampler(open_nvml, tensor_seconds=_TENSOR_SECONDS, clock=clock)
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
