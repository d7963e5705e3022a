# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Runs of like iteration lines decode what is asked for, as the reader would."""

from __future__ import annotations

import pytest

from mwatch.model.event import Event
from mwatch.parse.fast_path.run import LineRun
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader
from support.builders.events import log, megatron_line

GRAMMAR = Grammar()


def warm_reader() -> Reader:
    """One that has read two lines and so knows their layout."""
    reader = Reader(GRAMMAR, "trainer.log")
    reader.feed(log(megatron_line(1), megatron_line(2)).encode())
    return reader


def run_of(*lines: str) -> LineRun:
    (run,) = warm_reader().batches(log(*lines).encode())
    assert isinstance(run, LineRun)
    return run


def singly(*lines: str) -> list[Event]:
    """The same lines, each in a chunk of its own."""
    reader = warm_reader()
    return [event for line in lines for event in reader.feed(line.encode() + b"\n")]


LINES = [megatron_line(number) for number in range(3, 40)]


def test_a_run_holds_the_events_that_single_lines_give() -> None:
    assert list(run_of(*LINES)) == singly(*LINES)


def test_one_event_can_be_had_without_the_others() -> None:
    run = run_of(*LINES)
    assert (len(run), run[0].iteration, run[-1].iteration, run[-1].line) == (37, 3, 39, 39)
    assert run[5] == list(run)[5]
    with pytest.raises(IndexError):
        run[37]


def test_a_slice_is_a_slice_of_the_events() -> None:
    run = run_of(*LINES)
    assert run[2:4] == list(run)[2:4]


def test_a_column_is_one_field_of_all_events() -> None:
    run = run_of(*LINES)
    assert run.column("consumed_samples") == [event.consumed_samples for event in run]
    assert run.column("skipped") == [0] * 37


def test_a_field_that_is_not_printed_has_no_column() -> None:
    with pytest.raises(KeyError):
        run_of(*LINES).column("params_norm")


def test_a_value_that_is_no_number_is_kept_as_text_in_a_run_too() -> None:
    odd = megatron_line(12).replace("grad norm: 0.791", "grad norm: much ")
    lines = [*LINES[:9], odd, *LINES[10:]]
    run = run_of(*lines)
    assert run[9].extra == {"grad norm": "much"}
    assert list(run) == singly(*lines)


def test_a_run_that_was_read_before_helps_the_next_one() -> None:
    reader = warm_reader()
    reader.feed(log(*LINES).encode())
    later = [megatron_line(number) for number in range(40, 60)]
    (run,) = reader.batches(log(*later).encode())
    assert isinstance(run, LineRun)
    assert run.column("global_batch_size") == [32] * 20
    assert [event.iteration for event in run] == list(range(40, 60))
    assert {event.total_iterations for event in run} == {500000}


def test_a_value_that_changes_ends_no_run_wrongly() -> None:
    reader = warm_reader()
    reader.feed(log(*LINES).encode())
    changed = [megatron_line(number, change={"global batch size": "64"}) for number in (40, 41)]
    found = reader.feed(log(*changed).encode())
    assert [getattr(event, "global_batch_size", None) for event in found] == [64, 64]


def test_a_rotated_file_counts_its_lines_from_one_and_goes_on_covering() -> None:
    reader = warm_reader()
    assert reader.restart() == []
    (event,) = reader.feed(log(megatron_line(3)).encode())
    assert (event.line, getattr(event, "covers", None)) == (1, 1)
