# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron's own guard against NaN and its rerun machine (log-formats 4): exits 1, 16 and 17."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sim import wreckage
from sim.dying import die
from sim.faults import Fault
from sim.trainer import Trainer

_LOGGER = "megatron.core.rerun_state_machine"
_FOUND = "found NaN in local forward loss calculation"


def _who(trainer: Trainer, fault: Fault, iteration: int) -> str:
    host = trainer.stage.host(fault.rank)
    return f"Rank {fault.rank}, node {host}, device {fault.rank % 8}, iteration #{iteration}"


def nan_guard(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """A NaN that the guard sees: old releases raise, newer ones rerun the step first."""
    style, rank = trainer.shape.release.guard, fault.rank
    iteration = trainer.weights.iteration + 1
    if style == "rerun":
        yield from exit_16(trainer, fault)
        return
    host, device = trainer.stage.host(rank), rank % 8
    if style == "assert":
        error = f"AssertionError: Rank {rank}: {_FOUND}. Device: {device}, node: {host}"
    else:
        error = (
            f"RuntimeError: Rank {rank}, node {host}, device {device}, iteration {iteration}:"
            f" Unexpected result nan (message='{_FOUND}')"
        )
    yield from die(trainer, fault, wreckage.traceback(rank, error, *wreckage.TRAIN), 1)


def exit_16(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """The result is reproducible: a checkpoint, and a wish to be resumed elsewhere."""
    trainer.note(fault)
    stage, rank = trainer.stage, fault.rank
    iteration = trainer.weights.iteration + 1
    who = _who(trainer, fault, iteration)
    stage.say(
        rank,
        f"ERROR:{_LOGGER}:Unexpected result nan on rank {rank} at iteration #{iteration}"
        f" invocation #1 (message='{_FOUND}')",
        f"WARNING:{_LOGGER}:Need to rerun step to check reproducibility of initial result",
    )
    yield trainer.shape.step_seconds
    stage.say(
        rank,
        f"ERROR:{_LOGGER}:{who}: First rerun: unexpected result is reproducible within the"
        " tolerance (nan = nan). Need to rerun on a different GPU to verify correctness.!",
    )
    stage.say(
        0,
        f"WARNING:{_LOGGER}:Saving a checkpoint and exiting now. Please resume the job from the"
        " checkpoint to rerun the last iteration and establish a diagnostic",
    )
    if trainer.shape.save_interval:
        yield from trainer.saver.save(must_end=True)
    yield from die(trainer, fault, [], 16, others=16)


def exit_17(trainer: Trainer, fault: Fault) -> Iterator[float]:
    """The result is not reproducible: a transient error of this GPU."""
    trainer.note(fault)
    stage, rank = trainer.stage, fault.rank
    iteration = trainer.weights.iteration + 1
    who = _who(trainer, fault, iteration)
    stage.say(
        rank,
        f"ERROR:{_LOGGER}:Unexpected result 9714.640625 on rank {rank} at iteration #{iteration}"
        " invocation #4 (message='found Inf in local forward loss calculation')",
        f"WARNING:{_LOGGER}:Need to rerun step to check reproducibility of initial result",
    )
    yield trainer.shape.step_seconds
    stage.say(
        rank,
        f"ERROR:{_LOGGER}:{who}: First rerun: unexpected result is not reproducible within the"
        " tolerance (9714.640625 != 2.3717384338378906)!",
        f"ERROR:{_LOGGER}:{who}: Possible transient error!!",
    )
    stage.say(
        0, f"WARNING:{_LOGGER}:Exiting now. The job can be resumed from a previous checkpoint"
    )
    yield from die(trainer, fault, [], 17, others=17)


STRIKES: dict[str, Callable[[Trainer, Fault], Iterator[float]]] = {
    "nan_guard": nan_guard,
    "exit_16": exit_16,
    "exit_17": exit_17,
}
