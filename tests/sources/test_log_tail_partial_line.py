# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A writer is caught in the middle of a line: the event comes once, when the line is whole."""

from __future__ import annotations

from pathlib import Path

from mwatch.model.event import Event, Iteration
from mwatch.parse.reader import Reader
from mwatch.sources.log_tail import LogTail
from support.builders.events import grammar, megatron_line


def poll(reader: Reader, tail: LogTail) -> list[Event]:
    poll = tail.poll()
    return (reader.restart() if poll.restarted else []) + reader.feed(poll.data)


def test_a_line_that_comes_byte_by_byte_gives_one_event(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    reader, tail = Reader(grammar(), "f"), LogTail(path)
    found = []
    with path.open("wb", buffering=0) as writer:
        for byte in megatron_line().encode() + b"\n":
            writer.write(bytes([byte]))
            found += poll(reader, tail)
    assert [(type(event), event.line) for event in found] == [(Iteration, 1)]
    tail.close()


def test_half_a_line_before_a_rotation_is_not_glued_to_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    reader, tail = Reader(grammar(), "f"), LogTail(path)
    path.write_bytes(megatron_line(1).encode() + b"\n" + megatron_line(2).encode()[:150])
    found = poll(reader, tail)
    path.rename(tmp_path / "trainer.log.1")
    path.write_bytes(megatron_line(3).encode() + b"\n")
    found += poll(reader, tail)
    steps = [event for event in found if isinstance(event, Iteration)]
    assert [(event.iteration, event.line) for event in steps] == [(1, 1), (2, 2), (3, 1)]
    assert [event.grad_norm for event in steps] == [0.791, None, 0.791]
    tail.close()


def test_coverage_goes_on_through_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    reader, tail = Reader(grammar(), "f"), LogTail(path)
    path.write_bytes(f"{megatron_line(10)}\n{megatron_line(20)}\n".encode())
    found = poll(reader, tail)
    path.rename(tmp_path / "trainer.log.1")
    path.write_bytes(f"{megatron_line(30)}\n".encode())
    found += poll(reader, tail)
    steps = [event for event in found if isinstance(event, Iteration)]
    assert [(event.covers, event.first_of_process) for event in steps] == [
        (None, False), (10, False), (10, False),
    ]  # fmt: skip
    tail.close()
