# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Composer's console blocks."""

from __future__ import annotations

import math

from mwatch.model.event import Batch, Iteration, Validation
from support.builders.events import events, log, many, one, only

BLOCK = (
    "[batch=20/100]:\n"
    "\t Train time/batch: 19\n"
    "\t Train time/sample: 608\n"
    "\t Train trainer/device_train_microbatch_size: 4\n"
    "\t Train loss/train/total: 11.7821\n"
    "\t Train metrics/train/LanguageCrossEntropy: 11.7821\n"
    "\t Train throughput/batches_per_sec: 0.6600\n"
    "\t Train throughput/device/tokens_per_sec: 5400.1234\n"
    "\t Train lr-DecoupledAdamW/group0: 0.0000\n"
)


def block(number: int, loss: str = "11.7821") -> str:
    text = BLOCK.replace("=20/", f"={number}/").replace("batch: 19", f"batch: {number - 1}")
    return text.replace("total: 11.7821", f"total: {loss}")


def test_a_block_is_a_batch_with_the_keys_of_an_iteration() -> None:
    event = one(BLOCK, Batch)
    assert event._fields == Iteration._fields
    assert (event.iteration, event.total_iterations, event.flavour) == (20, 100, "composer")
    assert event.losses == {"loss/train/total": 11.7821}
    assert (event.consumed_samples, event.learning_rate, event.covers) == (608, 0.0, 1)
    assert event.extra["metrics/train/LanguageCrossEntropy"] == 11.7821
    assert event.extra["throughput/device/tokens_per_sec"] == 5400.1234
    assert event.extra["trainer/device_train_microbatch_size"] == 4
    assert (event.line, event.rank) == (1, None)


def test_a_block_is_no_iteration() -> None:
    assert not many(BLOCK, Iteration)


def test_blocks_close_on_the_next_header_and_at_the_end() -> None:
    found = many(block(1) + block(2) + block(3), Batch)
    assert [(event.iteration, event.line) for event in found] == [(1, 1), (2, 10), (3, 19)]


def test_blanks_instead_of_tabs_are_read_too() -> None:
    text = (
        "[batch=1/100]:\n         Train LanguageCrossEntropy: 15.1836\n"
        "         Train Perplexity: 53842.1433\n         Train loss/train/total: 12.8366\n"
        "[batch=2/100]:\n         Train LanguageCrossEntropy: 13.6863\n"
        "         Train Perplexity: 51716.5667\n         Train loss/train/total: 16.2421\n"
    )
    found = many(text, Batch)
    assert [event.losses for event in found] == [
        {"loss/train/total": 12.8366},
        {"loss/train/total": 16.2421},
    ]


def test_a_nan_loss_is_printed_and_read() -> None:
    assert math.isnan(one(block(5, "nan"), Batch).losses["loss/train/total"])


def test_a_step_that_was_skipped_has_no_loss_line() -> None:
    text = block(5).replace("\t Train loss/train/total: 11.7821\n", "")
    assert one(text, Batch).losses == {}


def test_values_of_any_kind_keep_their_text() -> None:
    text = (
        BLOCK
        + "\t Train notes: 'warm up'\n\t Train sizes: [1, 2]\n\t Train w: Tensor of shape (3,)\n"
    )
    extra = one(text, Batch).extra
    assert (extra["notes"], extra["sizes"]) == ("'warm up'", "[1, 2]")
    assert extra["w"] == "Tensor of shape (3,)"


def test_a_header_in_tokens_takes_the_batch_from_the_block() -> None:
    event = one(BLOCK.replace("[batch=20/100]", "[token=1000000/9000000]"), Batch)
    assert (event.iteration, event.total_iterations) == (20, None)


def test_a_header_in_samples_takes_the_batch_from_the_block() -> None:
    event = one(BLOCK.replace("[batch=20/100]", "[sample=608/90000]"), Batch)
    assert (event.iteration, event.total_iterations) == (20, None)


def test_a_header_in_epochs_takes_the_batch_from_the_block() -> None:
    text = BLOCK.replace("[batch=20/100]", "[epoch=2][batch=20/100]").replace(
        "time/batch: 19", "time/batch: 119"
    )
    event = one(text, Batch)
    assert (event.iteration, event.total_iterations) == (120, None)


def test_a_header_without_metrics_has_no_colon_and_is_a_batch() -> None:
    event = one("[batch=20/100]\nsome other line\n", Batch)
    assert (event.iteration, event.losses) == (20, {})


def test_a_foreign_line_inside_a_block_does_not_end_it() -> None:
    lines = BLOCK.splitlines()
    lines.insert(4, "WARNING: a message of another rank")
    event = one(log(*lines), Batch)
    assert event.losses == {"loss/train/total": 11.7821}
    assert event.learning_rate == 0.0


def test_blocks_of_two_ranks_interleave_under_torchrun() -> None:
    zero = [f"[default0]:{line}" for line in block(7, "1.5000").splitlines()]
    one_ = [f"[default1]:{line}" for line in block(7, "1.5000").splitlines()]
    mixed = [line for both in zip(zero, one_, strict=True) for line in both]
    found = many(log(*mixed), Batch)
    assert [(event.iteration, event.losses) for event in found] == [
        (7, {"loss/train/total": 1.5}),
        (7, {"loss/train/total": 1.5}),
    ]


def test_an_evaluation_gives_a_validation_at_its_end_only() -> None:
    text = log(
        "[Eval batch=1/10] Eval on eval/c4 data",
        "[Eval batch=5/10] Eval on eval/c4 data",
        "[Eval batch=10/10] Eval on eval/c4 data:",
        "\t Eval metrics/eval/c4/LanguageCrossEntropy: 3.2100",
        "\t Eval metrics/eval/c4/LanguagePerplexity: 24.7791",
    )
    event = one(text, Validation)
    assert (event.dataset, event.line, event.flavour) == ("eval/c4", 3, "composer")
    assert event.losses["metrics/eval/c4/LanguageCrossEntropy"] == 3.21
    assert not only(events(text), Batch)


def test_the_first_block_of_a_log_from_batch_one_is_the_first_of_its_process() -> None:
    found = many(block(1) + block(2), Batch)
    assert [event.first_of_process for event in found] == [True, False]


def test_a_log_prefix_in_front_of_a_header_is_no_obstacle() -> None:
    text = "2016-10-06T00:17:09.66Z stderr F "
    assert one(log(*(text + line for line in BLOCK.splitlines())), Batch).losses
