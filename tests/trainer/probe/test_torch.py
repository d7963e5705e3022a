# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The probe in a real job: torchrun, two ranks, gloo, data-loader workers; rank 1 does not join."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mwatch_trainer import contract
from mwatch_trainer.probe.record_file import ProbeRecord
from support.builders.probe import SITE, standing, tree_of, wait_for
from support.free_ports import free_port

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs the extra `demo`")

JOB = """
import os, sys, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index): return torch.ones(4) * index

def train(start_method):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how = dict(batch_size=4, num_workers=1, multiprocessing_context=start_method)
    loader = DataLoader(Numbers(), **how)
    for step, batch in enumerate(loader):
        model(batch).sum().backward()
        if step == 20:
            open(f"in-step-{dist.get_rank()}", "w").close()
            if dist.get_rank() == 1:
                time.sleep(1200)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
"""
LOOP = """
import job
exec(compile("def train(inner, *words): inner(*words)", "/x/megatron/training/training.py", "exec"))
job.dist.init_process_group("gloo")
train(job.train, "spawn" if job.dist.get_rank() == 0 else "fork")
"""


class Seen(NamedTuple):
    records: tuple[ProbeRecord, ProbeRecord]
    flights: tuple[Any, Any]
    stacks: tuple[str, str]
    folder: Path
    processes: set[int]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("job")
    volume = folder / "volume"
    (volume / contract.DUMPS_FOLDER).mkdir(parents=True)
    (folder / "job.py").write_text(JOB)
    (folder / "main.py").write_text(f"if __name__ == '__main__':\n{_indented(LOOP)}")
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MWATCH")},
        "MWATCH_DIR": str(volume),
        "MWATCH_ATTEMPT": "2",
        "PYTHONPATH": str(SITE),
        "TORCH_FR_BUFFER_SIZE": "300",
        "RANK": "0",  # of the pod: torchrun has it on Kubernetes
        "WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "1",
    }
    port = free_port()
    command = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}"]
    child = subprocess.Popen(
        [sys.executable, *command, "main.py"],
        cwd=folder,
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _look(folder, volume, child.pid)
    finally:
        for pid in tree_of(child.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        child.wait()


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip().splitlines())


def _look(folder: Path, volume: Path, torchrun: int) -> Seen:
    for rank in (0, 1):
        _wait_for_file(folder / f"in-step-{rank}")
    records = tuple(
        standing(volume, rank, phase) for rank, phase in enumerate(("collective", "compute"))
    )
    request = volume / contract.DUMPS_FOLDER / contract.DUMP_REQUEST
    contract.write_json(str(request), {"id": "now", "asked_at": 0.0})
    dumps = volume / contract.DUMPS_FOLDER / "now"
    flights = []
    for rank in (0, 1):
        path = _wait_for_file(dumps / f"rank-{rank}.flight.pickle")
        flights.append(pickle.loads(path.read_bytes()))
    stacks = tuple((dumps / f"rank-{rank}.stacks.txt").read_text() for rank in (0, 1))
    return Seen(
        (records[0], records[1]),
        (flights[0], flights[1]),
        (stacks[0], stacks[1]),
        volume,
        tree_of(torchrun),
    )


def _wait_for_file(path: Path) -> Path:
    return wait_for(lambda: path if path.exists() else None, path.name)


def test_each_rank_writes_and_nobody_else(seen: Seen) -> None:
    assert sorted(path.name for path in (seen.folder / "probe").iterdir()) == ["rank-0", "rank-1"]
    assert len(seen.processes) >= 5  # torchrun, two ranks, a worker each
    for rank, record in enumerate(seen.records):
        assert (record.rank, record.local_rank, record.world_size) == (rank, rank, 2)
        assert (record.attempt, record.restart_count) == (2, 0)
        assert record.pid in seen.processes
    command = Path(f"/proc/{seen.records[0].pid}/cmdline").read_bytes()
    assert command.split(b"\0")[-2] == b"main.py"


def test_the_phases_show_who_waits_for_whom(seen: Seen) -> None:
    assert [record.phase for record in seen.records] == ["collective", "compute"]
    assert seen.records[0].where.startswith("job.py:") or "job.py" in seen.records[0].where


def test_the_stacks_show_the_collective_and_the_sleep(seen: Seen) -> None:
    assert "distributed_c10d.py" in seen.stacks[0]
    assert "in all_reduce" in seen.stacks[0]
    assert "in all_reduce" not in seen.stacks[1]


def test_the_flight_recorders_of_gloo_show_who_did_not_join(seen: Seen) -> None:
    joined, missing = (flight["entries"] for flight in seen.flights)
    assert len(joined) == len(missing) + 1
    assert not joined[-1]["retired"]
    assert all(entry["retired"] for entry in missing)
