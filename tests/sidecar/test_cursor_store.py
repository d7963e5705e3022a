# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How far a sidecar has told, over its own restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mwatch.model.observation import AttemptStart, Observed
from mwatch.sidecar.event_buffer import NAME, CursorFile
from support.builders.events import events, megatron_line

LOG = 77
"""The inode of the log."""


def lines(*iterations: int) -> list[Observed]:
    text = "".join(f"{megatron_line(each)}\n" for each in iterations)
    return [Observed(1.0, "p", event) for event in events(text)]


def told(cursor: CursorFile, seen: list[Observed], file: int = LOG) -> int:
    """How many of them are new."""
    return sum(not cursor.is_old(each, file) for each in seen)


def test_a_first_life_shows_everything(tmp_path: Path) -> None:
    cursor = CursorFile(tmp_path)
    assert cursor.began.newest == 0
    assert told(cursor, lines(1, 2, 3)) == 3


def test_a_second_life_shows_only_what_is_new(tmp_path: Path) -> None:
    first = CursorFile(tmp_path)
    told(first, lines(1, 2, 3))
    first.keep(5, LOG)
    second = CursorFile(tmp_path)
    assert (second.began.life, second.began.newest) == (first.began.life, 5)
    assert told(second, lines(1, 2, 3, 4, 5)) == 2
    second.keep(7, LOG)
    assert told(CursorFile(tmp_path), lines(1, 2, 3, 4, 5, 6)) == 1


def test_another_log_is_new(tmp_path: Path) -> None:
    first = CursorFile(tmp_path)
    told(first, lines(1, 2, 3))
    first.keep(5, LOG)
    assert told(CursorFile(tmp_path), lines(1, 2), file=LOG + 1) == 2


def test_what_is_no_line_is_always_new(tmp_path: Path) -> None:
    first = CursorFile(tmp_path)
    told(first, lines(1))
    first.keep(1, LOG)
    start = Observed(1.0, "p", AttemptStart(1, None, None))
    assert not CursorFile(tmp_path).is_old(start, LOG)


def test_a_volume_that_is_not_there_or_full_is_no_fault(tmp_path: Path) -> None:
    cursor = CursorFile(tmp_path / "none")
    told(cursor, lines(1))
    cursor.keep(1, LOG)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"life": "../x", "newest": 1, "file": 1, "line": 1}',
        '{"life": "ab", "newest": -1, "file": 1, "line": 1}',
        '{"life": "ab", "newest": true, "file": 1, "line": 1}', '{"life": "ab"}',
    ],
)  # fmt: skip
def test_a_file_that_is_none_begins_a_new_life(text: str, tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(text)
    assert CursorFile(tmp_path).began.newest == 0
