# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One run before it happens: the job, who watches it, and what will go wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from sim.eyes import Eyes
from sim.faults import Fault
from sim.release import RELEASES
from sim.shape import Shape

_SPEEDS = ((25, 0.2, 0.5), (35, 0.5, 2.0), (25, 2.0, 8.0), (10, 8.0, 25.0), (5, 25.0, 60.0))
_WORLDS = (
    # weight, ranks, ranks of a pod
    (10, 2, 1), (10, 2, 2), (14, 4, 1), (14, 4, 2), (12, 8, 8), (12, 8, 2), (8, 16, 8), (6, 16, 4),
    (3, 32, 8), (2, 64, 8), (0.5, 512, 8),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    scenario: str
    is_healthy: bool
    """Nothing is wrong with it, however it looks."""
    shape: Shape
    eyes: Eyes
    faults: tuple[Fault, ...] = ()
    acts: bool = True
    """What mwatch decides is carried out; else it only watches."""
    lost_attempts: frozenset[int] = frozenset()
    """Attempts whose --load finds nothing."""
    spikes: tuple[tuple[int, float], ...] = ()
    spoiled_first: bool = False
    """The checkpoint that the first attempt resumes from is corrupt."""
    relaunched_by: str = ""
    """`operator`: Kubernetes starts a dead job again by itself, without being asked."""
    growth: int = 0
    """Clean steps that the scaler has counted before the run."""


def draw_shape(chance: Random, *, lines: int = 0, **fixed: Any) -> Shape:
    """`lines`: so many iteration lines at least; `fixed`: fields that are not left to chance."""
    weights = [weight for weight, _, _ in _SPEEDS]
    (speed,) = chance.choices(_SPEEDS if not lines else _SPEEDS[:2], weights[: 2 if lines else 5])
    step = fixed.pop("step_seconds", chance.uniform(speed[1], speed[2]))
    seconds = chance.uniform(70.0, 180.0)
    work = int(lines * chance.uniform(1.0, 1.3)) if lines else max(14, int(seconds / step))
    interval = fixed.pop("log_interval", None) or _log_interval(chance, work, lines)
    work *= interval if lines else 1
    save = fixed.pop("save_interval", max(3, int(work * chance.uniform(0.18, 0.4))))
    evaluation = max(3, int(work * chance.uniform(0.25, 0.6))) if chance.random() < 0.5 else 0
    first = save * chance.randint(1, 40) if save and chance.random() < 0.35 else 0
    first = fixed.pop("first", first)
    values: dict[str, Any] = {
        **_world(chance, step),
        **_pace(chance),
        **_model(chance, work),
        "release": chance.choice(RELEASES),
        "total": first + work,
        "first": first,
        "log_interval": interval,
        "save_interval": save,
        "eval_interval": evaluation,
        "step_seconds": step,
        "is_async": bool(save) and chance.random() < 0.25,
    }
    return _consistent(Shape(**(values | fixed)))


def _pace(chance: Random) -> dict[str, float]:
    return {
        "step_sigma": chance.uniform(0.01, 0.12),
        "tail_share": 0.0,
        "tail_factor": 3.0,
        "start_seconds": chance.uniform(8.0, 50.0),
        "load_seconds": chance.uniform(3.0, 30.0),
        "first_step_seconds": chance.lognormvariate(2.0, 0.8),
        "save_seconds": chance.lognormvariate(0.7, 0.8),
        "first_save_factor": chance.uniform(1.0, 5.0),
        "eval_seconds": chance.uniform(2.0, 20.0),
    }


def _model(chance: Random, work: int) -> dict[str, Any]:
    return {
        "precision": "fp16" if chance.random() < 0.2 else "bf16",
        "loss_noise": chance.uniform(0.005, 0.03),
        "loss_floor": chance.uniform(1.6, 3.0),
        "loss_height": chance.uniform(3.0, 8.0),
        "loss_tau": max(40.0, work * chance.uniform(0.3, 3.0)),
        "has_tee": chance.random() < 0.15,
        "handles_sigterm": chance.random() < 0.5,
        "checks_nan": chance.random() < 0.5,
        "logs_throughput": chance.random() < 0.3,
    }


def _consistent(shape: Shape) -> Shape:
    if shape.is_async and shape.release.number < (0, 12):
        shape = replace(shape, is_async=False)
    return shape


def _log_interval(chance: Random, work: int, lines: int) -> int:
    if lines:
        return 1
    if work >= 500 and chance.random() < 0.4:
        return 100
    return 10 if work >= 80 and chance.random() < 0.4 else 1


def _world(chance: Random, step: float) -> dict[str, int]:
    """Long steps make long runs: those get few ranks, for the sake of the clock."""
    choices = [row for row in _WORLDS if step < 8.0 or row[1] <= 8]
    ((_, ranks, pod_ranks),) = chance.choices(choices, [row[0] for row in choices])
    tensor = chance.choice([size for size in (1, 2, 4, 8) if size <= pod_ranks])
    stages = [size for size in (1, 2, 4) if ranks % (tensor * size) == 0]
    return {
        "world_size": ranks,
        "pod_ranks": pod_ranks,
        "tensor": tensor,
        "pipeline": chance.choice(stages),
    }
