# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The path names another file: the old one is read to its end, then the new one."""

from __future__ import annotations

from pathlib import Path, PosixPath

from mwatch.sources.log_tail import LogTail, Poll


def test_the_rest_of_the_old_file_comes_before_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\n")
    tail = LogTail(path)
    assert tail.poll() == Poll(b"one\n")
    with path.open("ab", buffering=0) as old:
        old.write(b"two\n")
        path.rename(tmp_path / "trainer.log.1")
        path.write_bytes(b"three\n")
        assert tail.poll() == Poll(b"two\n")
        assert tail.poll() == Poll(b"three\n", restarted=True)
    assert tail.poll() == Poll(b"")
    tail.close()


def test_a_writer_that_keeps_the_old_file_open_is_read_until_the_new_one_is_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\n")
    tail = LogTail(path)
    tail.poll()
    with path.open("ab", buffering=0) as old:
        path.rename(tmp_path / "trainer.log.1")
        assert tail.poll() == Poll(b"")
        old.write(b"two\n")
        assert tail.poll() == Poll(b"two\n")
    path.write_bytes(b"three\n")
    assert tail.poll() == Poll(b"three\n", restarted=True)
    tail.close()


def test_every_rotation_restarts(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    tail = LogTail(path)
    path.write_bytes(b"0\n")
    assert tail.poll() == Poll(b"0\n")
    for number in range(1, 5):
        path.rename(tmp_path / f"trainer.log.{number}")
        path.write_bytes(f"{number}\n".encode())
        assert tail.poll() == Poll(f"{number}\n".encode(), restarted=True)
    tail.close()


def test_an_empty_new_file_restarts_before_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\n")
    tail = LogTail(path)
    tail.poll()
    path.rename(tmp_path / "trainer.log.1")
    path.write_bytes(b"")
    polls = [tail.poll()]
    path.write_bytes(b"two\n")
    polls.append(tail.poll())
    assert b"".join(poll.data for poll in polls) == b"two\n"
    assert [poll.restarted for poll in polls].count(True) == 1
    tail.close()


def test_a_symbolic_link_that_is_turned_is_a_rotation(tmp_path: Path) -> None:
    first, second, link = tmp_path / "a.log", tmp_path / "b.log", tmp_path / "current"
    first.write_bytes(b"one\n")
    second.write_bytes(b"two\n")
    link.symlink_to(first)
    tail = LogTail(link)
    assert tail.poll() == Poll(b"one\n")
    link.unlink()
    link.symlink_to(second)
    assert tail.poll() == Poll(b"two\n", restarted=True)
    tail.close()


class TrapPath(PosixPath):
    """A path under which the file is rotated just before it is looked at for the second time."""

    looks = 0

    def __fspath__(self) -> str:
        place = super().__fspath__()
        TrapPath.looks += 1
        if TrapPath.looks == 2:
            plain = Path(place)
            with plain.open("ab") as old:
                old.write(b"two\n")
            plain.rename(plain.with_suffix(".1"))
            plain.write_bytes(b"three\n")
        return place


def test_what_was_written_just_before_the_rotation_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_bytes(b"one\n")
    TrapPath.looks = 0
    tail = LogTail(TrapPath(tmp_path / "trainer.log"))
    polls = [tail.poll() for _ in range(4)]
    tail.close()
    assert [poll for poll in polls if poll.data] == [
        Poll(b"one\n"), Poll(b"two\n"), Poll(b"three\n", restarted=True),
    ]  # fmt: skip
