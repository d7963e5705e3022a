# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of the copy: lines over gaps, the rotated file, the writer that nobody waits for."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mwatch_trainer.output.log_copy import (
    MAX_LINE_BYTES,
    QUEUE_BYTES,
    LineSplitter,
    LogWriter,
    RotatedFile,
)
from mwatch_trainer.output.pump import BACKLOG_BYTES, MARK_TAIL, Copy
from support.waiting import until

MARK = "mwatch-gap:test:"
GAP = MARK.encode() + b"70" + MARK_TAIL


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=30))
def test_lines_come_whole_however_they_are_cut(data: bytes, sizes: list[int]) -> None:
    lines, got, at = LineSplitter(MARK), b"", 0
    for size in [*sizes, 400]:
        part = lines.feed(data[at : at + size])
        assert not part or part.endswith(b"\n")
        got += part
        at += size
    got += lines.finish()
    assert got == (data if data.endswith(b"\n") or not data else data + b"\n")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_line_that_a_gap_cut_is_left_out_on_both_sides(size: int) -> None:
    data = b"one\nloss scale: 1" + GAP + b"6.0 |\ntwo\nthr" + GAP + GAP + b"ee\nfour\nfi"
    lines = LineSplitter(MARK)
    got = b"".join(lines.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert got + lines.finish() == b"one\ntwo\nfour\nfi\n"
    assert lines.missed == 210


def test_a_gap_at_the_very_end_leaves_nothing_half() -> None:
    lines = LineSplitter(MARK)
    assert lines.feed(b"whole\nhal" + GAP + b"f of another") == b"whole\n"
    assert lines.finish() == b""


def test_a_line_without_an_end_is_cut_at_a_blank() -> None:
    lines = LineSplitter(MARK)
    got = b"".join(lines.feed(b"word " * 1000) for _ in range(200)) + lines.finish()
    assert got.replace(b"\n", b"") == b"word " * 200_000
    assert all(len(each) <= MAX_LINE_BYTES + 5000 for each in got.splitlines())
    assert all(each.endswith((b" ", b"word")) for each in got.splitlines())
    unbroken = LineSplitter(MARK)
    got = b"".join(unbroken.feed(b"x" * 10_000) for _ in range(100)) + unbroken.finish()
    assert got.count(b"x") == 1_000_000


def test_the_backlog_keeps_the_newest_and_marks_what_is_gone() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    copy = Copy(writing, MARK.encode())
    rows = [b"%07d\n" % n for n in range(3_000_000)]
    for at in range(0, len(rows), 50_000):
        copy.offer(memoryview(b"".join(rows[at : at + 50_000])))
    assert 0 < copy.waiting <= BACKLOG_BYTES
    got = bytearray()
    drain = threading.Thread(target=lambda: got.extend(_all(reading)))
    drain.start()
    copy.flush(60)
    drain.join()
    lines = LineSplitter(MARK)
    kept = lines.feed(bytes(got)).splitlines()
    assert kept[0] == b"0000000"
    assert kept[-1] == b"2999999"
    assert kept == sorted(kept)
    assert lines.missed == copy.dropped > 0


def test_a_backlog_that_nobody_takes_any_more_is_given_up() -> None:
    """The pump of a wrapper that was killed goes on."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    copy = Copy(writing, MARK.encode())
    copy.offer(memoryview(b"x" * 1_000_000))
    assert copy.waiting > 0
    os.close(reading)
    copy.push()
    assert copy.waiting == 0
    copy.flush(0.1)


def test_a_copy_that_nobody_takes_any_more_is_given_up() -> None:
    reading, writing = os.pipe()
    copy = Copy(writing, MARK.encode())
    os.close(reading)
    copy.offer(memoryview(b"x"))
    copy.offer(memoryview(b"x" * 100_000))
    assert copy.waiting == 0
    copy.flush(0.1)


def test_the_file_is_in_its_bound_also_for_large_and_endless_lines(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = RotatedFile(str(path), 4000)
    for data in (b"a\n" * 700, b"b" * 5000 + b"\n", b"c\n" * 3, b"d" * 999 + b"\n"):
        assert file.write(data) == len(data)
    file.close()
    parts = sorted(tmp_path.iterdir())
    assert len(parts) == 4
    assert all(each.stat().st_size <= 1001 for each in parts)
    assert path.read_bytes() == b"d" * 999 + b"\n"


def test_a_log_that_was_moved_away_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = RotatedFile(str(path), 4000)
    file.write(b"one\n")
    path.rename(tmp_path / "elsewhere")
    file.write(b"two\n")
    path.unlink()
    file.write(b"three\n")
    file.close()
    assert path.read_bytes() == b"three\n"
    assert (tmp_path / "elsewhere").read_bytes() == b"one\n"


def test_a_full_disk_is_counted_and_reported_when_there_is_room_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(str(path), 1 << 20)
    writer.put(b"before\n")
    assert writer.drain(60)
    with _largest_file(10):
        writer.put(b"does not fit\n")
        assert writer.drain(60)
        assert writer.error
        dropped = writer.dropped
    writer.put(b"after\n")
    assert writer.drain(60)
    lines = path.read_bytes().splitlines()
    assert lines[0] == b"before"
    assert lines[-1] == b"after"
    assert dropped == 10
    assert b"mwatch-run: 10 bytes are missing here: the disk was slow or full" in lines
    assert writer.error == ""


def test_a_disk_that_hangs_costs_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "log"
    os.mkfifo(path)
    writer = LogWriter(str(path), 1 << 30)
    for n in range(200):
        writer.put(b"%06d" % n + b"." * 99_993 + b"\n")
    assert writer.drain(0.05) is False
    assert writer.dropped >= 200 * 100_000 - QUEUE_BYTES - (1 << 21)
    with path.open("rb") as reader:
        got = bytearray()
        drain = threading.Thread(target=lambda: got.extend(_until(reader.fileno(), b"000199")))
        drain.start()
        drain.join(60)
    assert b"bytes are missing here" in got
    until(lambda: writer.written > 0)
    writer.close(0)


def _all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)


def _until(fd: int, needle: bytes) -> bytes:
    got = b""
    while needle not in got[-2_000_000:]:
        got += os.read(fd, 1 << 20)
    return got


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
