# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The file is cut or written anew in place: it is read from its start again."""

from __future__ import annotations

import os
from pathlib import Path

from mwatch.sources.log_tail import LogTail, Poll


def test_a_file_cut_to_nothing_is_read_again_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\ntwo\n")
    tail = LogTail(path)
    tail.poll()
    os.truncate(path, 0)
    polls = [tail.poll()]
    with path.open("ab") as file:
        file.write(b"three\n")
    polls.append(tail.poll())
    assert b"".join(poll.data for poll in polls) == b"three\n"
    assert [poll.restarted for poll in polls].count(True) == 1
    tail.close()


def test_a_shorter_file_in_place_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\ntwo\nthree\n")
    tail = LogTail(path)
    tail.poll()
    path.write_bytes(b"new\n")
    assert tail.poll() == Poll(b"new\n", restarted=True)
    assert tail.poll() == Poll(b"")
    tail.close()


def test_a_file_rewritten_to_more_than_before_is_noticed_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\n")
    tail = LogTail(path)
    tail.poll()
    path.write_bytes(b"a much longer text\nthan before\n")
    assert tail.poll() == Poll(b"a much longer text\nthan before\n", restarted=True)
    tail.close()


def test_a_file_rewritten_to_the_same_length_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\n")
    tail = LogTail(path)
    tail.poll()
    path.write_bytes(b"two\n")
    assert tail.poll() == Poll(b"two\n", restarted=True)
    tail.close()


def test_a_growing_file_never_restarts(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    tail = LogTail(path)
    path.write_bytes(b"")
    assert tail.poll() == Poll(b"")
    for number in range(200):
        line = f"line {number}\n".encode()
        with path.open("ab") as file:
            file.write(line)
        assert tail.poll() == Poll(line)
    tail.close()


def test_a_large_file_comes_in_several_polls(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    data = bytes(range(256)) * 8000
    path.write_bytes(data)
    tail = LogTail(path)
    found = b""
    while part := tail.poll().data:
        found += part
    assert found == data
    tail.close()
