# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs as the sampler beside the trainer tells of them, a second apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mwatch.model.event import Fault
from mwatch.model.observation import Sign, SignState
from mwatch.model.reading import Ok
from mwatch.sources.gpu.gpus import GpuSource, NvmlSource
from mwatch_trainer.gpu.nvml import Nvml, NvmlAbsent
from support.builders.job import entries
from support.builders.volume import ManualClock, gpu, write_gpus


def no_driver() -> Nvml:
    raise NvmlAbsent("there is no driver here")


class GpuBench:
    def __init__(self, volume: Path) -> None:
        self.volume = volume
        self.clock = ManualClock()
        self.ranks: dict[int, int] = {}
        self.nvml = NvmlSource(no_driver, clock=self.clock)
        self.source = GpuSource(
            str(volume),
            "pod-0",
            entries(),
            ranks=lambda: self.ranks,
            node="n",
            nvml=self.nvml,
            clock=self.clock,
        )

    def sample(
        self, *gpus: dict[str, Any], times: int = 1, later: float = 1.0
    ) -> list[Sign | Fault]:
        """What the last of so many samples says."""
        for _ in range(times):
            self.clock.now += later
            write_gpus(self.volume, self.clock.now, *gpus)
            reading = self.source.read()
        assert isinstance(reading, Ok)
        said = [each.what for each in reading.value]
        return [what for what in said if isinstance(what, Sign | Fault)]

    def activity(self, *gpus: dict[str, Any], times: int = 12) -> dict[int | None, SignState]:
        signs = [what for what in self.sample(*gpus, times=times) if isinstance(what, Sign)]
        return {sign.rank: sign.state for sign in signs}

    def faults(self, *gpus: dict[str, Any], later: float = 1.0) -> list[Fault]:
        return [what for what in self.sample(*gpus, later=later) if isinstance(what, Fault)]


def idle(index: int = 0) -> dict[str, Any]:
    return gpu(index, power_watts=110.0, utilization=0.0)
