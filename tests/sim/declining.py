# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that go on and go wrong: numbers, speed, saves; and watchers that lose their sight."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from mwatch.model.phase import JobPhase
from sim.eyes import draw_eyes
from sim.faults import Fault
from sim.healthy import some_iteration, some_rank
from sim.plan import Plan, draw_shape
from sim.shape import Shape

Make = Callable[[Random], Plan]


def _plan(name: str, chance: Random, shape: Shape, *faults: Fault, **more: Any) -> Plan:
    eyes = more.pop("eyes", None) or draw_eyes(chance, shape)
    more.setdefault("acts", chance.random() < 0.8)
    return Plan(0, name, False, shape, eyes, faults, **more)


def nan(chance: Random) -> Plan:
    """bf16 with the guard off: the loss vanishes, and everything else looks well."""
    shape = draw_shape(chance, precision="bf16", checks_nan=False)
    work = shape.total - shape.first
    room = max(1, 2 * shape.log_interval)
    where = min(some_iteration(chance, shape, 0.3, 0.8), shape.first + max(2, work - room))
    fault = Fault("nan", iteration=where, variant=chance.choice(("nan", "nan", "inf")))
    return _plan("NaN without a guard", chance, shape, fault)


def collapse(chance: Random) -> Plan:
    shape = draw_shape(chance, precision="fp16", lines=120, log_interval=chance.choice((1, 10)))
    where = some_iteration(chance, shape, 0.4, 0.6)
    fault = Fault("collapse", iteration=where, variant=chance.choice(("nan", "overflow")))
    return _plan("fp16 collapse", chance, shape, fault)


def loss_spike(chance: Random) -> Plan:
    shape = draw_shape(chance, lines=150, precision="bf16")
    where = some_iteration(chance, shape, 0.45, 0.65)
    level = shape.loss_floor + shape.loss_height * math.exp(-where / shape.loss_tau)
    fault = Fault("spike_stays", iteration=where, size=level * chance.uniform(0.5, 2.5))
    return _plan("loss spike that stays", chance, shape, fault)


def nan_twice(chance: Random) -> Plan:
    """A rollback, then a crash: what was saved after the NaN must never be loaded again."""
    shape = draw_shape(chance, precision="bf16", checks_nan=False, lines=50)
    work = shape.total - shape.first
    shape = replace(shape, save_interval=max(4, work // 6), is_async=False)
    bad = shape.first + int(shape.save_interval * 2.5)
    nan_fault = Fault("nan", iteration=bad)
    later = Fault("killed", JobPhase.TRAINING, bad + 1, 0.5, some_rank(chance, shape), 2)
    return _plan("NaN, then killed", chance, shape, nan_fault, later, acts=True)


def stuck(chance: Random) -> Plan:
    variant = chance.choice(("same", "initial", "rate"))
    shape = draw_shape(chance, lines=280, precision="bf16", step_seconds=0.25, first=0)
    since = 1 if variant == "initial" else chance.randint(20, 120)
    fault = Fault("stuck", iteration=since, variant=variant)
    return _plan("loss stuck", chance, shape, fault)


def slow(chance: Random) -> Plan:
    shape = draw_shape(chance, lines=90)
    kind = chance.choice(("slow", "straggler"))
    fault = Fault(kind, iteration=some_iteration(chance, shape, 0.4, 0.6),
                  rank=some_rank(chance, shape), size=chance.uniform(1.6, 4.0))  # fmt: skip
    return _plan(kind, chance, shape, fault)


_OVERDUE_SECONDS = 90.0
"""More than the detector's least time without a checkpoint, and a reading of the folder."""


def overdue(chance: Random) -> Plan:
    """The run goes on for long enough after its last save to be found."""
    shape = draw_shape(chance, lines=100)
    work = max(shape.total - shape.first, math.ceil(_OVERDUE_SECONDS / 0.6 / shape.step_seconds))
    shape = replace(shape, total=shape.first + work, save_interval=max(4, work // 12))
    fault = Fault("overdue", iteration=some_iteration(chance, shape, 0.3, 0.4))
    return _plan("saves stop coming", chance, shape, fault)


def blind(chance: Random) -> Plan:
    shape = draw_shape(chance)
    fault = Fault("blind", JobPhase.TRAINING, some_iteration(chance, shape, 0.3, 0.6),
                  variant=chance.choice(("all", "quiet", "probe")))  # fmt: skip
    return _plan("blind", chance, shape, fault, acts=True)


ALL: tuple[tuple[float, Make], ...] = (
    (5, nan), (3, collapse), (3, loss_spike), (2, nan_twice), (1, stuck), (3, slow), (1, overdue),
    (3, blind),
)  # fmt: skip
