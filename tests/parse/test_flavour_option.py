# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A flavour named by the user: only its step lines are read, and they carry its name."""

from __future__ import annotations

from typing import get_args

import pytest

from mwatch.model.event import Batch, Checkpoint, Flavour, Iteration
from support.builders.events import events, log, megatron_line, only

NEMO = (
    "Training epoch 0, iteration 120/149 | lr: 3e-05 | global_step: 120 | reduced_train_loss: 1.6"
)
TITAN = (
    "[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319"
    "  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
)
COMPOSER = "[batch=20/100]:\n\t Train loss/train/total: 11.7821"
DEEPSPEED = "steps: 228 loss: 7.4 iter time (s): 35.472 samples/sec: 76.642"
LINES = {
    "megatron": megatron_line(), "nemo": NEMO, "torchtitan": TITAN, "composer": COMPOSER,
    "deepspeed": DEEPSPEED, "other": "step 14 | loss 3.2 | lr 0.1",
}  # fmt: skip
READ_BY: dict[Flavour, set[str]] = {
    "megatron": {"megatron"},
    "deepspeed": {"megatron", "deepspeed"},
    "bridge": {"megatron", "nemo"},
    "composer": {"composer"},
    "torchtitan": {"torchtitan"},
    "other": {"other"},
}


@pytest.mark.parametrize("flavour", get_args(Flavour))
@pytest.mark.parametrize("kind", LINES)
def test_only_the_lines_of_the_named_flavour_are_steps(flavour: Flavour, kind: str) -> None:
    found = events(log(LINES[kind]), flavour=flavour)
    read = [event for event in found if isinstance(event, Iteration)]
    assert bool(read) == (kind in READ_BY[flavour])
    assert {event.flavour for event in read} <= {flavour}


@pytest.mark.parametrize("flavour", get_args(Flavour))
def test_lines_common_to_all_are_read_in_every_flavour(flavour: Flavour) -> None:
    found = events("  successfully saved checkpoint from iteration 40 to /ck\n", flavour=flavour)
    assert [type(event) for event in found] == [Checkpoint]


def test_without_a_flavour_each_line_names_its_own() -> None:
    alone = [event for line in LINES.values() for event in events(log(line))]
    assert [event.flavour for event in alone if isinstance(event, Iteration)] == [
        "megatron", "bridge", "torchtitan", "composer", "deepspeed", "other",
    ]  # fmt: skip
    found = events(log(*LINES.values()))
    assert len(only(found, Batch)) == 1


def test_the_named_flavour_holds_for_many_lines() -> None:
    lines = log(*(megatron_line(number) for number in range(1, 200)))
    found = only(events(lines, flavour="deepspeed"), Iteration)
    assert ({event.flavour for event in found}, len(found)) == ({"deepspeed"}, 199)
