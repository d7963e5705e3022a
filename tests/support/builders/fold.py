# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs built the way they come about: log lines and observations, folded one by one."""

from __future__ import annotations

from typing import Any

from mwatch.model.job import Job
from mwatch.model.observation import Beat, Observation, Observed
from mwatch.state.fold import fold
from support.builders.events import events, megatron_line
from support.builders.job import entries

START = 1_000_000.0


class Story:
    """Tells a job line by line; each stream's lines go through the real reader."""

    def __init__(self) -> None:
        self.job = Job("run", entries())
        self.at = START
        self._logs: dict[str, str] = {}
        self._done: dict[str, int] = {}

    def wait(self, seconds: float) -> Story:
        self.at += seconds
        return self

    def says(self, *lines: str, stream: str = "pod-0") -> Story:
        """The stream prints `lines`, all at the current moment."""
        self._logs[stream] = self._logs.get(stream, "") + "".join(f"{line}\n" for line in lines)
        told = events(self._logs[stream], faults=True, file=f"{stream}.log")
        told.sort(key=lambda event: event.line)
        for event in told[self._done.get(stream, 0) :]:
            fold(self.job, Observed(self.at, stream, event))
        self._done[stream] = len(told)
        return self

    def sees(self, what: Observation, *, stream: str = "pod-0") -> Story:
        fold(self.job, Observed(self.at, stream, what))
        return self

    def trains(
        self, *iterations: int, stream: str = "pod-0", seconds: float = 1.0, **change: Any
    ) -> Story:
        """One line for each iteration, `seconds` apart."""
        for iteration in iterations:
            self.wait(seconds)
            self.says(line(iteration, seconds=seconds, **change), stream=stream)
        return self

    def beats(self, rank: int, iteration: int, phase: str = "training", **more: Any) -> Story:
        usual: dict[str, Any] = {"world_size": 2, "stack": "a", "pid": 1, "attempt": None}
        return self.sees(
            Beat(rank=rank, iteration=iteration, phase=phase, **(usual | more)),
            stream=f"pod-{rank}",
        )


def line(
    iteration: int, *, total: int = 1000, seconds: float = 1.0, skipped: int = 0, **more: Any
) -> str:
    change = {
        "elapsed time per iteration (ms)": f"{seconds * 1000:.1f}",
        "number of skipped iterations": f"{skipped:3d}",
    }
    return megatron_line(
        iteration, total, stamp=None, change=change | more.pop("change", {}), **more
    )


def saving(iteration: int) -> str:
    return f"saving checkpoint at iteration {iteration:7d} to /ckpt in torch_dist format"


def queued(iteration: int) -> str:
    return f"  scheduled an async checkpoint save at iteration {iteration:7d} to /ckpt"


def saved(iteration: int) -> str:
    return (
        f"  successfully saved checkpoint from iteration {iteration:7d} to /ckpt [ t 1/1, p 1/1 ]"
    )


def loading(iteration: int) -> str:
    return f" loading distributed checkpoint from /ckpt at iteration {iteration}"


def loaded(iteration: int) -> str:
    return f"  successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration {iteration}"


WORLD = "using world size: 2, data-parallel size: 2, tensor-model-parallel size: 1"
READY = "[before the start of training step] datetime: 2025-09-07 23:51:00 "
DONE = "[after training is done] datetime: 2025-09-07 23:59:00 "
RESTARTS = ("[default] Worker group FAILED. 2/3 attempts left; will restart worker group",)
