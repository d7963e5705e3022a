# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Endings that somebody asked for: signals, preemption, deletion; and watchers that go blind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sim import wreckage
from sim.dying import DEAD
from sim.faults import Died, Fault
from sim.release import glog
from sim.trainer import Trainer

REASONS = {
    "sigterm": None,
    "preempted": "Preempted",
    "drained": "NodeShutdown",
    "deleted": "deleted",
}


def sigterm(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """With a handler the trainer saves and leaves after this step; without, it is just gone."""
    stage, shape = trainer.stage, trainer.shape
    trainer.note(fault)
    if shape.handles_sigterm and fault.kind == "sigterm":
        trainer.terminate_at = stage.now
        return
    reason = REASONS[fault.kind]
    for pod in range(shape.pods):
        first = shape.ranks_of(pod)[0]
        when = glog(stage.now)
        stage.launcher(
            pod,
            f"W{when} 871 torch/distributed/elastic/agent/server/api.py:719] Received 15 death"
            " signal, shutting down workers",
            wreckage.closing_signal(stage.now, first),
            "Traceback (most recent call last):",
            '  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/run.py", line 990,'
            " in main",
            "    run(args)",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 871 got"
            " signal: 15",
        )
        stage.end_pod(pod, 143, signal="SIGTERM", reason=reason, later=trainer.chance.uniform(1, 5))
    yield trainer.chance.uniform(0.5, 2.0)
    stage.crowd = DEAD
    raise Died


def lose_sight(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """Training goes on; the watchers do not see it any more."""
    trainer.note(fault)
    trainer.stage.blinded[fault.variant] = trainer.stage.now
    yield 0.0


STRIKES: dict[str, Callable[[Trainer, Fault], Iterator[float]]] = {
    **dict.fromkeys(REASONS, sigterm),
    "blind": lose_sight,
}
