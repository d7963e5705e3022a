# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that mark the phases of a run, and exits."""

from __future__ import annotations

import pytest

from mwatch.model.event import Exit, Iteration, Phase
from support.builders.events import log, many, none, one

WHEN = "2026-11-15 00:42:05.275377"
ISO = "2026-11-15T00:42:05.275377"


@pytest.mark.parametrize(
    ("text", "name", "edge"),
    [
        ("after megatron is initialized", "starting", "mark"),
        ("after model, optimizer, and learning rate scheduler are built", "starting", "mark"),
        ("after dataloaders are built", "starting", "mark"),
        ("before the start of training step", "first-step", "begin"),
        ("after training is done", "training", "end"),
    ],
)
def test_a_barrier_is_a_phase(text: str, name: str, edge: str) -> None:
    event = one(f"[{text}] datetime: {WHEN} \n", Phase)
    assert (event.name, event.edge, event.text, event.timestamp) == (name, edge, text, ISO)


def test_a_barrier_of_an_older_release_has_whole_seconds() -> None:
    event = one("[after dataloaders are built] datetime: 2024-02-05 12:11:37 \n", Phase)
    assert event.timestamp == "2024-02-05T12:11:37"


def test_an_unknown_barrier_is_kept_as_a_mark() -> None:
    event = one(f"[running GPU sniff test (8 ranks)] datetime: {WHEN} \n", Phase)
    assert (event.edge, event.text) == ("mark", "running GPU sniff test (8 ranks)")


@pytest.mark.parametrize(
    ("line", "edge"),
    [
        ("done with setup ...", "end"),
        ("done with setups ...", "end"),
        ("setting training iterations to 24414", "mark"),
        ("time to initialize megatron (seconds): 15.424", "mark"),
    ],
)
def test_a_line_of_the_start_is_a_phase(line: str, edge: str) -> None:
    event = one(log(line), Phase)
    assert (event.name, event.edge, event.text) == ("starting", edge, line)


def test_training_dots_end_the_start() -> None:
    assert one("training ...\n", Phase).text == "training ..."


def test_an_evaluation_at_the_end_begins_a_phase_and_its_progress_is_no_iteration() -> None:
    text = log("Evaluating on 32 samples", "Evaluating iter 1/2", "Evaluating iter 2/2")
    event = one(text, Phase)
    assert (event.name, event.edge) == ("evaluating", "begin")
    none(text, Iteration)


@pytest.mark.parametrize(
    ("text", "reason", "iteration"),
    [
        ("exiting program after receiving SIGTERM.", "signal", None),
        ("exiting program after 690.0159624854724 minutes", "duration", None),
        ("exiting program at iteration 25", "interval", 25),
    ],
)
def test_the_trainer_says_why_it_exits(text: str, reason: str, iteration: int | None) -> None:
    line = f"[{text}] datetime: {WHEN} \n"
    event = one(line, Exit)
    assert (event.reason, event.iteration, event.text) == (reason, iteration, text)
    assert event.timestamp == ISO
    none(line, Phase)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (">>> training terminated. Returning", "terminated"),
        ("Exiting during evaluation, timelimit reached", "evaluation-time-limit"),
    ],
)
def test_other_exits_are_reported_too(line: str, reason: str) -> None:
    event = one(log(line), Exit)
    assert (event.reason, event.text) == (reason, line)


def test_a_rank_prefix_gives_the_rank() -> None:
    assert one(f"[rank0]: [after training is done] datetime: {WHEN} \n", Phase).rank == 0


def test_two_glued_barriers_are_two_phases() -> None:
    first = f"[after dataloaders are built] datetime: {WHEN} "
    text = f"{first}[after training is done] datetime: {WHEN} \n\n"
    assert [event.text for event in many(text, Phase)] == [
        "after dataloaders are built", "after training is done",
    ]  # fmt: skip
