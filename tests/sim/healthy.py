# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Healthy jobs that try hard to look sick. Nothing may be done to any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from mwatch.model.phase import JobPhase
from sim.chatter import VARIANTS
from sim.eyes import draw_eyes
from sim.faults import Fault
from sim.plan import Plan, draw_shape
from sim.shape import Shape

Make = Callable[[Random], Plan]


def healthy_plan(name: str, chance: Random, shape: Shape, *faults: Fault, **more: Any) -> Plan:
    eyes = more.pop("eyes", None) or draw_eyes(chance, shape)
    return Plan(0, name, True, shape, eyes, faults, **more)


def some_iteration(chance: Random, shape: Shape, low: float = 0.3, high: float = 0.8) -> int:
    work = shape.total - shape.first
    return shape.first + max(2, int(work * chance.uniform(low, high)))


def some_rank(chance: Random, shape: Shape) -> int:
    """First and last as often as all others together: those print, the middle does not."""
    world = shape.world_size
    return chance.choice((0, world - 1, chance.randrange(world), chance.randrange(world)))


def plain(chance: Random) -> Plan:
    return healthy_plan("plain", chance, draw_shape(chance))


def slow_start(chance: Random) -> Plan:
    shape = draw_shape(
        chance,
        start_seconds=chance.uniform(60.0, 400.0),
        first_step_seconds=chance.uniform(60.0, 500.0),
    )
    return healthy_plan("slow start and compile", chance, shape)


def slow_saves(chance: Random) -> Plan:
    shape = draw_shape(
        chance, first_save_factor=20.0, save_seconds=chance.uniform(0.7, 5.0), is_async=False
    )
    return healthy_plan("first save 20 times slower", chance, shape)


