# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Dumps of a real job of two ranks: one waits in a collective for the other, which is elsewhere.

The stack at a GPU is a recorded text: there is none where the tests run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mwatch.evidence.rank_stacks import read_stacks
from mwatch.model.observation import StackKind
from mwatch.model.stacks import grouped, odd_one_out, tree
from mwatch.parse.stacks import rank_stack
from mwatch_trainer.evidence.dumps import Dumps
from mwatch_trainer.processes.proc import Tree
from support.builders.probe import beat_after, running
from support.free_ports import free_port
from support.waiting import until

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs torch: `make .venv/demo`"
)
PROGRAM = """
import ctypes, os, sys, time
import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
folder, rank = os.environ["MWATCH_DIR"], int(os.environ["RANK"])
gone_on = 0

def is_told():
    return os.path.exists(f"{folder}/go-{gone_on}")

class Slow(Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        while not is_told():
            time.sleep(0.2)
        return index

def step_sleeping():
    while not is_told():
        time.sleep(0.2)

def step_loading():
    return next(iter(DataLoader(Slow(), num_workers=0)))

def step_loading_with_a_worker():
    return next(iter(DataLoader(Slow(), num_workers=1)))

def step_holding_the_gil():
    ctypes.PyDLL(None).usleep(60_000_000)

def train():
    global gone_on
    steps = (step_sleeping, step_loading, step_loading_with_a_worker, step_holding_the_gil)
    for step in steps:
        if rank == 1:
            step()
        distributed.all_reduce(torch.ones(1))
        gone_on += 1

distributed.init_process_group("gloo")
open(f"{folder}/ready-{rank}", "w").close()
train()
"""


class Pair:
    """Two ranks; each step of the second lasts until it is told to go on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps = self._dump_count = 0
        self._dumps = Dumps(str(folder), Tree(tuple))

    def dump(self, seconds: float = 30.0) -> list[str]:
        self._dump_count += 1
        name = f"dump-{self._dump_count}"  # a name is answered once
        self._dumps.take(name, seconds)
        self.stacks = read_stacks(str(self._folder), name)
        assert [each.rank for each in self.stacks] == [0, 1]
        return [each.text for each in grouped(self.stacks)]

    def has_begun(self, function: str, inner: str = "") -> bool:
        """Whether the second rank is in its step, and the first waits for it."""
        self.dump()
        waiting, late = self.stacks
        frames = " ".join(late.frames)
        return waiting.kind is StackKind.COLLECTIVE and function in frames and inner in frames

    def go_on(self) -> None:
        (self._folder / f"go-{self._steps}").touch()
        self._steps += 1


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ExitStack() as stack:
        for rank in (0, 1):
            environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            stack.enter_context(running(PROGRAM, tmp_path, environment))
        for rank in (0, 1):
            until((tmp_path / f"ready-{rank}").exists, 120.0)
            beat_after(tmp_path, rank=rank)
        yield Pair(tmp_path)


def test_the_rank_that_does_not_wait_is_found_where_it_is(pair: Pair) -> None:
    until(lambda: pair.has_begun("step_sleeping"), 60.0)
    waiting, late = pair.stacks
    assert (waiting.kind, waiting.what) == (StackKind.COLLECTIVE, "all_reduce")
    assert waiting.place.endswith("in train")
    assert (late.kind, late.what) == (StackKind.CODE, "time.sleep(0.2)")
    assert late.place.startswith("program.py:") and late.place.endswith("in step_sleeping")
    odd = odd_one_out(grouped(pair.stacks))
    assert odd is not None and odd.first == 1
    assert any("step_sleeping" in line for line in tree(grouped(pair.stacks)))
    pair.go_on()

    until(lambda: pair.has_begun("step_loading ", "__getitem__"), 60.0)
    late = pair.stacks[1]
    assert (late.kind, late.what) == (StackKind.DATA, "time.sleep(0.2)")
    assert late.place.endswith("in __getitem__")
    pair.go_on()

    until(lambda: pair.has_begun("step_loading_with_a_worker", "_get_data"), 60.0)
    late = pair.stacks[1]
    assert (late.kind, late.what) == (StackKind.DATA, "DataLoader.__next__")
    assert late.place.endswith("in step_loading_with_a_worker")
    pair.go_on()

    until(lambda: pair.dump(1.0) and pair.stacks[1].holds_gil, 60.0)
    late = pair.stacks[1]
    assert late.place.endswith("in step_holding_the_gil") and "usleep" in late.what


AT_THE_GPU = """# rank 0, pid 812, 2026-11-16T14:02:11+0000, training/trainer.py:77 fail

main thread 0x00007f3f1a2c6740 [MainThread] (most recent call first):
  File "/opt/venv/lib/python3.12/site-packages/torch/cuda/__init__.py", line 1085 in synchronize
  File "/repo/tests/gpu_faults/trainer.py", line 76 in fail
  File "/repo/tests/gpu_faults/trainer.py", line 61 in train_step
  File "/repo/tests/gpu_faults/trainer.py", line 47 in main
  File "/repo/tests/gpu_faults/trainer.py", line 139 in <module>

thread 0x00007f3e0a7ff6c0 [mwatch-probe] (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 355 in wait
  File "/usr/lib/python3.12/threading.py", line 1030 in _bootstrap
"""


def test_a_rank_that_waits_for_its_gpu_is_found_there() -> None:
    found = rank_stack(0, AT_THE_GPU)
    assert found is not None
    assert (found.kind, found.what) == (StackKind.GPU, "synchronize")
    assert found.place == "trainer.py:76 in fail"
