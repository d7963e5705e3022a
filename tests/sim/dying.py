# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How ranks die, and what their neighbours and launchers print about it.

The root cause is on one pod. The others see their peer vanish and may well print first, and
louder: clocks differ, buffers differ, and the dying rank takes its time.
"""

from __future__ import annotations

from collections.abc import Iterator

from sim import wreckage
from sim.faults import Died, Fault
from sim.stage import Posture
from sim.trainer import Trainer

DEAD = Posture("compute", False, False, is_alive=False, burns_cpu=False, uses_gpu=False,
                collective="absent")  # fmt: skip
WAITS = Posture("collective", moves=False, uses_gpu=False)


def die(
    trainer: Trainer, fault: Fault, text: list[str], code: int, *, others: int = -6
) -> Iterator[float]:
    """A rank dies with these lines; its torchrun and its peers follow.

    `others`: their exit code; -6 is that of ranks whose peer vanished, and they say so.
    """
    stage, shape, chance, rank = trainer.stage, trainer.shape, trainer.chance, fault.rank
    trainer.note(fault)
    home = shape.pod_of(rank)
    stage.crowd = WAITS._replace(place=stage.crowd.place)
    away = [pod for pod in range(shape.pods) if pod != home]
    cascades = others == -6
    early = cascades and bool(away) and chance.random() < 0.4
    if early:
        cascade(trainer, away)
        yield chance.uniform(0.2, 2.0)
    stage.say(rank, *text)
    stage.odd[rank] = DEAD
    yield chance.uniform(0.2, 3.0)
    if cascades and not early:
        cascade(trainer, away)
    local = rank % shape.pod_ranks
    for other in shape.ranks_of(home):
        if other != rank:
            stage.launcher(home, wreckage.closing_signal(stage.now, other))
    stage.launcher(home, wreckage.worker_failed(stage.now, local, rank, code))
    yield from launchers_end(trainer, home, rank, code, others)


def cascade(trainer: Trainer, pods: list[int]) -> None:
    stage = trainer.stage
    for pod in pods:
        rank = trainer.shape.ranks_of(pod)[0]
        stage.say(rank, *wreckage.peer_closed(stage.now, rank, stage.host(rank)))


def launchers_end(
    trainer: Trainer, home: int, rank: int, code: int, others: int = -6
) -> Iterator[float]:
    stage, shape, chance = trainer.stage, trainer.shape, trainer.chance
    if trainer.restarts_left > 0:
        line = wreckage.torchrun_restart(stage.now, trainer.restarts_left, shape.max_restarts)
        stage.launcher(home, line)
        trainer.relaunches = True
        raise Died
    local = rank % shape.pod_ranks
    stage.crowd = DEAD
    stage.launcher(home, *wreckage.child_failed(stage.now, local, rank, code))
    stage.end_pod(home, 1, later=chance.uniform(0.1, 1.0))
    yield chance.uniform(0.5, 4.0)
    for pod in range(shape.pods):
        if pod == home:
            continue
        first = shape.ranks_of(pod)[0]
        stage.launcher(pod, wreckage.worker_failed(stage.now, 0, first, others))
        stage.launcher(pod, *wreckage.child_failed(stage.now, 0, first, others))
        stage.end_pod(pod, 1, later=chance.uniform(0.1, 3.0))
    raise Died


def timeout_storm(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """Every rank that waited prints its watchdog's report; the culprit may stay silent."""
    stage, shape = trainer.stage, trainer.shape
    silent = fault.rank if fault.kind == "hang" else None
    work = 1500 + (stage.iteration or 0)
    ranks = [rank for rank in range(min(shape.world_size, 64)) if rank != silent]
    for rank in ranks:
        text = wreckage.collective_timeout(stage.now, rank, work, shape.timeout_seconds)
        stage.say(rank, *text)
    yield trainer.chance.uniform(1.0, 3.0)
    first = ranks[0]
    stage.launcher(shape.pod_of(first), wreckage.worker_failed(stage.now, 0, first, -6))
    yield from launchers_end(trainer, shape.pod_of(first), first, -6)
