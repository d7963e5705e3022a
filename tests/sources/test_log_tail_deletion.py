# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The file is not there, goes away, or comes back."""

from __future__ import annotations

from pathlib import Path

from mwatch.sources.log_tail import LogTail, Poll


def test_a_file_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "later" / "trainer.log"
    tail = LogTail(path)
    assert tail.poll() == Poll(b"")
    path.parent.mkdir()
    assert tail.poll() == Poll(b"")
    path.write_bytes(b"one\n")
    assert tail.poll() == Poll(b"one\n")
    tail.close()


def test_a_deleted_file_is_read_on_while_its_writer_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    with path.open("wb", buffering=0) as writer:
        writer.write(b"one\n")
        tail = LogTail(path)
        assert tail.poll() == Poll(b"one\n")
        path.unlink()
        writer.write(b"two\n")
        assert tail.poll() == Poll(b"two\n")
        assert tail.poll() == Poll(b"")
    tail.close()


def test_a_file_that_comes_back_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\n")
    tail = LogTail(path)
    tail.poll()
    path.unlink()
    assert tail.poll() == Poll(b"")
    path.write_bytes(b"one\n")
    assert tail.poll() == Poll(b"one\n", restarted=True)
    tail.close()


def test_closing_twice_is_no_harm(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "trainer.log")
    tail.close()
    tail.close()
