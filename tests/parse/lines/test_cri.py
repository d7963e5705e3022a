# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The container runtime's log format: a stamp, a stream, and pieces tagged P that end in an F."""

from __future__ import annotations

import pytest

from mwatch.model.event import Error, Iteration
from support.builders.events import events, log, megatron_line, only, steps

STAMP = "2016-10-06T00:17:09.669794202Z"


def cri(text: str, *, stream: str = "stdout", tag: str = "F") -> str:
    return f"{STAMP} {stream} {tag} {text}"


def bare(event: Iteration) -> Iteration:
    return event._replace(line=0)


PLAIN = megatron_line()
PLAIN_EVENT = bare(steps(PLAIN)[0])


def test_full_lines_lose_their_header() -> None:
    text = log(*(cri(megatron_line(number)) for number in (1, 2, 3)))
    assert [(event.iteration, event.line) for event in steps(text)] == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("cut", range(1, len(PLAIN), 7))
def test_a_line_split_anywhere_is_joined(cut: int) -> None:
    text = log(
        cri("a line of no interest"),
        cri(PLAIN[:cut], tag="P"),
        cri(PLAIN[cut:]),
        cri(megatron_line(611)),
    )
    found = steps(text)
    assert [event.iteration for event in found] == [610, 611]
    assert bare(found[0]) == PLAIN_EVENT
    assert found[1].line == 4


def test_a_line_in_many_pieces_is_joined() -> None:
    pieces = [PLAIN[start : start + 20] for start in range(0, len(PLAIN), 20)]
    lines = [cri(piece, tag="P") for piece in pieces[:-1]] + [cri(pieces[-1])]
    assert [bare(event) for event in steps(log(*lines))] == [PLAIN_EVENT]


def test_pieces_of_two_streams_do_not_mix() -> None:
    text = log(
        cri(PLAIN[:100], tag="P"),
        cri("Traceback (most recent ", stream="stderr", tag="P"),
        cri(PLAIN[100:]),
        cri("call last):", stream="stderr"),
        cri('  File "train.py", line 3, in main', stream="stderr"),
        cri("ValueError: no data", stream="stderr"),
        cri(megatron_line(611)),
    )
    found = events(text)
    assert bare(only(found, Iteration)[0]) == PLAIN_EVENT
    assert [error.message for error in only(found, Error)] == ["no data"]
    assert [event.line for event in only(found, Iteration)][-1] == 7


def test_line_numbers_after_a_joined_line_count_physical_lines() -> None:
    text = log(
        cri(megatron_line(1)), cri("y" * 50, tag="P"), cri("y" * 50, tag="P"), cri("end"),
        cri(megatron_line(2)), cri("z", tag="P"), cri("z"), cri(megatron_line(3)),
    )  # fmt: skip
    assert [(event.iteration, event.line) for event in steps(text)] == [(1, 1), (2, 5), (3, 8)]


def test_any_chunking_gives_the_same_events() -> None:
    text = log(
        cri(megatron_line(1)), cri(PLAIN[:33], tag="P"), cri("noise", stream="stderr"),
        cri(PLAIN[33:]), cri(megatron_line(611)),
    )  # fmt: skip
    expected = events(text)
    assert [event.line for event in only(expected, Iteration)][-1] == 5
    for chunk in range(1, 200):
        assert events(text, chunk=chunk) == expected, chunk


def test_a_log_that_begins_inside_a_line_is_still_known_as_cri() -> None:
    text = log(
        "d norm: 0.791 |", cri(PLAIN[:100], tag="P"), cri(PLAIN[100:]), cri(megatron_line(611))
    )
    found = steps(text)
    assert [event.iteration for event in found] == [610, 611]
    assert bare(found[0]) == PLAIN_EVENT
    assert found[1].line == 4


def test_progress_bars_inside_cri_lines_are_split() -> None:
    bar = (
        "Epoch 0:   1%|          | {n}/772 [9:07<8:01, 41.36s/it, reduced_train_loss=3.4,"
        " global_step={g}.0]"
    )
    text = log(
        cri("\r".join(bar.format(n=number, g=number - 1) for number in (5, 6, 7))),
        cri(megatron_line(8)),
    )
    assert [(event.iteration, event.line) for event in steps(text)] == [
        (5, 1),
        (6, 1),
        (7, 1),
        (8, 2),
    ]


def test_a_piece_that_never_ends_is_given_at_the_close() -> None:
    found = steps(log(cri(megatron_line(1)), cri(PLAIN, tag="P")))
    assert [event.iteration for event in found] == [1, 610]
    assert found[1].line == 2


def test_an_offset_instead_of_z_is_a_cri_stamp_too() -> None:
    text = log(f"2024-05-01T10:00:00.123+02:00 stdout F {PLAIN}")
    assert [bare(event) for event in steps(text)] == [PLAIN_EVENT]
