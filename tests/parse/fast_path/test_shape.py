# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that differ only in their digits are read by place, with the same result."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch.model.event import Event
from mwatch.parse.fast_path.layout import _WRITTEN, Cells, Column
from mwatch.parse.fast_path.run import LineRun
from mwatch.parse.grammar import Grammar
from mwatch.parse.lines.literals import with_rare_end
from mwatch.parse.reader import Reader
from support.builders.events import log, megatron_line

GRAMMAR = Grammar()


def batches(*lines: str) -> list[list[Event]]:
    """Of a reader that has read one line of the kind before."""
    reader = Reader(GRAMMAR, "trainer.log")
    reader.feed(log(lines[0], lines[0]).encode())
    return [list(batch) for batch in reader.batches(log(*lines[1:]).encode())]


def singly(*lines: str) -> list[Event]:
    reader = Reader(GRAMMAR, "trainer.log")
    reader.feed(log(lines[0], lines[0]).encode())
    return [event for line in lines[1:] for event in reader.feed(line.encode() + b"\n")]


def with_norm(iteration: int, norm: str) -> str:
    return megatron_line(iteration, change={"grad norm": norm})


def test_widths_that_change_end_no_run() -> None:
    lines = [with_norm(number, "9.9" if number % 3 else "10.12") for number in range(1, 400)]
    found = batches(*lines)
    assert len(found) == 1
    assert found[0] == singly(*lines)


def test_a_run_longer_than_what_is_compared_at_a_time_is_one() -> None:
    lines = [megatron_line(number) for number in range(100_001, 100_999)]
    (found,) = batches(*lines)
    assert found == singly(*lines)


@pytest.mark.parametrize("every", [1, 40])
def test_a_digit_of_a_key_is_no_value(every: int) -> None:
    lines = [
        megatron_line(
            number,
            losses=f" lm loss: 2.5E+00 | mtp_{1 + number // every % 2} loss: {number}.0E-02 |",
        )
        for number in range(100, 300)
    ]
    assert [event for batch in batches(*lines) for event in batch] == singly(*lines)


def test_a_digit_of_a_prefix_is_no_value() -> None:
    lines = [f"[rank{number % 2}]: {megatron_line(number)}" for number in range(100, 140)]
    found = [event for batch in batches(*lines) for event in batch]
    assert found == singly(*lines)
    assert [getattr(event, "rank", None) for event in found[:4]] == [1, 0, 1, 0]


@pytest.mark.parametrize("value", ["1_0", "007.5", "nan", "INF", "1.", "-0.0", "1e400", "5"])
def test_an_odd_value_reads_in_a_run_as_it_reads_alone(value: str) -> None:
    lines = [with_norm(number, value if number % 5 == 0 else "0.791") for number in range(1, 60)]
    together = [event for batch in batches(*lines) for event in batch]
    assert list(map(repr, together)) == list(map(repr, singly(*lines)))


def test_more_shapes_than_are_kept_are_read_all_the_same() -> None:
    lines = [with_norm(number, "0." + "1" * (number % 15)) for number in range(1, 60)]
    lines += [
        megatron_line(number, change={"grad norm": f"{number % 7}" * (1 + number % 13)})
        for number in range(60, 400)
    ]
    assert [event for batch in batches(*lines) for event in batch] == singly(*lines)


def test_a_run_says_where_it_ends_in_its_block() -> None:
    reader = Reader(GRAMMAR, "trainer.log")
    reader.feed(log(megatron_line(1), megatron_line(2)).encode())
    step = log(megatron_line(3)).encode()
    run, *rest = reader.batches(step + b"something else\n" + log(megatron_line(4)).encode())
    assert isinstance(run, LineRun)
    assert (len(run), run.end) == (1, len(step))
    assert [event.line for batch in rest for event in batch] == [5]


DECIMAL = _WRITTEN[float]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_a_decimal_is_read_to_the_same_bits(values: list[float]) -> None:
    texts = [f" {value:.17E} ".encode() for value in values]
    column = Column([Cells(text, 1, bytearray()) for text in texts])
    found = column.numbers(DECIMAL)
    assert found is not None
    assert [struct.pack("d", one) for one in found] == [struct.pack("d", float(t)) for t in texts]


def test_a_column_of_different_texts_gives_each() -> None:
    column = Column([Cells(b"1", 2, bytearray(b"1\n2\n")), Cells(b"30", 2, bytearray())])
    assert (len(column), column.only) == (4, None)
    assert column.texts() == [b"1", b"2", b"30", b"30"]


def test_a_text_is_cut_behind_rare_letters_and_stays_long_enough() -> None:
    assert with_rare_end("Guessing device ID based on global rank") == "Guessing device ID"
    assert with_rare_end("Killed") == "Killed"
    assert with_rare_end("X" + "e" * 30).startswith("X" + "e" * 8)
