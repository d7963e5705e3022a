# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The odd but healthy runs of `tests/healthy/runs.toml` as kinds of simulated jobs.

A pause or an unknown piece of work ends before a restart would have paid; a slower step is at
work; a person who holds the run lets it go. Nothing may be done to any of them.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from mwatch.model.phase import JobPhase
from sim.eyes import draw_eyes
from sim.faults import Fault
from sim.healthy import healthy_plan, some_iteration, some_rank
from sim.lines import FLAVOURS
from sim.plan import Plan, draw_shape
from sim.shape import Shape

_WORTH = 0.8  # of the cost of a restart: a wait that ends before is not worth one
_LONGEST_STEP = 400.0


def _costly(chance: Random, **fixed: Any) -> Shape:
    return draw_shape(chance, start_seconds=chance.uniform(60.0, 300.0), **fixed)


def _seconds(chance: Random, shape: Shape) -> float:
    longest = _WORTH * (shape.start_seconds + shape.first_step_seconds)
    return min(chance.choice((60.0, 120.0, 180.0)), longest)


def data_pauses(chance: Random) -> Plan:
    """Once, or again and again."""
    shape = _costly(chance)
    faults = [
        Fault("stall_all_heals", JobPhase.TRAINING, where, chance.random(),
              seconds=_seconds(chance, shape), variant="storage")
        for where in {some_iteration(chance, shape) for _ in range(chance.choice((1, 1, 2, 4)))}
    ]  # fmt: skip
    return healthy_plan("data pauses of minutes", chance, shape, *faults)


def unknown_work(chance: Random) -> Plan:
    """An evaluation by a function of the user's own: nothing printed and no phase shows it."""
    shape = _costly(chance)
    fault = Fault("unknown_work", JobPhase.TRAINING, some_iteration(chance, shape), 0.0,
                  attempt=None, seconds=_seconds(chance, shape))  # fmt: skip
    return healthy_plan("evaluation that nothing shows", chance, shape, fault)


def long_saves(chance: Random) -> Plan:
    shape = draw_shape(chance, save_seconds=chance.uniform(60.0, 200.0), is_async=False)
    return healthy_plan("saves of minutes", chance, shape)


def much_slower(chance: Random) -> Plan:
    shape = draw_shape(chance, step_seconds=chance.uniform(0.5, 4.0))
    factor = min(chance.choice((10.0, 30.0, 100.0)), _LONGEST_STEP / shape.step_seconds)
    last = shape.total - chance.randint(3, 12)
    fault = Fault("much_slower", JobPhase.TRAINING, max(last, shape.first + 8), attempt=None,
                  size=factor)  # fmt: skip
    return healthy_plan("steps 10 to 100 times slower", chance, shape, fault)


def held_by_a_person(chance: Random) -> Plan:
    """Stopped and continued, or under a debugger; who watches processes sees that."""
    shape = draw_shape(chance)
    variant = chance.choice(("signal", "debugger"))
    seconds = chance.uniform(20.0, 250.0 if variant == "signal" else 900.0)
    fault = Fault("held", JobPhase.TRAINING, some_iteration(chance, shape), chance.random(),
                  some_rank(chance, shape), seconds=seconds, variant=variant)  # fmt: skip
    eyes = replace(draw_eyes(chance, shape), process=True)
    return healthy_plan("held by a person", chance, shape, fault, eyes=eyes)


def quoted_ends(chance: Random) -> Plan:
    """Ends of other runs in the text of one that is watched by wrappers, then maybe a pause."""
    shape = _costly(chance)
    where = some_iteration(chance, shape)
    variant = chance.choice(("exit codes", "report", "done", "other run"))
    rank = 0 if variant == "done" else shape.world_size - 1
    quote = Fault("chatter", JobPhase.TRAINING, where, chance.random(), rank, variant=variant)
    pause = Fault("stall_all_heals", JobPhase.TRAINING, where + 1, 0.5, variant="storage",
                  seconds=_seconds(chance, shape))  # fmt: skip
    eyes = replace(draw_eyes(chance, shape), exits=True)
    faults = (quote, pause) if chance.random() < 0.5 else (quote,)
    return healthy_plan("ends of other runs in the log", chance, shape, *faults, eyes=eyes)


def odd_clocks(chance: Random) -> Plan:
    """Printed times of another zone, or a clock that is set in the middle of the run."""
    shape = draw_shape(chance, hours_ahead=chance.choice((0.0, 0.0, 9.0, -8.0, 5.5)))
    steps = [
        Fault("clock", JobPhase.TRAINING, some_iteration(chance, shape), chance.random(),
              size=chance.choice((-3600.0, 3600.0, -300.0, 600.0, -0.5, 31536000.0)))
        for _ in range(chance.randint(1, 2))
    ]  # fmt: skip
    return healthy_plan("printed clocks that are odd", chance, shape, *steps)


def other_trainers(chance: Random) -> Plan:
    """Their checkpoints are unknown, and the probe sees no iteration."""
    shape = _costly(
        chance, flavour=chance.choice(FLAVOURS), save_interval=0, first=0, loads=False,
        precision="bf16", has_tee=False,
    )  # fmt: skip
    shape = replace(shape, eval_interval=0)
    fault = Fault("stall_all_heals", JobPhase.TRAINING, some_iteration(chance, shape),
                  chance.random(), seconds=_seconds(chance, shape), variant="storage")  # fmt: skip
    eyes = replace(draw_eyes(chance, shape), folder=False, lost_share=0.0)
    faults = (fault,) if chance.random() < 0.7 else ()
    return healthy_plan("trainers that are not Megatron", chance, shape, *faults, eyes=eyes)


ALL = (
    (3, data_pauses), (2, unknown_work), (2, long_saves), (2, much_slower), (3, held_by_a_person),
    (2, quoted_ends), (2, odd_clocks), (3, other_trainers),
)  # fmt: skip
