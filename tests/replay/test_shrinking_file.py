# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A file that is cut while it is read: what was there counts, and the loss is said."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from mwatch.errors import InputError
from mwatch.replay.events import EventWriter, Summary, parse_files
from mwatch.runtime.files import CHUNK, read_chunks
from support.builders.events import grammar, log, megatron_line

LINE_BYTES = 512
LINES_IN_A_CHUNK = CHUNK // LINE_BYTES


@pytest.fixture
def long_log(tmp_path: Path) -> Path:
    """Three chunks, each of which ends with a line."""
    path = tmp_path / "trainer.log"
    numbers = range(1, 3 * LINES_IN_A_CHUNK + 1)
    path.write_text(log(*(f"{megatron_line(number):<{LINE_BYTES - 1}}" for number in numbers)))
    return path


class Cutter(io.BytesIO):
    """Cuts the file to `size` bytes as soon as something is written to it."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__()
        self._cut = path, size

    def write(self, data: Any) -> int:
        path, size = self._cut
        if path.stat().st_size > size:
            with path.open("r+b") as file:
                file.truncate(size)
        return super().write(data)


def parsed(out: io.BytesIO, *files: Path) -> tuple[list[int], Summary]:
    """The iterations that were written to `out`, and the summary."""
    summary = Summary()
    parse_files([str(file) for file in files], grammar(), EventWriter(out, summary, 1), summary)
    return [json.loads(line)["iteration"] for line in out.getvalue().splitlines()], summary


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 100])
def test_the_pieces_end_with_an_error_that_names_the_fix(long_log: Path, size: int) -> None:
    chunks = read_chunks(str(long_log))
    first = next(chunks)
    assert (first.done, first.size) == (CHUNK, 3 * CHUNK)
    with long_log.open("r+b") as file:
        file.truncate(size)
    left = max(0, size - CHUNK)
    with pytest.raises(InputError) as caught:
        assert [len(chunk.data) for chunk in chunks] == [left]
    assert str(caught.value) == (
        f"{long_log}: shrank while it was read ({3 * CHUNK} bytes, then {CHUNK + left}); "
        "what was there was read; use --follow for a file that is rotated"
    )


@pytest.mark.parametrize("chunks_left", [0, 1, 2])
def test_the_events_that_were_there_are_written(long_log: Path, chunks_left: int) -> None:
    iterations, summary = parsed(Cutter(long_log, chunks_left * CHUNK), long_log)
    lines = max(1, chunks_left) * LINES_IN_A_CHUNK
    assert iterations == list(range(1, lines + 1))
    assert (summary.lines, summary.events["iteration"]) == (lines, lines)
    assert len(summary.problems) == 1
    assert "use --follow" in summary.problems[0]


def test_the_files_behind_it_are_read_all_the_same(long_log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text(log(megatron_line(99_999)))
    iterations, summary = parsed(Cutter(long_log, CHUNK), long_log, other)
    assert iterations[-2:] == [LINES_IN_A_CHUNK, 99_999]
    assert [problem.partition(":")[0] for problem in summary.problems] == [str(long_log)]


def test_a_file_that_grows_meanwhile_is_no_problem(long_log: Path) -> None:
    chunks = read_chunks(str(long_log))
    next(chunks)
    with long_log.open("a") as file:
        file.write(log(megatron_line(99_999)))
    assert sum(len(chunk.data) for chunk in chunks) > 2 * CHUNK
