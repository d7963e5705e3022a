# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How each fault that stops the job plays out, line by line and rank by rank: hangs.

A hang that nobody ends is ended by torch: after the collective's timeout the watchdogs of the
waiting ranks print their storm and take the job down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mwatch.model.phase import JobPhase
from sim import crashes, departures, guard, wreckage
from sim.chatter import harmless
from sim.dying import timeout_storm
from sim.faults import Fault
from sim.stage import Posture
from sim.trainer import Trainer

_WAITS = Posture("collective", moves=False, uses_gpu=False)
_STUCK = {
    "data": Posture("data", False, burns_cpu=False, uses_gpu=False, collective="absent"),
    "sigstop": Posture("compute", False, False, is_stopped=True, burns_cpu=False, uses_gpu=False,
                       collective="absent"),
    "gil": Posture("compute", False, False, uses_gpu=False, collective="absent"),
    "loop": Posture("collective", False, uses_gpu=False, collective="in"),
    "desync": Posture("collective", False, uses_gpu=False, collective="other"),
}  # fmt: skip


def hang(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """One rank is stuck; the others come to the next collective and wait there."""
    stage = trainer.stage
    trainer.note(fault)
    before = stage.crowd
    place = stage.crowd.place if stage.phase is not JobPhase.TRAINING else None
    waits, stuck = _WAITS, _STUCK[fault.variant]
    if place is not None:  # the probe names the phase, not what happens within it
        waits, stuck = waits._replace(place=place), stuck._replace(place=place)
    waits = waits._replace(burns_cpu=trainer.chance.random() < 0.7)
    stage.crowd = waits
    stage.odd[fault.rank] = stuck
    yield from _last(trainer, fault)
    del stage.odd[fault.rank]
    stage.crowd = before


def hang_all(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """Every rank is at the same place: the fabric is dead, or the storage."""
    stage = trainer.stage
    trainer.note(fault)
    before = stage.crowd
    on_storage = fault.variant == "storage"
    place = before.place
    if stage.phase is JobPhase.TRAINING:
        place = "data" if on_storage else "collective"
    stage.crowd = Posture(
        place, moves=False, burns_cpu=not on_storage, uses_gpu=False,
        collective="none" if on_storage else "in",
    )  # fmt: skip
    if fault.variant == "fabric" and fault.size > 1.0:
        for rank in range(0, trainer.shape.world_size, trainer.shape.pod_ranks):
            stage.say(rank, wreckage.ib_retries(rank, stage.host(rank)))
    yield from _last(trainer, fault)
    stage.crowd = before


def _last(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """Until it heals, or until torch's own timeout."""
    if fault.seconds is not None:
        trainer.note_pause(fault.seconds)
        yield fault.seconds
        trainer.healed(fault)
        return
    if trainer.stage.crowd.collective == "none":
        while True:
            yield 3600.0  # no collective is pending: nobody times out
    yield trainer.shape.timeout_seconds
    yield from timeout_storm(trainer, fault)


def unknown_work(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """Every rank is in a function that nobody knows, and its GPU idles."""
    stage = trainer.stage
    trainer.note(fault)
    before = stage.crowd
    busy = trainer.chance.random() < 0.3
    stage.crowd = Posture("compute", False, burns_cpu=busy, uses_gpu=False, collective="none")
    yield from _last(trainer, fault)
    stage.crowd = before


def held(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """By a signal: every process. By a debugger: one rank, and the others wait for it."""
    stage = trainer.stage
    trainer.note(fault)
    before = stage.crowd
    if fault.variant == "signal":
        stage.crowd = _STUCK["sigstop"]._replace(place=before.place, collective="none")
    else:
        stage.crowd = _WAITS
        stage.odd[fault.rank] = _STUCK["sigstop"]._replace(is_stopped=False, is_traced=True)
    yield from _last(trainer, fault)
    stage.odd.pop(fault.rank, None)
    stage.crowd = before


def clock(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """The clock of the trainer's machine is set."""
    trainer.stage.clock_ahead += fault.size
    yield 0.0


def pause(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """A rank holds the GIL for some seconds (garbage collection, a long C call)."""
    seconds = fault.seconds or 4.0
    trainer.stage.odd[fault.rank] = _STUCK["gil"]
    trainer.note_pause(seconds)
    yield seconds
    trainer.stage.odd.pop(fault.rank, None)


def chatter(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """Lines that look bad and mean nothing."""
    stage, rank = trainer.stage, fault.rank
    stage.say(rank, *harmless(trainer, fault.variant, rank))
    yield 0.0


STRIKES: dict[str, Callable[[Trainer, Fault], Iterator[float]]] = {
    "hang": hang,
    "hang_all": hang_all,
    "stall_heals": hang,
    "stall_all_heals": hang_all,
    "pause": pause,
    "unknown_work": unknown_work,
    "held": held,
    "clock": clock,
    "chatter": chatter,
    **crashes.STRIKES,
    **guard.STRIKES,
    **departures.STRIKES,
}


def strike(trainer: Trainer, fault: Fault) -> Iterator[float]:
    yield from STRIKES[fault.kind](trainer, fault)
