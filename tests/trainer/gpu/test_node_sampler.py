# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the sampler writes of processes and GPUs, and that it ends with the wrapper."""

from __future__ import annotations

import _ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mwatch_trainer.gpu.sampler import GpuSampler, ProcessFacts, put
from mwatch_trainer.processes import proc
from mwatch_trainer.processes.proc import Process, Ranks, descendants, parse
from support.runs.wrapper_runs import command, environ, helpers, is_alive, kill, python
from support.runs.wrapper_runs import descendants as below
from support.waiting import until

LAUNCHER = """
import os, subprocess, sys, time
def start(code, **env):
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **env})
rank = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
ranks = [start(rank, RANK=str(n), LOCAL_RANK=str(n - 4)) for n in (4, 5)]
time.sleep(60)
"""


def read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return {}


@pytest.fixture
def wrapper(tmp_path: Path) -> Any:
    words = command(*python(LAUNCHER), options=["--dir", str(tmp_path), "--no-probe"])
    process = subprocess.Popen(
        words, env=environ(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        for pid in [process.pid, *below(process.pid)]:
            kill(pid)
        process.wait()


def test_ranks_are_distinguished_from_their_workers(tmp_path: Path, wrapper: Any) -> None:
    path = tmp_path / "node" / "processes.json"

    def ranks() -> list[int]:
        found = read(path).get("processes", [])
        return sorted(each["rank"] for each in found if each["rank"] is not None)

    def settled() -> list[dict[str, Any]] | None:
        """Once all of them have started: between fork and exec a process has no memory yet."""
        found: list[dict[str, Any]] = read(path).get("processes", [])
        is_whole = all(each["rss_bytes"] > 0 for each in found)
        return found if ranks() == [4, 4, 5, 5] and is_whole and len(found) == 5 else None

    found = until(settled)
    assert len(found) == 5
    assert [each["rank"] for each in found if each["is_rank"]] == [4, 5]
    assert all(each["state"] in "RSD" and each["rss_bytes"] > 0 for each in found)
    kill(found[-1]["pid"], signal.SIGSTOP)
    until(lambda: read(path)["processes"][-1]["state"] == "T")
    assert abs(read(path)["at"] - time.time()) < 60


def test_the_sampler_ends_with_the_wrapper(tmp_path: Path, wrapper: Any) -> None:
    until(lambda: read(tmp_path / "node" / "gpus.json"))
    (sampler,) = helpers(wrapper.pid, "gpu.sampler")
    rest = [each for each in below(wrapper.pid) if each != sampler]
    wrapper.kill()
    until(lambda: not is_alive(sampler))
    for pid in rest:
        kill(pid)


def test_where_there_is_no_gpu_it_says_so(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU here")
    document = GpuSampler().sample()
    assert (document["state"], document["gpus"]) == ("absent", [])
    assert document["reason"]


def test_a_library_that_is_not_nvml_is_absent(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").symlink_to(_ctypes.__file__)
    code = "from mwatch_trainer.gpu.sampler import GpuSampler; print(GpuSampler().sample())"
    environment = environ(LD_LIBRARY_PATH=str(tmp_path))
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, timeout=60, check=True
    )
    assert b"'state': 'absent', 'reason': 'NVML does not start" in found.stdout


def test_a_name_with_brackets_and_blanks_is_read() -> None:
    text = b"42 (a) R (b c) S 7 42 42 0 -1 4194304 1 2 3 4 150 50 0 0 20 0 9 0 777 1000 25 0"
    found = parse(text)
    assert found is not None
    assert (found.pid, found.ppid, found.name, found.state) == (42, 7, "a) R (b c", "S")
    assert (found.threads, found.started) == (9, 777)
    assert parse(b"") is None
    assert parse(b"42 (x) S 7") is None
    assert parse(text.replace(b"777", b"x")) is None


def process(pid: int, ppid: int) -> Process:
    return Process(pid, ppid, "x", "S", 0.0, 0, 1, pid)


def test_the_tree_is_walked_from_above_and_without_what_is_ours() -> None:
    known = {pid: process(pid, ppid) for pid, ppid in ((2, 1), (3, 2), (4, 1), (5, 4), (6, 9))}
    assert [each.pid for each in descendants(1, known)] == [2, 4, 3, 5]
    assert [each.pid for each in descendants(1, known, without=[4])] == [2, 3]
    loop = {2: process(2, 3), 3: process(3, 2)}
    assert [each.pid for each in descendants(2, loop)] == [3]


def test_a_process_that_is_gone_is_nobody(tmp_path: Path) -> None:
    assert proc.read(1, str(tmp_path)) is None
    assert proc.all_processes(str(tmp_path / "none")) == {}
    assert proc.rank_of(1, str(tmp_path)) is None
    assert Ranks(str(tmp_path)).of([process(2, 1)]) == {2: (None, False)}


def test_the_number_of_a_pod_is_no_rank(tmp_path: Path) -> None:
    """The operator gives `RANK` to every process of a pod; a launcher gives both to its workers."""
    given = {2: b"RANK=0\0WORLD_SIZE=16\0", 3: b"RANK=0\0LOCAL_RANK=0\0", 4: b"LOCAL_RANK=x\0"}
    for pid, text in given.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(text)
    found = Ranks(str(tmp_path)).of([process(2, 1), process(3, 2), process(4, 3)])
    assert found == {2: (None, False), 3: (0, True), 4: (None, False)}


@pytest.mark.parametrize(
    "task",
    [b"OMPI_COMM_WORLD_RANK=3", b"PMIX_RANK=3", b"PMI_RANK=3", b"SLURM_STEP_ID=0\0SLURM_PROCID=3"],
)
def test_a_task_is_a_rank_unless_it_has_started_workers_of_its_own(
    tmp_path: Path, task: bytes
) -> None:
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "environ").write_bytes(b"HOME=/root\0" + task)
    assert Ranks(str(tmp_path)).of([process(2, 1)]) == {2: (3, True)}
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "environ").write_bytes(task + b"\0RANK=24\0LOCAL_RANK=0")
    found = Ranks(str(tmp_path)).of([process(2, 1), process(3, 2)])
    assert found == {2: (None, False), 3: (24, True)}


def test_the_batch_script_of_slurm_is_no_task(tmp_path: Path) -> None:
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "environ").write_bytes(b"SLURM_JOB_ID=7\0SLURM_PROCID=0")
    assert Ranks(str(tmp_path)).of([process(2, 1)]) == {2: (None, False)}


def test_a_process_met_before_it_has_its_own_environment_becomes_a_rank(tmp_path: Path) -> None:
    """Between fork and exec a worker still has the environment of its launcher, or none."""
    ranks, environ_file = Ranks(str(tmp_path)), tmp_path / "2" / "environ"
    environ_file.parent.mkdir()
    environ_file.write_bytes(b"")
    assert ranks.of([process(2, 1)]) == {2: (None, False)}
    environ_file.write_bytes(b"RANK=5\0LOCAL_RANK=1\0")
    assert ranks.of([process(2, 1)]) == {2: (5, True)}
    environ_file.unlink()
    assert ranks.of([process(2, 1)]) == {2: (5, True)}, "it is remembered after two looks"


def test_a_document_that_is_too_long_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too many"):
        put(str(tmp_path / "x"), {"a": "b" * (1 << 20)})
    assert not list(tmp_path.iterdir())


def test_own_processes_are_not_the_trainers() -> None:
    found = ProcessFacts(os.getpid()).sample()["processes"]
    assert all("mwatch" not in each["name"] for each in found)
