# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Gotchas 1 to 4: prefixes, glued and cut lines, colours, progress bars, bytes of any kind."""

from __future__ import annotations

import itertools

import pytest

from mwatch.model.event import Checkpoint, Iteration, Overflow
from mwatch.parse.grammar import Grammar
from mwatch.parse.lines.line import MAX_LINE
from mwatch.parse.reader import Reader
from support.builders.events import events, log, many, megatron_line, one, only, steps

PREFIXES = {
    "torchrun": "[default7]:",
    "srun": "29: ",
    "padded srun": "   3: ",
    "node": "[lrdn3321:3]:",
    "pdsh": "worker-0: ",
    "ray": "(pretraining, pid=4112) ",
    "task": "i.pretrain/0 ",
    "torch": "[rank2]: ",
    "clock": "18:11:06.680 ",
    "pid": "[80746] ",
    "stream": "stderr: ",
    "journald": "Mar 14 23:06:11 node-a02 train[4411]: ",
    "cri": "2016-10-06T00:17:09.669794202Z stdout F ",
}
SAVED = "  successfully saved checkpoint from iteration      40 to /ck"


def bare(event: Iteration) -> Iteration:
    return event._replace(rank=None, line=0)


@pytest.mark.parametrize("name", PREFIXES)
def test_a_prefix_changes_nothing_but_the_rank(name: str) -> None:
    line = megatron_line()
    event = one(PREFIXES[name] + line + "\n", Iteration)
    assert bare(event) == bare(one(line, Iteration))
    assert event.rank == (2 if name == "torch" else None)


@pytest.mark.parametrize(("outer", "inner"), list(itertools.permutations(PREFIXES, 2)))
def test_prefixes_stack(outer: str, inner: str) -> None:
    line = megatron_line()
    event = one(PREFIXES[outer] + PREFIXES[inner] + line + "\n", Iteration)
    assert bare(event) == bare(one(line, Iteration))
    assert event.rank == (2 if "torch" in (outer, inner) else None)


@pytest.mark.parametrize("name", PREFIXES)
def test_a_prefixed_checkpoint_line_is_read(name: str) -> None:
    event = one(f"{PREFIXES[name]}{SAVED}\n", Checkpoint)
    assert (event.op, event.edge, event.iteration, event.path) == ("save", "end", 40, "/ck")


def test_every_prefix_at_once_is_read() -> None:
    event = one("".join(PREFIXES.values()) + megatron_line() + "\n", Iteration)
    assert event.iteration == 610


def test_colours_are_taken_away() -> None:
    line = "\x1b[31m[default7]:\x1b[39m" + megatron_line().replace(
        "lm loss", "\x1b[1mlm\x1b[0m loss"
    )
    event = one(line.replace("6.0", "\x1b[38;2;180;60;0m6.0") + "\x1b[0m\n", Iteration)
    assert event.losses == {"lm loss": 6.002230}
    assert (event.nan, event.extra) == (0, {})


def test_crlf_lines_read_like_others() -> None:
    text = log(megatron_line(1), SAVED, megatron_line(2))
    assert events(text.replace("\n", "\r\n")) == events(text)


def test_a_hole_of_zero_bytes_is_skipped() -> None:
    data = b"\0" * 5000 + log(megatron_line(7)).encode() + b"\0\0\n" + log(SAVED).encode()
    found = events(data)
    assert [event.line for event in found] == [1, 3]


def test_two_heads_in_one_line_are_two_events() -> None:
    text = megatron_line(10) + megatron_line(11, stamp="2025-09-07 23:58:48") + "\n\n"
    found = steps(text + log(megatron_line(12)))
    assert [(e.iteration, e.line, e.extra) for e in found] == [
        (10, 1, {}),
        (11, 1, {}),
        (12, 3, {}),
    ]
    assert [e.timestamp for e in found[:2]] == ["2025-09-07T23:58:47", "2025-09-07T23:58:48"]


def test_a_memory_report_glued_in_front_leaves_the_line_whole() -> None:
    memory = (
        "[Rank 3] (after 10 iterations) memory (MB) | allocated: 584.37 | max reserved: 1270.00"
    )
    event = one(memory + megatron_line() + "\n", Iteration)
    assert bare(event) == bare(one(megatron_line(), Iteration))


def test_a_message_glued_behind_leaves_no_trace_in_the_event() -> None:
    overflow = (
        "[2022-01-19 13:09:13,305] [INFO] [x.py:1:step] [deepscale] OVERFLOW! Rank 0 Skipping"
    )
    found = events(megatron_line() + overflow + "\n\n")
    assert [type(event) for event in found] == [Iteration, Overflow]
    assert bare(only(found, Iteration)[0]) == bare(one(megatron_line(), Iteration))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_line_cut_at_every_byte_gives_the_same_events(newline: str) -> None:
    text = log("training ...", megatron_line(9), megatron_line(10), SAVED, megatron_line(11))
    data = text.replace("\n", newline).encode()
    expected = events(data)
    assert len(expected) == 5
    grammar = Grammar()
    for cut in range(len(data)):
        reader = Reader(grammar, "trainer.log")
        assert reader.feed(data[:cut]) + reader.feed(data[cut:]) + reader.close() == expected


