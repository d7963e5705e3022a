# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs in which something goes wrong: each cause, in each phase, at each rank position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from mwatch.model.phase import JobPhase
from sim.eyes import draw_eyes
from sim.faults import Fault
from sim.healthy import some_iteration, some_rank
from sim.plan import Plan, draw_shape
from sim.release import RELEASES
from sim.shape import Shape

Make = Callable[[Random], Plan]
_COMES_BACK = frozenset({"oom", "user_error", "data"})
"""A restart does not fix these."""
_STUCK = ("data", "sigstop", "gil", "loop", "desync")


def _plan(name: str, chance: Random, shape: Shape, *faults: Fault, **more: Any) -> Plan:
    eyes = more.pop("eyes", None) or draw_eyes(chance, shape)
    more.setdefault("acts", chance.random() < 0.8)
    return Plan(0, name, False, shape, eyes, faults, **more)


def hang_training(chance: Random) -> Plan:
    shape = draw_shape(chance)
    where = some_iteration(chance, shape, 0.02 if chance.random() < 0.1 else 0.3, 0.9)
    fault = Fault("hang", JobPhase.TRAINING, where, chance.random(), some_rank(chance, shape),
                  variant=chance.choice(_STUCK))  # fmt: skip
    return _plan("hang of one rank", chance, shape, fault)


def hang_everywhere(chance: Random) -> Plan:
    shape = draw_shape(chance)
    fault = Fault(
        "hang_all", JobPhase.TRAINING, some_iteration(chance, shape), chance.random(),
        variant=chance.choice(("fabric", "storage")), size=chance.choice((1.0, 2.0)),
    )  # fmt: skip
    return _plan("hang of all ranks", chance, shape, fault)


def hang_in_phase(chance: Random) -> Plan:
    """Not in training: starting, loading, first step, saving, evaluating, finalizing, stopping."""
    phase = chance.choice(
        (JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP, JobPhase.SAVING,
         JobPhase.SAVING, JobPhase.EVALUATING, JobPhase.ASYNC_FINALIZE, JobPhase.STOPPING)
    )  # fmt: skip
    shape = _shape_with(chance, phase)
    where = some_iteration(chance, shape, 0.1, 0.6)
    if phase in (JobPhase.STARTING, JobPhase.LOADING, JobPhase.FIRST_STEP):
        where = 0
    elif phase in (JobPhase.ASYNC_FINALIZE, JobPhase.STOPPING):
        where = shape.total
    kind = chance.choice(("hang", "hang_all"))
    variants = ("data", "sigstop", "gil") if kind == "hang" else ("storage",)
    fault = Fault(kind, phase, where, chance.random(), some_rank(chance, shape),
                  variant=chance.choice(variants), part=chance.randrange(3))  # fmt: skip
    return _plan(f"hang in {phase}", chance, shape, fault)