def long_evaluation(chance: Random) -> Plan:
    shape = draw_shape(chance, eval_seconds=chance.uniform(30.0, 180.0))
    shape = replace(shape, eval_interval=max(3, (shape.total - shape.first) // 3))
    fault = Fault("idle_evaluation", variant=chance.choice(("", "storage")))
    return healthy_plan(
        "long evaluation", chance, shape, *([fault] if chance.random() < 0.6 else [])
    )


def batch_ramp(chance: Random) -> Plan:
    shape = draw_shape(chance, first=0, step_seconds=chance.uniform(0.5, 6.0))
    length = max(2, shape.total // chance.randint(5, 9))
    return healthy_plan("batch ramp", chance, replace(shape, ramp=(length, 3), batch=64))


def fp16_warm_down(chance: Random) -> Plan:
    shape = draw_shape(chance, precision="fp16", first=0, lines=chance.choice((0, 60)))
    return healthy_plan("fp16 warm-down", chance, shape)


def fp16_equilibrium(chance: Random) -> Plan:
    shape = draw_shape(chance, precision="fp16", step_seconds=0.2, log_interval=10, lines=60)
    if not shape.first:
        shape = replace(shape, first=shape.save_interval, total=shape.total + shape.save_interval)
    growth = chance.randint(500, 990)
    return healthy_plan("fp16 equilibrium", chance, shape, growth=growth)


def storage_stall(chance: Random) -> Plan:
    """Everybody, or one rank, waits for the storage; it comes back before a restart would."""
    shape = draw_shape(chance)
    cost = shape.start_seconds + shape.first_step_seconds
    seconds = chance.uniform(5.0, max(8.0, min(45.0, cost * 0.85)))
    kind = chance.choice(("stall_heals", "stall_all_heals"))
    phase = chance.choice(
        (JobPhase.TRAINING, JobPhase.TRAINING, JobPhase.SAVING, JobPhase.EVALUATING)
    )
    fault = Fault(
        kind, phase, some_iteration(chance, shape), chance.random(), some_rank(chance, shape),
        seconds=seconds, variant="data" if kind == "stall_heals" else "storage",
    )  # fmt: skip
    return healthy_plan("storage stall that heals", chance, shape, fault)


def heavy_tails(chance: Random) -> Plan:
    shape = draw_shape(
        chance,
        step_sigma=chance.uniform(0.15, 0.4),
        tail_share=chance.uniform(0.005, 0.05),
        tail_factor=chance.uniform(3.0, 8.0),
    )
    return healthy_plan("heavy tails", chance, shape)


def scary_lines(chance: Random) -> Plan:
    shape = draw_shape(chance)
    faults = [
        Fault("chatter", JobPhase.TRAINING, some_iteration(chance, shape), chance.random(),
              some_rank(chance, shape), variant=chance.choice(VARIANTS))
        for _ in range(chance.randint(1, 4))
    ]  # fmt: skip
    return healthy_plan("scary but harmless lines", chance, shape, *faults)


def noisy_loss(chance: Random) -> Plan:
    shape = draw_shape(chance, lines=chance.randint(80, 220), loss_noise=chance.uniform(0.02, 0.05))
    spikes = tuple(
        (some_iteration(chance, shape, 0.2, 0.95), chance.uniform(0.5, 4.0))
        for _ in range(chance.randint(1, 4))
    )
    return healthy_plan("noisy loss with spikes that heal", chance, shape, spikes=spikes)


def long_silences(chance: Random) -> Plan:
    shape = draw_shape(chance, step_seconds=chance.uniform(0.2, 0.5), log_interval=100, lines=6)
    return healthy_plan("log interval 100", chance, shape)


def asynchronous(chance: Random) -> Plan:
    shape = draw_shape(chance, save_seconds=chance.uniform(4.0, 25.0))
    if shape.release.number >= (0, 12):
        shape = replace(shape, is_async=True)
    return healthy_plan("asynchronous saves", chance, shape)


def hiccups(chance: Random) -> Plan:
    """A rank's probe misses beats, or its GIL is held for four seconds."""
    shape = draw_shape(chance)
    eyes = replace(draw_eyes(chance, shape), missed_share=chance.uniform(0.02, 0.08))
    faults = [
        Fault("pause", JobPhase.TRAINING, some_iteration(chance, shape), chance.random(),
              some_rank(chance, shape), seconds=chance.uniform(2.0, 4.0))
        for _ in range(chance.randint(1, 3))
    ]  # fmt: skip
    return healthy_plan("probe hiccups", chance, shape, *faults, eyes=eyes)


def bad_clocks(chance: Random) -> Plan:
    shape = draw_shape(chance)
    skews = tuple(chance.uniform(-4.0, 4.0) for _ in range(shape.pods))
    eyes = replace(draw_eyes(chance, shape), skews=skews, lost_share=0.03)
    return healthy_plan("clocks that differ, lines that get lost", chance, shape, eyes=eyes)


def late_pod(chance: Random) -> Plan:
    """All lines of one pod are held back for a while, maybe through a slow save."""
    shape = draw_shape(chance)
    if chance.random() < 0.5:
        shape = replace(shape, save_seconds=chance.uniform(10.0, 40.0))
    since = shape.start_seconds + shape.first_step_seconds + chance.uniform(10.0, 120.0)
    pod = chance.choice((0, shape.pods - 1))
    eyes = replace(draw_eyes(chance, shape), gap=(pod, since, chance.uniform(5.0, 60.0)))
    return healthy_plan("a pod's log is late", chance, shape, eyes=eyes)


def resumed(chance: Random) -> Plan:
    """A person restarts the job: recomputed steps, and nothing is wrong."""
    shape = draw_shape(chance, handles_sigterm=False)
    fault = Fault("deleted", JobPhase.TRAINING, some_iteration(chance, shape))
    eyes = replace(draw_eyes(chance, shape), exits=True)
    return healthy_plan(
        "restarted by its owner", chance, shape, fault, eyes=eyes, relaunched_by="operator"
    )


def asked_to_exit(chance: Random) -> Plan:
    shape = draw_shape(chance)
    if chance.random() < 0.5:
        work = shape.total - shape.first
        shape = replace(shape, exit_interval=work // 2 + 1, first=0, total=work)
    else:
        shape = replace(shape, exit_minutes=chance.uniform(1.0, 3.0))
    return healthy_plan("exit that was asked for", chance, shape)


ALL: tuple[tuple[float, Make], ...] = (
    (5, plain), (2, slow_start), (3, slow_saves), (2, long_evaluation), (2, batch_ramp),
    (2, fp16_warm_down), (1, fp16_equilibrium), (5, storage_stall), (3, heavy_tails),
    (3, scary_lines), (2, noisy_loss), (1, long_silences), (2, asynchronous), (3, hiccups),
    (3, bad_clocks), (2, late_pod), (2, resumed), (1, asked_to_exit),
)  # fmt: skip
