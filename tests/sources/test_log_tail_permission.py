# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What will not resolve itself is an OSError, not an endless silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.sources.log_tail import LogTail, Poll
from support.unprivileged import unprivileged


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\n")
    path.chmod(0)
    with unprivileged(), pytest.raises(PermissionError):
        LogTail(path).poll()


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    tail = LogTail(tmp_path)
    with pytest.raises(IsADirectoryError):
        tail.poll()
    tail.close()


def test_a_path_through_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        LogTail(tmp_path / "file" / "trainer.log").poll()


def test_a_file_that_loses_its_permission_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_bytes(b"one\n")
    tail = LogTail(path)
    tail.poll()
    with path.open("ab", buffering=0) as writer, unprivileged():
        path.chmod(0)
        writer.write(b"two\n")
        assert tail.poll() == Poll(b"two\n")
    tail.close()
