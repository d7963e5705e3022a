# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A process that nobody calls a rank: it becomes one when it is seen to train.

A stand-in for torch is enough here: files and functions of the names that are looked for.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.builders.probe import SITE, beat_after, finished, record_of, running

BACKWARD = "import sys\ndef backward():\n    sys.stdin.readline()\n"
GROUP = """
has_begun = False
def is_initialized(): return has_begun
def get_rank(): return 6
def get_world_size(): return 7
"""
TRAIN = "import torch.autograd\ntorch.autograd.backward()\n"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "volume"
    folder.mkdir()
    return folder


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    """PYTHONPATH with the stand-in."""
    torch = tmp_path / "libraries" / "torch"
    for name, code in (("autograd/__init__", BACKWARD), ("distributed/distributed_c10d", GROUP)):
        file = torch / f"{name}.py"
        file.parent.mkdir(parents=True)
        file.write_text(code)
    (torch / "__init__.py").write_text("")
    return {"PYTHONPATH": os.pathsep.join([str(SITE), str(torch.parent)])}


def test_a_single_process_that_trains_is_rank_0_of_1(volume: Path, path: dict[str, str]) -> None:
    with running(TRAIN, volume, path) as child:
        beat = beat_after(volume)
        assert finished(child) == (0, "", "")
    assert (beat.rank, beat.world_size, beat.local_rank) == (0, 1, -1)
    assert (beat.pid, beat.phase) == (child.pid, "compute")


def test_the_number_of_the_pod_is_the_rank_where_the_pod_is_one(
    volume: Path, path: dict[str, str]
) -> None:
    with running(TRAIN, volume, {**path, "RANK": "1", "WORLD_SIZE": "2"}) as child:
        beat = beat_after(volume, rank=1)
        assert finished(child) == (0, "", "")
    assert (beat.rank, beat.world_size) == (1, 2)


def test_a_rank_that_the_program_sets_itself_is_seen(volume: Path, path: dict[str, str]) -> None:
    code = "import os\nos.environ.update(RANK='4', WORLD_SIZE='5')\n" + TRAIN
    with running(code, volume, path) as child:
        beat = beat_after(volume, rank=4)
        assert finished(child) == (0, "", "")
    assert beat.world_size == 5


def test_where_only_torch_knows_the_rank_torch_is_asked(volume: Path, path: dict[str, str]) -> None:
    code = """
import sys, torch.distributed.distributed_c10d as group
group.has_begun = True
sys.stdin.readline()
"""
    with running(code, volume, path) as child:
        beat = beat_after(volume, rank=6)
        assert finished(child) == (0, "", "")
    assert (beat.rank, beat.world_size, beat.phase) == (6, 7, "")


def test_a_program_that_has_torch_and_does_not_train_writes_nothing(
    volume: Path, path: dict[str, str]
) -> None:
    code = """
import sys, threading, time, torch
deadline = time.monotonic() + 60
while threading.active_count() < 2 and time.monotonic() < deadline: time.sleep(0.01)
time.sleep(1.2)
print(threading.active_count(), [each for each in sys.meta_path if "mwatch_trainer" in repr(each)])
"""
    with running(code, volume, path) as child:
        assert finished(child) == (0, "2 []\n", "")
    assert list(volume.iterdir()) == []


def test_workers_of_a_single_process_that_trains_are_no_ranks(
    volume: Path, path: dict[str, str]
) -> None:
    code = """
import subprocess, sys, torch.autograd
torch.autograd.backward()
worker = "import time, torch; time.sleep(2.2)"
subprocess.run([sys.executable, "-c", worker, "--multiprocessing-fork"])
"""
    with running(code, volume, path) as child:
        beat = beat_after(volume)
        assert finished(child) == (0, "", "")
    last = record_of(volume)
    assert last is not None
    assert (beat.pid, last.pid) == (child.pid, child.pid)