def test_no_event_is_given_for_a_line_that_has_not_ended() -> None:
    line = megatron_line().encode()
    reader = Reader(Grammar(), "f")
    assert reader.feed(line) == []
    assert [event.line for event in reader.feed(b"\n")] == [1]
    assert reader.close() == []


def test_invalid_utf8_is_no_obstacle() -> None:
    data = b"\xff\xfe\x80 [default0]:" + megatron_line().encode() + b" \xc3\x28\n"
    assert one(data, Iteration).grad_norm == 0.791


def test_text_in_other_scripts_stays_readable() -> None:
    data = (
        f"节点-3 {megatron_line()}\n  successfully saved checkpoint from iteration 5 to /数据/ck\n"
    )
    found = events(data)
    assert [type(event) for event in found] == [Iteration, Checkpoint]
    assert only(found, Checkpoint)[0].path == "/数据/ck"


@pytest.mark.parametrize("chunk", [1 << 16, 1 << 18, None])
def test_events_around_and_inside_a_ten_megabyte_line_survive(chunk: int | None) -> None:
    noise = "x" * 5_000_000
    inside = megatron_line(2)
    text = log(megatron_line(1), noise + inside + noise, megatron_line(3))
    found = only(events(text, chunk=chunk), Iteration)
    assert [(e.iteration, e.line, e.grad_norm) for e in found] == [
        (1, 1, 0.791), (2, 2, 0.791), (3, 3, 0.791),
    ]  # fmt: skip


def test_a_long_line_full_of_heads_gives_each_once() -> None:
    count = 4_000
    glued = "".join(megatron_line(number) for number in range(1, count + 1))
    assert len(glued) > 4 * MAX_LINE
    found = only(events(glued + "\n", chunk=1 << 18), Iteration)
    assert [event.iteration for event in found] == list(range(1, count + 1))
    assert {event.line for event in found} == {1}
    assert {event.grad_norm for event in found} == {0.791}


def test_progress_bars_do_not_disturb_line_numbers() -> None:
    bar = "".join(f"\rloading shards: {share:3d}%|##########|" for share in range(0, 100, 10))
    text = log(
        megatron_line(1), bar, megatron_line(2), bar + "\r" + megatron_line(3), megatron_line(4)
    )
    assert [(event.iteration, event.line) for event in steps(text)] == [
        (1, 1),
        (2, 3),
        (3, 4),
        (4, 5),
    ]


def test_trailing_blanks_and_tabs_are_ignored() -> None:
    assert bare(one(megatron_line() + " \t \n", Iteration)) == bare(one(megatron_line(), Iteration))


def test_blank_lines_are_counted_and_ignored() -> None:
    text = log("", "   ", megatron_line(1), "", "", megatron_line(2))
    assert [event.line for event in steps(text)] == [3, 6]


WRAPPED = (
    "[default7]: iteration   42780/ 115311 | consumed samples:    71455664 | consumed tokens:"
    " 146341199872 | elapsed time per iteration (s): 158.62 | learning\n"
    " rate: 4.653E-05 | global batch size: 2048 | lm loss: 2.171312E+00 | grad norm: 0.317 |"
    " num zeros: 0.0 | number of skipped iterations:  0 | number of nan\n"
    "iterations:  0 | samples per second: 17.877 | TFLOPs: 135.82 |\n"
)


def test_a_wrapped_line_is_put_together() -> None:
    found = many(WRAPPED + megatron_line(42781) + "\n", Iteration)
    assert [(event.iteration, event.line) for event in found] == [(42780, 1), (42781, 4)]
    event = found[0]
    assert (event.learning_rate, event.grad_norm, event.nan) == (4.653e-05, 0.317, 0)
    assert event.losses == {"lm loss": 2.171312}
    assert event.extra["samples per second"] == 17.877
    assert event.throughput_tflops == 135.82


def test_a_cut_line_followed_by_a_whole_one_gives_both_in_order() -> None:
    whole = megatron_line(11)
    cut = megatron_line(10)[:200]
    found = steps(log(cut, whole, megatron_line(12)))
    assert [(event.iteration, event.line) for event in found] == [(10, 1), (11, 2), (12, 3)]
    assert (found[0].grad_norm, found[1].grad_norm) == (None, 0.791)


def test_a_cut_line_at_the_end_is_given_when_the_file_ends_or_rests() -> None:
    reader = Reader(Grammar(), "f")
    assert reader.feed(megatron_line()[:150].encode() + b"\n") == []
    assert [type(event) for event in reader.settle()] == [Iteration]
    assert reader.close() == []
