# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Validation results."""

from __future__ import annotations

import math

import pytest

from mwatch.model.event import Iteration, Validation
from support.builders.events import events, log, megatron_line, one

TAIL = "lm loss value: 9.747312E+00 | lm loss PPL: 1.432372E+04 | "


@pytest.mark.parametrize(
    ("head", "dataset"),
    [
        (" validation loss at iteration 10 | ", "validation"),
        (" validation loss at iteration 10 on validation set | ", "validation"),
        (" validation loss at iteration 10 on test set | ", "test"),
        (" validation-0 loss at iteration 10 | ", "0"),
        (" validation-web loss at iteration 10 | ", "web"),
        ("valid loss at iteration 10 | ", "valid"),
    ],
)
def test_each_head_names_its_iteration_and_its_set(head: str, dataset: str) -> None:
    event = one(log("-" * 80, head + TAIL, "-" * 80), Validation)
    assert (event.iteration, event.dataset, event.line) == (10, dataset, 2)
    assert event.losses == {"lm loss": 9.747312}
    assert event.perplexities == {"lm loss": 14323.72}
    assert event.flavour == "megatron"


def test_nan_is_printed_and_the_perplexity_saturates() -> None:
    event = one(
        " validation loss at iteration 10 | lm loss value: NAN | lm loss PPL: 4.851652E+08 | ",
        Validation,
    )
    assert math.isnan(event.losses["lm loss"])
    assert event.perplexities == {"lm loss": 485165200.0}


def test_argonne_glues_value_and_perplexity() -> None:
    event = one(
        "[2025-11-10 12:29:58,134910][I][megatron/training:1693:evaluate_and_print_results]"
        "  validation loss at iteration 137650 on 122880-sample draw from validation set |"
        " lm loss value=2.697780lm loss PPL=14.351233\n",
        Validation,
    )
    assert (event.iteration, event.dataset) == (137650, "validation")
    assert event.timestamp == "2025-11-10T12:29:58.134910"
    assert event.losses == {"lm loss": 2.69778}
    assert event.perplexities == {"lm loss": 14.351233}


def test_a_line_that_was_cut_keeps_what_is_whole() -> None:
    event = one(
        "validation loss at iteration 45777 on validation set | lm loss value: 2.732478E+00\n",
        Validation,
    )
    assert (event.losses, event.perplexities) == ({"lm loss": 2.732478}, {})


def test_several_losses_are_kept_apart() -> None:
    event = one(
        " validation loss at iteration 10 | lm loss value: 2.0E+00 | lm loss PPL: 7.4E+00 |"
        " mtp_1 loss value: 3.0E+00 | mtp_1 loss PPL: 2.0E+01 | ",
        Validation,
    )
    assert event.losses == {"lm loss": 2.0, "mtp_1 loss": 3.0}
    assert event.perplexities == {"lm loss": 7.4, "mtp_1 loss": 20.0}


def test_a_result_between_iteration_lines_is_in_its_place() -> None:
    text = log(megatron_line(10), "-" * 60, f" validation loss at iteration 10 | {TAIL}", "-" * 60,
               megatron_line(11))  # fmt: skip
    assert [(type(e), e.line) for e in events(text)] == [
        (Iteration, 1), (Validation, 3), (Iteration, 5),
    ]  # fmt: skip


def test_gpt_neox_calls_them_results_and_the_perplexity_a_value() -> None:
    event = one(
        " validation results at iteration 100 | lm_loss value: 6.912345E+00 |"
        " lm_loss_ppl value: 1.004000E+03 |\n",
        Validation,
    )
    assert (event.iteration, event.losses) == (100, {"lm_loss": 6.912345})
    assert event.perplexities == {"lm_loss": 1004.0}


def test_a_set_in_brackets_names_the_data() -> None:
    event = one("validation loss at iteration 238 [web] | lm loss value: 2.1E+00 |\n", Validation)
    assert (event.dataset, event.losses) == ("web", {"lm loss": 2.1})
