# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which files of a folder are taken for logs, and what is said about the rest."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path

import pytest

from mwatch.errors import InputError
from mwatch.replay.log_files import find
from support.builders.events import log, megatron_line
from support.unprivileged import unprivileged

LINE = log(megatron_line())


def put(folder: Path, name: str, data: str | bytes = LINE) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    return file


def names(folder: Path) -> list[str]:
    return [file.shown for file in find([str(folder)]).files]


def test_logs_are_found_by_name_at_any_depth(tmp_path: Path) -> None:
    wanted = ["a.log", "b/0/stdout.log", "b/slurm-12.out", "c.txt", "job.err", "logs/pod-1",
              "old/trainer.log.1", "trainer.log-20260101"]  # fmt: skip
    for name in wanted:
        put(tmp_path, name)
    assert sorted(names(tmp_path)) == sorted(wanted)


@pytest.mark.parametrize(
    "name",
    ["progress.txt", "latest_checkpointed_iteration.txt", "model.py", "args.yaml", ".hidden",
     "events.out.tfevents.123.host", ".git/x.log", "iter_0000010/x.log", "error.json", "a.csv"],
)  # fmt: skip
def test_what_is_no_log_is_left_alone(tmp_path: Path, name: str) -> None:
    put(tmp_path, name)
    put(tmp_path, "a.log")
    assert names(tmp_path) == ["a.log"]


def test_binary_and_empty_files_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path, "core", b"\x7fELF" + bytes(100))
    put(tmp_path, "noise.log", bytes(range(32)) * 10)
    put(tmp_path, "empty.log", "")
    assert names(tmp_path) == []


def test_packed_logs_are_logs(tmp_path: Path) -> None:
    put(tmp_path, "a.log.gz", gzip.compress(LINE.encode()))
    put(tmp_path, "data.bin.gz", gzip.compress(LINE.encode()))
    found = find([str(tmp_path)])
    assert [file.shown for file in found.files] == ["a.log.gz"]
    assert found.notes == ()


def test_flight_recorder_dumps_and_stacks_are_no_logs(tmp_path: Path) -> None:
    put(tmp_path, "a.log")
    put(tmp_path, "dumps/rank-0.pickle", pickle.dumps({"entries": []}))
    put(tmp_path, "dumps/rank-1.json", "{}")
    put(tmp_path, "dumps/rank-1.stacks.txt", "main thread (most recent call first):\n")
    put(tmp_path, "dumps/nccl_trace_rank_2", pickle.dumps({"entries": []}))
    found = find([str(tmp_path)])
    assert [file.shown for file in found.files] == ["a.log"]
    assert found.notes == ()


def test_the_copy_in_a_bundle_of_evidence_is_read_where_there_is_nothing_else(
    tmp_path: Path,
) -> None:
    for name in ("trainer.log", "manifest.json", "attempt.json"):
        put(tmp_path, f"runs/x/incidents/20260101T000000Z-a1-hang/{name}")
    assert names(tmp_path) == ["runs/x/incidents/20260101T000000Z-a1-hang/trainer.log"]
    assert names(tmp_path / "runs/x/incidents/20260101T000000Z-a1-hang") == ["trainer.log"]
    for name in ("trainer.log", "attempt.json", "dumps/rank-0.signal.txt"):
        put(tmp_path, f"runs/x/volume/{name}")
    assert names(tmp_path) == ["runs/x/volume/trainer.log"]


def test_a_folder_of_checkpoints_is_noticed_one_folder_deeper(tmp_path: Path) -> None:
    put(tmp_path, "trainer.log")
    (tmp_path / "ckpt" / "iter_0000020").mkdir(parents=True)
    assert find([str(tmp_path)]).checkpoint_folders == (str(tmp_path / "ckpt"),)


def test_an_empty_folder_finds_nothing_and_says_so(tmp_path: Path) -> None:
    assert find([str(tmp_path)]) == ((), (), (f"{tmp_path}: the folder is empty",))


def test_a_file_is_read_once_by_whatever_name(tmp_path: Path) -> None:
    file = put(tmp_path, "a.log")
    os.symlink(file, tmp_path / "b.log")
    found = find([str(file), str(tmp_path), str(file)])
    assert [(each.shown, each.is_named) for each in found.files] == [(str(file), True)]


def test_files_of_the_same_name_in_two_folders_are_named_with_their_folder(tmp_path: Path) -> None:
    put(tmp_path, "node-a/pod.log")
    put(tmp_path, "node-b/pod.log")
    found = find([str(tmp_path / "node-a"), str(tmp_path / "node-b")])
    assert [file.shown for file in found.files] == ["pod.log", str(tmp_path / "node-b/pod.log")]


def test_too_many_files_are_cut_and_counted(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path, f"pod-{number}.log")
    found = find([str(tmp_path)], max_files=3)
    assert len(found.files) == 3
    assert found.notes == ("2 more log files were not read: 3 is the limit",)


def test_what_may_not_be_read_is_reported(tmp_path: Path) -> None:
    put(tmp_path, "a.log")
    put(tmp_path, "locked.log").chmod(0)
    closed = tmp_path / "closed"
    closed.mkdir()
    put(closed, "b.log")
    closed.chmod(0)
    with unprivileged():
        found = find([str(tmp_path)])
        with pytest.raises(InputError, match="cannot list"):
            find([str(closed)])
    closed.chmod(0o700)
    assert [file.shown for file in found.files] == ["a.log"]
    assert sorted(found.notes) == [
        "cannot list closed/: Permission denied",
        "cannot read locked.log: Permission denied",
    ]


def test_a_name_of_any_bytes_can_be_shown(tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.log"))).write_text(LINE)
    assert names(tmp_path) == ["\ufffd.log"]


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    put(tmp_path, "a.log")
    os.symlink(tmp_path, tmp_path / "again")
    assert names(tmp_path) == ["a.log"]
