# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer's log as it grows: a real file, written, rotated and flooded."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mwatch.model.event import Error, Event, Iteration
from mwatch.model.reading import Absent, Failed, Ok
from mwatch.watch.collector import LogFollower
from mwatch_trainer.contract import write_json
from support.builders.events import grammar, megatron_line
from support.builders.run import TestClock
from support.unprivileged import unprivileged

TRACEBACK = b"""Traceback (most recent call last):
  File "a.py", line 1, in <module>
    main()
RuntimeError: it broke
"""


class Log:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "trainer.log"
        self.clock = TestClock()
        self.live = LogFollower(self.path, grammar(faults=True), "local", self.clock)

    def add(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def read(self) -> list[Event]:
        reading = self.live.read()
        assert isinstance(reading, Ok)
        assert all(each.at == self.clock.now() for each in reading.value)
        return [each.what for each in reading.value]  # type: ignore[misc]

    def rest(self) -> list[Event]:
        return [each.what for each in self.live.rest()]  # type: ignore[misc]


def line(iteration: int) -> bytes:
    return f"{megatron_line(iteration)}\n".encode()


def iterations(events: list[Event]) -> list[int]:
    return [each.iteration for each in events if isinstance(each, Iteration)]


def test_nothing_printed_is_absent_and_no_failure(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert isinstance(log.live.read(), Absent)
    log.path.touch()
    assert isinstance(log.live.read(), Absent)
    assert log.rest() == []


def test_each_line_is_reported_once_and_a_half_one_when_it_is_whole(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(line(1) + line(2)[:40])
    assert iterations(log.read()) == [1]
    log.add(line(2)[40:])
    assert iterations(log.read()) == [2]
    assert log.read() == []


def test_a_block_that_nobody_continues_is_ended_after_a_while(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(TRACEBACK)
    told = log.read()
    log.clock.monotonic += 1
    told += log.read()
    log.clock.monotonic += 3
    told += log.read()
    assert [each.error for each in told if isinstance(each, Error)] == ["RuntimeError"]
    log.clock.monotonic += 3
    assert log.read() == [], "once"


def test_at_the_end_nothing_is_left_open(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(TRACEBACK)
    told = log.rest()
    assert [each.error for each in told if isinstance(each, Error)] == ["RuntimeError"]


def test_the_end_is_read_to_its_last_line_however_much_there_is(tmp_path: Path) -> None:
    log = Log(tmp_path)
    noise = b"some words that mean nothing to anybody here\n" * 1000
    for _ in range(600):
        log.add(noise)
    log.add(line(77))
    assert iterations(log.rest()) == [77]


def test_a_flood_leaves_time_for_everything_else(tmp_path: Path) -> None:
    log = Log(tmp_path)
    block = b"".join(line(number) for number in range(1, 2001))
    for _ in range(100):
        log.add(block)
    began = time.thread_time()  # not of others, on a machine that is busy
    log.read()
    assert time.thread_time() - began < 3


def test_a_rotated_log_goes_on(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(line(1))
    log.read()
    log.add(line(2))
    os.rename(log.path, tmp_path / "trainer.log.1")
    log.add(line(3))
    assert iterations(log.read()) == [2, 3]


def test_bytes_that_are_no_text_harm_nobody(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(b"\xff\xfe\x00\x1b[2J\x07" * 1000 + b"\n" + line(1))
    assert iterations(log.read()) == [1]


def test_a_log_that_cannot_be_read_is_a_failure_and_no_end(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(line(1))
    os.chmod(log.path, 0)
    with unprivileged():
        reading = log.live.read()
        assert isinstance(reading, Failed)
        assert "Permission denied" in reading.error
        assert log.rest() == []
    os.chmod(log.path, 0o600)
    assert iterations(log.read()) == [1]


def test_closing_twice_is_fine(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(line(1))
    log.read()
    log.live.close()
    log.live.close()


def began(log: Log, attempt: int, *, inode: int | None = None) -> None:
    """As the wrapper notes it when an attempt begins."""
    found = log.path.stat()
    place = {"inode": inode or found.st_ino, "bytes": found.st_size}
    write_json(str(log.path.with_name("attempt.json")), {"attempt": attempt, "log": place})


def test_who_comes_in_the_middle_begins_with_the_attempt_that_runs(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(line(1) + line(2) + b"noise\n")
    began(log, 2)
    log.add(line(1) + line(2))
    events = log.read()
    assert iterations(events) == [1, 2]
    assert [each.line for each in events] == [4, 5], "as who has read it from its start counts"
    began(log, 3)  # who is there reads on
    log.add(line(2))
    assert iterations(log.read()) == [2]


def test_a_file_that_is_not_the_one_of_the_note_is_read_from_its_start(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(line(1))
    began(log, 2, inode=7)  # rotated away since
    assert iterations(log.read()) == [1]
    cut = Log(tmp_path / "cut")
    cut.path.parent.mkdir()
    cut.add(line(1) + line(2))
    began(cut, 2)
    cut.path.write_bytes(line(3))
    assert iterations(cut.read()) == [3]


def test_a_log_that_is_rewritten_behind_where_it_was_begun_is_read_anew(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(line(1) * 9)
    began(log, 2)
    log.add(line(2))
    assert iterations(log.read()) == [2]
    log.path.write_bytes(b"another log\n" * 99 + line(5))
    assert iterations(log.read()) == [5]


def test_iteration_lines_are_quoted_as_they_were_printed_while_they_are_new(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add(b"hello\n\x1b[32m" + line(1) + line(2)[:40])
    log.read()
    log.add(line(2)[40:] + TRACEBACK + line(3))
    log.read()
    printed = log.live.printed
    known = [printed.text("trainer.log", number) for number in (1, 2, 3, 4, 8)]
    assert known == [None, *(megatron_line(1).strip(), megatron_line(2).strip()), None,
                     megatron_line(3).strip()]  # fmt: skip
    assert printed.text("other.log", 2) is None
    log.add(b"".join(line(number) for number in range(4, 700)))
    log.read()
    assert printed.text("trainer.log", 2) is None, "bounded"
    assert printed.text("trainer.log", 704) == megatron_line(699).strip()
    log.path.rename(tmp_path / "trainer.log.1")
    log.add(line(700))
    log.read()
    assert printed.text("trainer.log", 1) == megatron_line(700).strip()
    assert printed.text("trainer.log", 704) is None, "that is in the old file"


def test_the_next_process_counts_lines_without_a_step_from_1_again(tmp_path: Path) -> None:
    log = Log(tmp_path)
    first = b"{'loss': 2.5, 'epoch': 0.1}\n{'loss': 2.4, 'epoch': 0.2}\n"
    log.add(first)
    assert iterations(log.read()) == [1, 2]
    log.add(b"{'loss': 2.3, 'epoch': 0.3}\n")
    assert iterations(log.rest()) == [3]
    log.add(first)
    assert iterations(log.read()) == [1, 2]
