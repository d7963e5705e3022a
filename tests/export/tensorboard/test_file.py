# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Our event file: how many there may be, and what is left when it cannot be written whole."""

from __future__ import annotations

import errno
import resource
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mwatch.export.tensorboard.notes import EventFile, Room


def opened(folder: Path, room: Room | None = None) -> EventFile:
    return EventFile(folder, "mwatch", b"head", room or Room())


@contextmanager
def small_files() -> Iterator[None]:
    """The kernel refuses to let a file of this process grow beyond 16 bytes; the log of the tests
    may be such a file, so nothing is printed meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_only_so_many_files_of_one_host_are_kept(tmp_path: Path) -> None:
    others = tmp_path / "mwatch" / "events.out.tfevents.0000000001.another.1.0.mwatch"
    made = []
    for _ in range(5):
        file = opened(tmp_path, Room(max_files=3))
        file.close()
        made.append(file.path)
        others.touch()
    assert set(others.parent.iterdir()) == {others, *made[-3:]}


def test_who_may_read_it_can_be_chosen(tmp_path: Path) -> None:
    file = opened(tmp_path, Room(mode=0o640))
    file.close()
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o750


def test_half_a_record_is_taken_back(tmp_path: Path) -> None:
    file = opened(tmp_path)
    with small_files():
        assert file.write(b"1234567890")
        with pytest.raises(OSError, match="only 2 of 10 bytes"):
            file.write(b"abcdefghij")
        assert file.path.read_bytes() == b"head1234567890"
        assert file.write(b"ab")
        with pytest.raises(OSError) as full:
            file.write(b"c")
    assert full.value.errno == errno.EFBIG
    file.close()
    assert file.path.read_bytes() == b"head1234567890ab"


def test_a_file_that_cannot_even_begin_is_not_left_behind(tmp_path: Path) -> None:
    with small_files(), pytest.raises(OSError, match="only 16 of 17"):
        EventFile(tmp_path, "mwatch", b"x" * 17, Room())
    assert list((tmp_path / "mwatch").iterdir()) == []
