# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a log reads like, by its words: features, scores, and the lines that speak for a cause."""

from __future__ import annotations

import zlib
from array import array

import msgspec
import pytest

from mwatch.classifier.classifier import (
    MOST_LINES,
    STEPS,
    Classifier,
    Weights,
    features,
    is_progress,
    key_of,
)
from mwatch.model.cause import Cause
from mwatch.model.decision import Action

CAUSES, ACTIONS = [Cause.OOM, Cause.FABRIC], [Action.STOP, Action.RESTART]


def small_model(**words: tuple[int, int, int, int]) -> Classifier:
    """Knows these words: a step for each of `CAUSES` and `ACTIONS`."""
    packed = Weights(
        cases=1,
        digest="",
        causes=CAUSES,
        actions=ACTIONS,
        biases=[0.0] * 4,
        scales=[1.0] * 4,
        keys=array("I", [key_of(word) for word in words]).tobytes(),
        steps=array("b", [step for steps in words.values() for step in steps]).tobytes(),
        arbiter={},
    )
    return Classifier(zlib.compress(msgspec.msgpack.encode(packed)))


MODEL = small_model(memory=(STEPS, 0, STEPS, 0), peer=(0, STEPS, 0, STEPS))


def found(*lines: str) -> set[str]:
    return {feature for _, of_line in features(lines) for feature in of_line}


def test_numbers_and_capitals_do_not_count() -> None:
    assert found("Rank 3: lost 0x7f2a") == found("rank 12: LOST 0xdead")


def test_parts_of_a_name_and_two_words_in_a_row_count() -> None:
    assert {"outofmemoryerror", "part:memory", "cuda outofmemoryerror"} <= found(
        "cuda OutOfMemoryError"
    )


def test_the_first_line_of_an_error_and_the_last_lines_count_once_more() -> None:
    lines = ["started", "ValueError: bad", *["x"] * 20, "KeyError: worse"]
    words = found(*lines)
    assert {"first:bad", "last:worse"} <= words
    assert not {"first:worse", "last:bad", "first:started"} & words


def test_lines_that_differ_only_in_numbers_are_read_once() -> None:
    lines = [f"peer {number} left" for number in range(100)] + ["end"] * 10
    assert [index for index, _ in features(lines)][:1] == [0]
    assert sum(index < 90 for index, _ in features(lines)) == 1


def test_no_more_than_the_last_lines_are_read() -> None:
    lines = ["first of all", *(f"{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(MOST_LINES))]
    assert 0 not in {index for index, _ in features(lines)}


@pytest.mark.parametrize(
    "line",
    [
        " iteration 12/ 100 | lm loss: 2.1 |",
        "{'loss': 1.2, 'epoch': 0.1}",
        " 12%|#2   | 12/100 [00:12<01:28, 1.0it/s]",
    ],
)
def test_lines_of_progress_are_left_out(line: str) -> None:
    assert is_progress(line)
    assert not {"iteration", "loss", "epoch"} & found(line)


@pytest.mark.parametrize(
    "line", [" iteration 12/ 100 | lm loss: nan |", "step 5/9 loss 2.0 OVERFLOW", "Loading"]
)
def test_other_lines_are_read(line: str) -> None:
    assert not is_progress(line)
    assert found(line)


def test_a_log_of_unknown_words_has_no_reading() -> None:
    assert MODEL.read(["nothing of this is known"]) is None
    assert MODEL.read([]) is None


def test_the_words_of_a_cause_speak_for_it() -> None:
    reading = MODEL.read(["ready", "out of memory", "done"])
    assert reading is not None
    assert reading.ranked(CAUSES) == [Cause.OOM, Cause.FABRIC]
    assert reading.actions[Action.STOP] > reading.actions[Action.RESTART]
    assert reading.line_for(Cause.OOM, Cause.FABRIC) == 1


def test_only_possible_causes_are_ranked() -> None:
    reading = MODEL.read(["out of memory"])
    assert reading is not None
    assert reading.ranked({Cause.FABRIC, Cause.HANG}) == [Cause.FABRIC]


def test_a_word_counts_once() -> None:
    once, often = MODEL.read(["memory", "peer"]), MODEL.read(["memory"] * 5 + ["peer"])
    assert once is not None and often is not None
    assert once.causes == often.causes


def test_the_course_of_a_number_counts_as_words_do() -> None:
    model = small_model(ready=(0, STEPS, 0, 0), **{"n:loss:rises": (STEPS, 0, 0, 0)})
    lines = ["ready", *(f"step {n} loss: {n}.5" for n in range(1, 9))]
    steady, rising = model.read(lines[:1]), model.read(lines)
    assert steady is not None and rising is not None
    assert steady.ranked(CAUSES)[0] is Cause.FABRIC
    assert rising.ranked(CAUSES)[0] is Cause.OOM
