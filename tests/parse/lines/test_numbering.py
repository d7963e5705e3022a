# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The number of a line is how many lines began before it, moved by the shifts up to it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mwatch.parse.lines.line import LineBlock, Numbering

BLOCK = b"one\ntwo\n\nfour\nfive"
STARTS = (0, 4, 8, 9, 14)


def test_lines_are_numbered_from_the_first_on() -> None:
    assert Numbering(LineBlock(BLOCK), 7).of(STARTS) == [7, 8, 9, 10, 11]


def test_lines_that_nobody_asked_for_are_counted_too() -> None:
    numbering = Numbering(LineBlock(BLOCK), 1)
    assert numbering.of((4,)) == [2]
    assert numbering.of((9, 14)) == [4, 5]


def test_a_last_line_without_an_end_has_not_ended() -> None:
    assert Numbering(LineBlock(BLOCK), 1).ended() == 4
    assert Numbering(LineBlock(BLOCK + b"\n"), 1).ended() == 5
    assert Numbering(LineBlock(b""), 1).ended() == 0


def test_a_shift_holds_from_its_offset_on() -> None:
    numbering = Numbering(LineBlock(BLOCK, ((4, -1), (9, 2))), 1)
    assert numbering.of(STARTS) == [1, 1, 2, 5, 6]
    assert numbering.ended() == 5


def test_a_shift_behind_the_last_line_moves_what_comes_after_the_block() -> None:
    numbering = Numbering(LineBlock(b"a\n", ((5, 3),)), 1)
    assert numbering.of((0,)) == [1]
    assert numbering.ended() == 4


@given(
    texts=st.lists(st.binary(max_size=9).map(lambda text: text.replace(b"\n", b"")), min_size=1),
    shifts=st.lists(st.tuples(st.integers(0, 60), st.integers(-2, 2)), max_size=4),
    data=st.data(),
)
def test_numbers_do_not_depend_on_which_lines_were_asked_for(
    texts: list[bytes], shifts: list[tuple[int, int]], data: st.DataObject
) -> None:
    block = b"".join(text + b"\n" for text in texts)
    starts = [sum(len(text) + 1 for text in texts[:index]) for index in range(len(texts))]
    shifts.sort()
    asked = sorted(data.draw(st.sets(st.sampled_from(range(len(starts))), min_size=1)))
    cut = data.draw(st.integers(0, len(asked)))

    numbering = Numbering(LineBlock(block, tuple(shifts)), 1)
    parts = [part for part in (asked[:cut], asked[cut:]) if part]
    found = [number for part in parts for number in numbering.of([starts[i] for i in part])]

    moved = [sum(delta for at, delta in shifts if at <= starts[i]) for i in asked]
    assert found == [1 + i + by for i, by in zip(asked, moved, strict=True)]
    assert numbering.ended() == len(texts) + sum(delta for _, delta in shifts)
