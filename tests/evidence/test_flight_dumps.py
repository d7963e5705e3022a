# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which files are dumps, and of which rank."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwatch.evidence import flight_files
from mwatch.evidence.flight_files import FoundDumps, as_dump, find_dumps, read_dump_file
from support.builders.flight_format import pickled
from support.unprivileged import unprivileged

DUMP = pickled({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": []})
JSON = b'{"entries": [], "pg_config": {}, "version": "2.10"}'


def put(folder: Path, name: str, data: bytes = DUMP) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize(
    ("name", "rank", "recorder"),
    [
        ("rank-3.flight.pickle", 3, ""),
        ("rank-3.flight-gloo.pickle", 3, "gloo"),
        ("rank-12.pickle", 12, ""),
        ("nccl_trace_rank_0", 0, ""),
        ("comm_lib_trace_rank_1023", 1023, ""),
        ("gloo_trace_rank_7", 7, ""),
        ("job42_dump_5", 5, ""),
        ("17", 17, ""),
        ("rank_2.pkl", 2, ""),
    ],
)
def test_the_rank_is_at_the_end_of_the_name(
    tmp_path: Path, name: str, rank: int, recorder: str
) -> None:
    found = as_dump(put(tmp_path, name))
    assert found is not None
    assert (found.rank, found.recorder, found.is_json) == (rank, recorder, False)


def test_json_is_a_dump_as_well(tmp_path: Path) -> None:
    found = as_dump(put(tmp_path, "rank-1.json", JSON))
    assert found is not None and found.is_json


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("trainer.log.1", b"iteration 1/10 | pg_config"),
        ("rank-0.json", b'{"loss": 1.0}'),
        ("rank-0.pickle", b"\x80\x02}."),
        ("rank-0.stacks.txt", b"File pg_status"),
        ("rank-0", b""),
        ("notes.pickle", DUMP),
    ],
)
def test_what_only_looks_like_one_is_left_alone(tmp_path: Path, name: str, data: bytes) -> None:
    assert as_dump(put(tmp_path, name, data)) is None


def test_a_search_goes_into_folders_but_not_into_checkpoints(tmp_path: Path) -> None:
    put(tmp_path, "dumps/one/rank-0.pickle")
    put(tmp_path, "dumps/one/rank-1.pickle")
    put(tmp_path, "ckpt/iter_0000010/rank-2.pickle")
    put(tmp_path, ".cache/rank-3.pickle")
    found = find_dumps(str(tmp_path))
    assert [file.rank for file in found.files] == [0, 1]


def test_nothing_found_is_no_fault(tmp_path: Path) -> None:
    put(tmp_path, "trainer.log", b"iteration")
    assert find_dumps(str(tmp_path)) == FoundDumps((), ())
    assert find_dumps(str(tmp_path / "gone")) == FoundDumps((), ())


def test_a_folder_that_may_not_be_listed_has_no_dumps(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    with unprivileged():
        found = find_dumps(str(tmp_path))
    tmp_path.chmod(0o700)
    assert found == FoundDumps((), ())


def test_the_search_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(5):
        put(tmp_path, f"rank-{rank}.pickle")
    monkeypatch.setattr(flight_files, "MAX_FILES", 3)
    found = find_dumps(str(tmp_path))
    assert len(found.files) == 3
    assert found.notes == ("only the first 3 entries were searched for dumps",)


def test_a_pipe_with_the_name_of_a_dump_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0.pickle")
    assert find_dumps(str(tmp_path)) == FoundDumps((), ())


def test_one_file_is_read_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "rank-0.pickle")
    file = as_dump(path)
    assert file is not None
    assert read_dump_file(file) == DUMP
    monkeypatch.setattr(flight_files, "MAX_BYTES", 8)
    with pytest.raises(ValueError, match="is larger than"):
        read_dump_file(file)
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        read_dump_file(file)
