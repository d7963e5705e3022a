# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The simulated trainer prints what the real parser reads, and counts as Megatron counts."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from mwatch.model.event import (
    Arguments,
    Checkpoint,
    Error,
    Event,
    Exit,
    Fault,
    Iteration,
    Phase,
    Validation,
)
from mwatch.model.phase import JobPhase
from sim.curve import Scaler
from sim.eyes import Eyes
from sim.faults import Fault as Plot
from sim.plan import Plan, draw_shape
from sim.release import RELEASES, Release
from sim.shape import Shape
from sim.world import World
from support.builders.events import events, only


def shape(**more: Any) -> Shape:
    fixed: dict[str, Any] = {
        "world_size": 4, "pod_ranks": 2, "tensor": 1, "pipeline": 1, "precision": "bf16",
        "step_seconds": 1.0, "log_interval": 1, "save_interval": 10, "first": 0,
        "is_async": False, "has_tee": False, "handles_sigterm": False, "release": RELEASES[-1],
    }  # fmt: skip
    drawn = draw_shape(Random(1), **(fixed | more))
    return replace(drawn, total=drawn.first + 30, eval_interval=15)


def printed(job: Shape, *faults: Plot) -> dict[int, list[Event]]:
    """By pod: the events of everything that is printed until nothing moves any more."""
    world = World(Plan(7, "test", True, job, Eyes(), faults))
    world.launch(world.stage.now, job.first or None, job.max_restarts)
    said: dict[int, list[tuple[float, str]]] = {}
    for _ in range(400):
        world.advance(world.stage.now + 1.0)
        for pod, lines in world.stage.printed.items():
            said.setdefault(pod, []).extend(lines)
        world.stage.printed.clear()
    texts = {pod: sorted(lines, key=lambda line: line[0]) for pod, lines in said.items()}
    return {
        pod: events("".join(f"{text}\n" for _, text in lines), faults=True)
        for pod, lines in texts.items()
    }


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.version)
def test_every_line_of_every_release_is_read(release: Release) -> None:
    first, last = printed(shape(release=release)).values()
    steps = only(last, Iteration)
    assert [step.iteration for step in steps] == list(range(1, 31))
    assert all(step.covers in (1, 2) and step.losses for step in steps)
    assert [each.iteration for each in only(last, Validation)] == [15, 30, 30]
    saved = [each.iteration for each in only(first, Checkpoint) if each.edge == "end"]
    assert saved == [10, 20, 30]
    (arguments,) = only(first, Arguments)
    assert arguments.world_size == 4
    assert arguments.train_iters == 30
    assert {mark.name for mark in only(first, Phase)} >= {"starting", "first-step", "training"}


def test_the_last_rank_prints_steps_and_rank_0_prints_saves() -> None:
    first, last = printed(shape()).values()
    assert not only(first, Iteration)
    assert not only(last, Checkpoint)


def test_the_first_line_of_a_process_is_counted_twice_where_upstream_does() -> None:
    _, last = printed(shape(release=RELEASES[-1], log_interval=10)).values()
    steps = only(last, Iteration)
    assert [(step.iteration, step.covers) for step in steps[:3]] == [(1, 1), (10, 10), (20, 10)]
    assert steps[0].first_of_process


def test_the_scaler_warms_down_as_the_real_one() -> None:
    scaler = Scaler()
    for _ in range(10):
        scaler.update(overflow=True)
    assert scaler.scale == 8388608.0  # log-formats 3.1: the first line at interval 10
    for _ in range(23):
        scaler.update(overflow=True)
    assert scaler.scale == 1.0


def test_an_asynchronous_save_is_durable_only_iterations_later() -> None:
    first, _ = printed(shape(is_async=True, save_seconds=3.0, first_save_factor=1.0)).values()
    edges = [each.edge for each in only(first, Checkpoint) if each.op == "save"]
    assert edges[:3] == ["begin", "mark", "end"]


def test_a_nan_hides_the_loss_and_counts_nothing() -> None:
    _, last = printed(shape(checks_nan=False), Plot("nan", iteration=20)).values()
    steps = {step.iteration: step for step in only(last, Iteration)}
    assert steps[19].losses
    assert not steps[20].losses
    assert steps[20].nan == steps[20].skipped == 0
    assert str(steps[20].grad_norm) == "nan"


def test_a_killed_rank_is_named_by_its_launcher_and_mourned_by_the_others() -> None:
    pods = printed(shape(), Plot("killed", iteration=12, rank=2))
    errors = [each for found in pods.values() for each in only(found, Error)]
    assert {(each.rank, each.exit_code) for each in errors} == {(2, -9), (0, -6)}
    assert any(each.role == "cascade" for each in only(pods[0], Fault))


def test_a_trainer_that_handles_sigterm_saves_and_says_good_bye() -> None:
    first, _ = printed(shape(handles_sigterm=True), Plot("sigterm", iteration=12)).values()
    assert [each.reason for each in only(first, Exit)] == ["signal"]
    assert only(first, Checkpoint)[-1].iteration == 12


def test_a_death_in_a_save_leaves_a_half_written_checkpoint() -> None:
    job = shape(save_seconds=5.0)
    plot = Plot("killed", JobPhase.SAVING, 20, 0.5, 1)
    world = World(Plan(7, "test", True, job, Eyes(), (plot,)))
    world.launch(world.stage.now, None, 0)
    world.advance(world.stage.now + 400.0)
    assert world.stage.folder.fit() == [10]
    assert world.stage.folder.why_unfit(20, None) == "it is half written"
