# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Arbitrary and damaged input: no exception, and the same events however it is split."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch import json_codec
from mwatch.model.event import Event
from mwatch.model.snapshot.event_wire import from_wire, to_wire
from mwatch.parse.reader import Reader
from support.builders.events import (
    MICRO_STAMP,
    arguments_block,
    events,
    grammar,
    log,
    megatron_line,
)

SEEDS = tuple(
    part.encode()
    for part in (
        megatron_line(10),
        megatron_line(11, stamp=MICRO_STAMP, tail=" toks/s: 12 |"),
        "[default7]: iteration 42780/ 115311 | consumed samples: 5 | learning\n rate: 1.0E-05 |",
        "  successfully saved checkpoint from iteration      40 to /ck [ t 1/1, p 1/1 ]",
        "saving checkpoint at iteration      40 to /ck in torch_dist format",
        " validation loss at iteration 10 | lm loss value: 9.7E+00 | lm loss PPL: 1.4E+04 | ",
        "[after training is done] datetime: 2026-11-15 00:42:05.275377 ",
        "[exiting program at iteration 25] datetime: 2026-11-15 00:42:05.275377 ",
        arguments_block(log_interval=10, world_size=8),
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "x", line 3\n[rank1]: E: 1',
        "Root Cause (first observed failure):\n[0]:\n  rank      : 8\n  exitcode  : -9 (pid: 1)",
        "(min, max) time across ranks (ms):\n    evaluate ....: (1.00, 2.00)",
        "[batch=20/100]:\n\t Train loss/train/total: 11.7821",
        "[titan] 2026-05-18 16:04:46,338 - root - INFO - step: 14  loss:  3.24405  tps: 7,282",
        "Training epoch 0, iteration 120/149 | global_step: 120 | reduced_train_loss: 1.6",
        "Epoch 0:   1%| | 7/77 [9:07<8:01, 41.36s/it, reduced_train_loss=3.4, global_step=6.0]\r",
        "2016-10-06T00:17:09.669794202Z stdout P half of",
        "2016-10-06T00:17:09.669794202Z stdout F a line",
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB.",
        "| MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0",
        "\x1b[31m", "\r\n", "\r", "\0\0", "|", "[rank3]: ", "",
    )
)  # fmt: skip
pieces = st.one_of(st.sampled_from(SEEDS), st.binary(max_size=30))
newlines = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r", b""])
logs = st.lists(st.tuples(pieces, newlines), max_size=25).map(
    lambda parts: b"".join(text + end for text, end in parts)
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A log of known lines with some bytes taken away, replaced or added."""
    data = bytearray(draw(logs))
    for _ in range(draw(st.integers(0, 6))):
        position = draw(st.integers(0, len(data)))
        width = draw(st.integers(0, 12))
        data[position : position + width] = draw(st.binary(max_size=8))
    return bytes(data)


def wire(found: list[Event]) -> list[bytes]:
    return [json_codec.encode(to_wire(event)) for event in found]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=2000))
def test_arbitrary_bytes_raise_nothing(data: bytes) -> None:
    wire(events(data, faults=True))


@settings(max_examples=200, deadline=None)
@given(damaged())
def test_damaged_logs_raise_nothing_and_read_the_same_twice(data: bytes) -> None:
    assert wire(events(data, faults=True)) == wire(events(data, faults=True))


@settings(max_examples=200, deadline=None)
@given(damaged(), st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_any_chunking_gives_the_same_events(data: bytes, sizes: list[int]) -> None:
    reader = Reader(grammar(faults=True), "trainer.log")
    found: list[Event] = []
    position = index = 0
    while position < len(data):
        size = sizes[index % len(sizes)]
        found += reader.feed(data[position : position + size])
        position, index = position + size, index + 1
    assert wire(found + reader.close()) == wire(events(data, faults=True))


@settings(max_examples=100, deadline=None)
@given(damaged())
def test_every_event_can_be_read_back(data: bytes) -> None:
    for event in events(data, faults=True):
        record = json_codec.decode(json_codec.encode(to_wire(event)))
        assert json_codec.decode(json_codec.encode(to_wire(from_wire(record)))) == record


@settings(max_examples=100, deadline=None)
@given(damaged())
def test_line_numbers_lie_inside_the_file(data: bytes) -> None:
    last = data.count(b"\n") + 1
    assert all(1 <= event.line <= last for event in events(data, faults=True))


def test_a_long_line_gives_the_same_events_in_any_chunking() -> None:
    filler = "y" * 150_000
    text = log(
        filler + megatron_line(1) + filler + megatron_line(2) + filler + megatron_line(3) + filler
    )
    expected = wire(events(text))
    assert len(expected) == 3
    for chunk in (1 << 12, 1 << 16, 1 << 17, 1 << 18, 300_001):
        assert wire(events(text, chunk=chunk)) == expected
