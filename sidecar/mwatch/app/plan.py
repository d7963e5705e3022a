# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch plan`: a model and a cluster in; layout, memory, batch, checkpoint and interval out.

Looks for a layout where none is given, and judges one that is. It runs nothing: what it says of
speed and of failures is an estimate, and is marked so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mwatch.plan import (
    check,
    checkpoint,
    choose,
    interval,
    megatron_report,
    memory,
    parameters,
    pipeline,
    speed,
)
from mwatch.plan.choose import Fixed
from mwatch.plan.layout import Layout
from mwatch.plan.machines import Cluster
from mwatch.plan.megatron_report import Footprint, footprint
from mwatch.plan.shape import Shape
from mwatch.plan.storage import Store


class Wish(NamedTuple):
    model: str
    """The preset's name, or `custom`."""
    shape: Shape
    cluster: Cluster
    fixed: Fixed
    stores: tuple[Store, ...]
    failures_per_1000_gpu_days: float = interval.FAILURES_PER_1000_GPU_DAYS
    hours_between_failures: float | None = None
    """Of the whole job; given, it stands instead of the rate."""
    restart_seconds: float = 300.0
    step_seconds: float | None = None
    peak_share: float = speed.PEAK_SHARE


class Save(NamedTuple):
    """Checkpoints on one store."""

    store: Store
    write_seconds: float
    waiting: interval.Saving
    """Training waits for the write."""
    background: interval.Saving
    """`--async-save`: it waits for the copy to the host alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    wish: Wish
    layout: Layout
    problems: tuple[check.Problem, ...]
    other: Layout | None
    """One that would work, where this does not."""
    nodes: int | None
    """With how many machines it would, where nothing works on these."""

    @property
    def works(self) -> bool:
        return not any(each.level == "error" for each in self.problems)

    @property
    def is_shape(self) -> bool:
        return check.is_shape(self.wish.shape)

    @property
    def can_be_counted(self) -> bool:
        """Stages have no size where layers, heads or GPUs do not divide; nor has a shape."""
        return check.holds(self.wish.shape, self.layout)

    @property
    def exit_code(self) -> int:
        return 0 if self.works else 1

    @property
    def parameters(self) -> int:
        return parameters.total(self.wish.shape, self.layout.tensor)

    @property
    def stages(self) -> tuple[memory.Stage, ...]:
        return memory.all_stages(self.wish.shape, self.layout)

    @property
    def fullest(self) -> memory.Stage:
        return max(self.stages, key=lambda each: each.total)

    @property
    def report(self) -> Footprint | None:
        """What Megatron would print; LLM-Foundry prints no such line."""
        return None if self.layout.fully_sharded else footprint(self.wish.shape, self.layout)

    @property
    def unseen(self) -> tuple[str, ...]:
        """By that report."""
        return megatron_report.unseen(self.wish.shape, self.layout)

    @property
    def bubble(self) -> float:
        return pipeline.bubble(self.layout)

    @property
    def step_seconds(self) -> float | None:
        wish = self.wish
        if wish.step_seconds is not None:
            return wish.step_seconds
        return speed.step_seconds(wish.shape, self.layout, wish.cluster, wish.peak_share)

    @property
    def checkpoint_bytes(self) -> int:
        return checkpoint.size(self.wish.shape, self.layout)

    @property
    def seconds_between_failures(self) -> float:
        wish = self.wish
        if wish.hours_between_failures is not None:
            return wish.hours_between_failures * 3600
        return interval.mean_time_between_failures(
            wish.cluster.world, wish.failures_per_1000_gpu_days
        )

    @property
    def saves(self) -> tuple[Save, ...]:
        return tuple(self._save(each) for each in self.wish.stores)

    def _save(self, store: Store) -> Save:
        between = self.seconds_between_failures
        write = store.seconds(self.checkpoint_bytes)
        restart = self.wish.restart_seconds + write  # it is read again at the same speed
        stall = checkpoint.async_stall_seconds(self.wish.shape, self.layout)
        return Save(
            store,
            write,
            interval.saving(write, write, between, restart),
            interval.saving(min(stall, write), write, between, restart),
        )

    def steps(self, seconds: float) -> int | None:
        """In so many seconds; at least one. None: the time of a step is not known."""
        step = self.step_seconds
        return None if step is None else max(round(seconds / step), 1)


def make(wish: Wish) -> Plan:
    found = choose.choose(wish.shape, wish.cluster, wish.fixed)
    if found is not None:
        said = check.problems(wish.shape, found, wish.cluster)
        return Plan(wish, found, said, None, None)
    layout = _nearest(wish)
    said = check.problems(wish.shape, layout, wish.cluster)
    if all(each.level != "error" for each in said) or not check.is_shape(wish.shape):
        return Plan(wish, layout, said, None, None)
    return Plan(wish, layout, said, *_would_work(wish))


def _would_work(wish: Wish) -> tuple[Layout | None, int | None]:
    """As little is changed as can be: the parallel sizes, then the micro batch and what is
    computed again, then the global batch, then the number of machines. Switches stay."""
    open_sizes = wish.fixed._replace(
        tensor=None, pipeline=None, context=None, expert=None, virtual=None,
        first_layers=None, last_layers=None,
    )  # fmt: skip
    open_memory = open_sizes._replace(micro_batch=None, recompute=None)
    free = open_memory._replace(global_batch=None)
    tried = {wish.fixed}
    for fixed in (each for each in (open_sizes, open_memory, free) if each not in tried):
        tried.add(fixed)
        if (found := choose.choose(wish.shape, wish.cluster, fixed)) is not None:
            return found, None
    nodes = choose.smallest(wish.shape, wish.cluster, free)
    if nodes is None:
        return None, None
    return choose.choose(wish.shape, wish.cluster._replace(nodes=nodes), free), nodes


def _nearest(wish: Wish) -> Layout:
    """What a person gave, the rest by what needs least memory; else by what is usual."""
    possible = tuple(choose.candidates(wish.shape, wish.cluster, wish.fixed))
    if possible:
        return min(possible, key=lambda each: memory.fullest(wish.shape, each).total)
    fixed, world = wish.fixed, wish.cluster.world
    tensor, pipeline, context = fixed.tensor or 1, fixed.pipeline or 1, fixed.context or 1
    micro = fixed.micro_batch or 1
    data = max(world // (tensor * pipeline * context), 1)
    batch = fixed.global_batch or choose.usual_batch(world, micro * data)
    return Layout(
        world, tensor, pipeline, context, fixed.expert or 1, choose.plain_or(fixed.virtual),
        micro, batch,
        choose.recomputes(fixed)[0], fixed.sequence_parallel,
        fixed.distributed_optimizer, fixed.flash_attention, fixed.fully_sharded,
        fixed.first_layers, fixed.last_layers,
    )  # fmt: skip
