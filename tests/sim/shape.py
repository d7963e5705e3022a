# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What kind of job is simulated: size, speed, schedule, release. Nothing here changes in a run."""

from __future__ import annotations

from dataclasses import dataclass

from sim.release import Release

SAVE_DIR = "/ckpt/run"


@dataclass(frozen=True, slots=True)
class Shape:
    release: Release
    world_size: int
    pod_ranks: int
    """Ranks in one pod; the last pod may have fewer."""
    tensor: int
    pipeline: int
    precision: str
    """bf16 or fp16."""
    total: int
    """Iterations of the whole training."""
    first: int
    """The checkpoint that the first attempt resumes from; 0: it starts afresh."""
    log_interval: int
    save_interval: int
    """0: never saves."""
    eval_interval: int
    step_seconds: float
    step_sigma: float
    """Of the logarithm of a step's time."""
    tail_share: float
    """Share of steps that take `tail_factor` times as long: heavy tails."""
    tail_factor: float
    start_seconds: float
    load_seconds: float
    first_step_seconds: float
    """Compile, graph capture, first touch of the data; on top of the step itself."""
    save_seconds: float
    first_save_factor: float
    eval_seconds: float
    is_async: bool
    batch: int = 32
    ramp: tuple[int, int] | None = None
    """Iterations of each stage of a batch ramp, and how many stages."""
    loss_noise: float = 0.02
    loss_floor: float = 2.2
    loss_height: float = 7.0
    loss_tau: float = 150.0
    handles_sigterm: bool = False
    exit_interval: int | None = None
    exit_minutes: float | None = None
    max_restarts: int = 0
    """Of torchrun, inside the container."""
    has_tee: bool = False
    """torchrun --tee: lines begin with `[default3]:`."""
    checks_nan: bool = True
    logs_throughput: bool = False
    timeout_seconds: float = 600.0
    """--distributed-timeout-minutes."""
    hours_ahead: float = 0.0
    """Of the printed times: the container's time zone."""
    flavour: str = ""
    """Whose lines it prints, if not Megatron's: a key of `lines.FLAVOURS`."""
    loads: bool = True
    """--load is given (as a script that can resume has it)."""

    @property
    def pods(self) -> int:
        return -(-self.world_size // self.pod_ranks)

    def pod_of(self, rank: int) -> int:
        return rank // self.pod_ranks

    def ranks_of(self, pod: int) -> range:
        return range(pod * self.pod_ranks, min((pod + 1) * self.pod_ranks, self.world_size))

    def batch_at(self, iteration: int) -> int:
        """A ramp doubles the batch at each of its stages until the full size."""
        if self.ramp is None:
            return self.batch
        length, stages = self.ramp
        behind = max(0, stages - iteration // length)
        return max(1, self.batch >> behind)