def _shape_with(chance: Random, phase: JobPhase) -> Shape:
    """A job that comes through this phase; small, for defaults are long."""
    shape = draw_shape(chance, world_size=4, pod_ranks=2, tensor=1, pipeline=1)
    work = shape.total - shape.first
    if phase is JobPhase.EVALUATING:
        shape = replace(shape, eval_interval=max(3, work // 4))
    elif phase is JobPhase.LOADING and not shape.first:
        first = shape.save_interval * 3
        shape = replace(shape, first=first, total=first + work)
    elif phase is JobPhase.ASYNC_FINALIZE:
        shape = replace(
            shape, release=RELEASES[-1], is_async=True, save_seconds=chance.uniform(15.0, 30.0)
        )
        shape = replace(shape, save_interval=max(3, work // 3), total=shape.first + work)
        every = shape.save_interval
        shape = replace(shape, total=shape.total // every * every)
    return shape


def long_stall(chance: Random) -> Plan:
    """It would heal, some time: whether acting was right depends on what a restart costs."""
    shape = draw_shape(chance)
    kind = chance.choice(("stall_heals", "stall_all_heals"))
    fault = Fault(
        kind, JobPhase.TRAINING, some_iteration(chance, shape), chance.random(),
        some_rank(chance, shape), seconds=chance.uniform(5.0, 120.0),
        variant="data" if kind == "stall_heals" else "storage",
    )  # fmt: skip
    return _plan("stall that heals, some time", chance, shape, fault)


def _crash(
    kind: str,
    *variants: str,
    name: str | None = None,
    phases: tuple[JobPhase, ...] = (),
    **fixed: Any,
) -> Make:
    def make(chance: Random) -> Plan:
        shape = draw_shape(chance, **fixed)
        phase = chance.choice((JobPhase.TRAINING, JobPhase.TRAINING, *phases))
        where = some_iteration(chance, shape, 0.05, 0.95)
        where = 0 if phase in (JobPhase.STARTING, JobPhase.FIRST_STEP) else where
        fault = Fault(
            kind, phase, where, chance.random(), some_rank(chance, shape),
            attempt=None if kind in _COMES_BACK else 1,
            variant=chance.choice(variants) if variants else "", size=chance.randint(1, 12),
            part=chance.choice((1, 2)),
        )  # fmt: skip
        return _plan(name or kind, chance, shape, fault)

    return make


def torchrun_restarts(chance: Random) -> Plan:
    """One pod; torchrun starts the workers again by itself."""
    shape = draw_shape(chance, max_restarts=2, world_size=4, pod_ranks=4, tensor=1, pipeline=1)
    fault = Fault(chance.choice(("killed", "crash")), JobPhase.TRAINING,
                  some_iteration(chance, shape), 0.5, some_rank(chance, shape))  # fmt: skip
    return _plan("torchrun restarts by itself", chance, shape, fault)


def half_written(chance: Random) -> Plan:
    shape = draw_shape(chance, save_seconds=chance.uniform(3.0, 15.0))
    where = some_iteration(chance, shape, 0.3, 0.7)
    fault = Fault(chance.choice(("killed", "hardware")), JobPhase.SAVING, where, chance.random(),
                  some_rank(chance, shape), variant="ecc")  # fmt: skip
    return _plan("killed in a save", chance, shape, fault)


def sigterm(chance: Random) -> Plan:
    shape = draw_shape(chance)
    fault = Fault("sigterm", JobPhase.TRAINING, some_iteration(chance, shape))
    how = "with" if shape.handles_sigterm else "without"
    return _plan(f"SIGTERM {how} a save", chance, shape, fault)


def taken_away(chance: Random) -> Plan:
    shape = draw_shape(chance)
    kind = chance.choice(("preempted", "drained", "deleted"))
    return _plan(kind, chance, shape, Fault(kind, JobPhase.TRAINING, some_iteration(chance, shape)))


def corrupt_first(chance: Random) -> Plan:
    """The checkpoint of the first resume is corrupt; the one before is good."""
    shape = draw_shape(chance)
    if not shape.first:
        shape = replace(shape, first=2 * shape.save_interval, total=shape.total * 2)
    return _plan("corrupt checkpoint", chance, shape, spoiled_first=True)


def corrupt_later(chance: Random) -> Plan:
    shape = draw_shape(chance)
    work = shape.total - shape.first
    shape = replace(shape, save_interval=max(2, work // 5))
    spoiled = Fault("spoiled", iteration=shape.first + work // 3, attempt=1)
    where = some_iteration(chance, shape, 0.7, 0.95)
    killed = Fault("killed", JobPhase.TRAINING, where, 0.5, some_rank(chance, shape))
    return _plan("corrupt checkpoint after a kill", chance, shape, spoiled, killed)


def random_start(chance: Random) -> Plan:
    """After a kill the checkpoints are not found, and training begins anew without a word."""
    shape = draw_shape(chance)
    where = some_iteration(chance, shape, 0.6, 0.9)
    killed = Fault("killed", JobPhase.TRAINING, where, 0.5, some_rank(chance, shape))
    return _plan(
        "start from random", chance, shape, killed, lost_attempts=frozenset({2}), acts=True
    )


def diverged(chance: Random) -> Plan:
    shape = draw_shape(chance, lines=60, first=0)
    every = max(12, shape.total // 4)
    shape = replace(shape, save_interval=every, is_async=False)
    killed = Fault("killed", JobPhase.TRAINING, 2 * every + int(every * 0.8), 0.5)
    wrong = Fault("diverged", iteration=1, attempt=2, size=chance.uniform(0.1, 0.4),
                  variant=chance.choice(("data", "optimizer", "weights")))  # fmt: skip
    return _plan("resume that diverged", chance, shape, killed, wrong, acts=True)


def crash_loop(chance: Random) -> Plan:
    """The same error every time, at the same place."""
    shape = draw_shape(chance, start_seconds=chance.uniform(8.0, 20.0))
    kind = chance.choice(("crash", "killed", "storage"))
    phase = chance.choice((JobPhase.TRAINING, JobPhase.FIRST_STEP, JobPhase.STARTING))
    where = some_iteration(chance, shape) if phase is JobPhase.TRAINING else 0
    fault = Fault(kind, phase, where, 0.5, some_rank(chance, shape), None, part=1)
    return _plan("crash loop", chance, shape, fault, acts=True)


def two_in_a_row(chance: Random) -> Plan:
    """Another fault, during the recovery or soon after it."""
    shape = draw_shape(chance)
    kinds = ("killed", "crash", "hardware", "hang", "storage", "nccl_timeout")
    first, second = chance.sample(kinds, 2)
    phase = chance.choice(
        (JobPhase.STARTING, JobPhase.FIRST_STEP, JobPhase.TRAINING, JobPhase.TRAINING)
    )
    later = some_iteration(chance, shape, 0.6, 0.9) if phase is JobPhase.TRAINING else 0
    faults = (
        Fault(first, JobPhase.TRAINING, some_iteration(chance, shape, 0.2, 0.5), 0.5,
              some_rank(chance, shape), variant="data" if first == "hang" else "ecc"),
        Fault(second, phase, later, 0.5, some_rank(chance, shape), 2, part=1,
              variant="sigstop" if second == "hang" else "ecc"),
    )  # fmt: skip
    return _plan("two in a row", chance, shape, *faults, acts=True)


ALL: tuple[tuple[float, Make], ...] = (
    (10, hang_training), (5, hang_everywhere), (5, hang_in_phase), (4, long_stall),
    (4, _crash("killed", phases=(JobPhase.FIRST_STEP, JobPhase.EVALUATING))),
    (3, _crash("lost_pod", "silent", "reset")),
    (3, _crash("oom", phases=(JobPhase.FIRST_STEP,))),
    (3, _crash("user_error", phases=(JobPhase.STARTING, JobPhase.FIRST_STEP))),
    (2, _crash("data", phases=(JobPhase.STARTING,))), (2, _crash("storage")),
    (2, _crash("crash", name="segmentation fault")),
    (4, _crash("hardware", "off_bus", "ecc", phases=(JobPhase.EVALUATING,))),
    (2, _crash("nccl_timeout")), 
    (2, _crash("nan_guard", precision="bf16", checks_nan=True)),
    (1, _crash("exit_16", precision="bf16", checks_nan=True, release=RELEASES[-2])),
    (1, _crash("exit_17", precision="bf16", checks_nan=True, release=RELEASES[-1])),
    (1, torchrun_restarts), (2, half_written), (2, sigterm),
    (1, taken_away), (1, corrupt_first), (1, corrupt_later), (1, random_start), (1, diverged),
    (2, crash_loop), (3, two_in_a_row),
)  # fmt: skip
