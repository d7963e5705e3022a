# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's lines about steps and checkpoints."""

from __future__ import annotations

import math

import pytest

from mwatch.model.event import Checkpoint, Iteration
from support.builders.events import events, log, one, steps

LINE = (
    "[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  grad_norm:  0.8319"
    "  memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
)


def test_a_step_is_an_iteration_with_a_null_total() -> None:
    event = one(log(LINE), Iteration)
    assert (event.iteration, event.total_iterations, event.flavour) == (14, None, "torchtitan")
    assert event.losses == {"loss": 3.24405}
    assert (event.grad_norm, event.throughput_tflops) == (0.8319, 0.52)
    assert event.extra == {"memory": "9.46GiB(64.99%)", "tps": 7282, "mfu": 0.17}
    assert event.timestamp == "2026-05-18T16:04:46.338"


def test_the_rank_in_front_is_local_and_therefore_no_rank() -> None:
    assert one(f"[rank3]:{LINE}\n", Iteration).rank is None


def test_a_loss_of_minus_one_is_a_placeholder() -> None:
    event = one(
        "[rank0]:[titan] 2025-05-28 21:13:37,816 - root - INFO - step:  1  loss: -1.0000"
        "  memory: 36.90GiB(46.54%)  tps: 4  tflops: 0.37  mfu: 0.15%\n",
        Iteration,
    )
    assert (event.losses, event.extra["loss"]) == ({}, -1.0)
    assert event.grad_norm is None


def test_mfu_may_be_not_available() -> None:
    event = one(LINE.replace("0.17%", "N/A"), Iteration)
    assert event.extra["mfu"] in (None, "N/A")
    assert event.throughput_tflops == 0.52


def test_colours_are_taken_away() -> None:
    line = LINE.replace("step: 14", "\x1b[31mstep: 14").replace(
        "loss:  3", "\x1b[38;2;180;60;0mloss:  3"
    )
    line = line.replace("  memory", "\x1b[39m  memory")
    assert one(line, Iteration) == one(LINE, Iteration)


def test_each_rank_that_prints_a_step_gives_an_event_of_the_same_coverage() -> None:
    text = log(LINE.replace("14", "13"), LINE, f"[rank1]:{LINE}")
    assert [(event.iteration, event.covers) for event in steps(text)] == [
        (13, None),
        (14, 1),
        (14, 1),
    ]


def test_nan_and_infinite_values_are_read() -> None:
    event = one(LINE.replace("3.24405", "nan").replace("0.8319", "inf"), Iteration)
    assert math.isnan(event.losses["loss"])
    assert event.grad_norm == math.inf


def test_thousands_are_divided_by_commas() -> None:
    assert one(LINE.replace("7,282", "1,234,567"), Iteration).extra["tps"] == 1234567


TITAN = "[rank0]:[titan] 2026-03-14 22:10:05,123 - root - INFO - {}"


@pytest.mark.parametrize(
    ("text", "op", "edge", "iteration"),
    [
        ("Loading the checkpoint at step 500.", "load", "begin", 500),
        ("Loading the checkpoint from outputs/checkpoint/step-500.", "load", "begin", 500),
        ("Finished loading the checkpoint in 38.21 seconds.", "load", "end", None),
        ("Saving the checkpoint.", "save", "begin", None),
        ("Saving a full checkpoint at last step, step 640.", "save", "begin", 640),
        ("Finished saving the checkpoint in 0.60 seconds.", "save", "end", 14),
        ("Finished saving the checkpoint (or staging if async is enabled)in 5.1 seconds.", "save",
         "end", None),
    ],
)  # fmt: skip
def test_lines_about_checkpoints(text: str, op: str, edge: str, iteration: int | None) -> None:
    step = TITAN.format("step: 14  loss:  3.4990  grad_norm:  1.2345  memory: 47.15GiB(59.61%)")
    found = [each for each in events(log(step, TITAN.format(text))) if isinstance(each, Checkpoint)]
    assert [(each.op, each.edge, each.iteration) for each in found] == [(op, edge, iteration)]
