# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Stacks, processes and GPUs of a dump on the volume, joined by rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mwatch.evidence.rank_stacks import read_stacks
from mwatch.model.observation import Observed, RankStack, StackKind
from mwatch.model.snapshot import observed_wire
from mwatch.model.snapshot.pod import Gpu
from mwatch_trainer.probe.record_file import RecordFile
from support.builders.probe import RECORD

TEXT = """# rank {rank}, pid 7
main thread 0x00007f00 [MainThread] (most recent call first):
  File "/repo/pretrain.py", line 32 in train_step
  File "/repo/pretrain.py", line 90 in <module>
"""


def dump(volume: Path, ranks: list[int], processes: list[dict[str, Any]]) -> None:
    folder = volume / "dumps" / "one"
    folder.mkdir(parents=True)
    for rank in ranks:
        (folder / f"rank-{rank}.stacks.txt").write_text(TEXT.format(rank=rank))
    (folder / "processes.json").write_text(json.dumps({"processes": processes}))
    lines = {"/repo/pretrain.py:32": "time.sleep(60)"}
    (folder / "sources.json").write_text(json.dumps({"version": 1, "lines": lines}))


def probe(volume: Path, rank: int) -> None:
    file = RecordFile(str(volume), rank)
    assert file.claim()
    file.write(RECORD._replace(rank=rank, pid=100 + rank, started=9))
    file.close()


def test_stacks_carry_what_proc_and_the_driver_show(tmp_path: Path) -> None:
    dump(tmp_path, [0, 1], [
        {"pid": 100, "started": 9, "state": "D", "wchan": "nfs_wait"},
        {"pid": 101, "started": 9, "state": "S", "wchan": "0"},
    ])  # fmt: skip
    probe(tmp_path, 0)
    probe(tmp_path, 1)
    gpu = Gpu(0, "GPU-1", "H200", rank=0, utilization=1.0, tensor_active=0.0)
    first, second = read_stacks(str(tmp_path), "one", [gpu])
    assert (first.state, first.wchan, first.gpu_utilization) == ("D", "nfs_wait", 1.0)
    assert (first.what, first.place) == ("time.sleep(60)", "pretrain.py:32 in train_step")
    assert (second.state, second.wchan, second.gpu_utilization) == ("S", "", None)


def test_a_stopped_rank_has_no_stack_and_is_reported(tmp_path: Path) -> None:
    dump(tmp_path, [0], [{"pid": 101, "started": 9, "state": "T"}])
    probe(tmp_path, 1)
    found = read_stacks(str(tmp_path), "one")
    assert [(each.rank, each.kind) for each in found] == [
        (0, StackKind.CODE), (1, StackKind.STOPPED),
    ]  # fmt: skip


def test_a_missing_or_broken_dump_gives_nothing(tmp_path: Path) -> None:
    assert read_stacks(str(tmp_path), "one") == []
    dump(tmp_path, [0], [])
    (tmp_path / "dumps" / "one" / "processes.json").write_text("{")
    (tmp_path / "dumps" / "one" / "sources.json").write_text("[]")
    (only,) = read_stacks(str(tmp_path), "one")
    assert (only.what, only.state) == ("", "")


def test_a_stack_travels_to_the_controller() -> None:
    stack = RankStack(
        3, StackKind.GPU, "item", "a.py:1 in f", ("f (a.py:1)",), "D", "nfs", 1.0, 0.0
    )
    observed = Observed(7.0, "pod-1", stack)
    assert (
        observed_wire.from_wire(json.loads(json.dumps(observed_wire.to_wire(observed)))) == observed
    )
