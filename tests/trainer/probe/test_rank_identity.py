# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which process is a rank, by its environment and command line."""

from __future__ import annotations

import pytest

from mwatch_trainer.probe.rank_identity import (
    MAYBE_RANK,
    NOT_A_RANK,
    OWNER_VARIABLE,
    RANK,
    classify,
    identity,
    mark,
    program,
)

WORKER = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "TORCHELASTIC_RESTART_COUNT": "2"}
TRAINER = ["python", "-u", "pretrain_gpt.py", "--micro-batch-size", "1"]
POD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0"}
SPAWNED = ["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"]


def test_a_worker_of_torchrun_is_a_rank() -> None:
    assert classify(WORKER, 100, TRAINER) == RANK
    told = identity(WORKER)
    assert (told.rank, told.local_rank, told.world_size, told.restart_count) == (9, 1, 16, 2)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "/opt/venv/bin/torchrun", "--nproc-per-node", "8", "pretrain_gpt.py"],
        ["python", "-m", "torch.distributed.run", "pretrain_gpt.py"],
        ["python", "-um", "torch.distributed.launch", "pretrain_gpt.py"],
        ["python", "/usr/lib/torch/distributed/run.py", "pretrain_gpt.py"],
        ["python", "/usr/local/bin/composer", "train.py", "conf.yaml"],
        ["python", "-u", "-m", "deepspeed.launcher.launch", "train.py"],
        ["python", "-X", "dev", "-m", "mwatch_trainer", "--", "python", "x.py"],
    ],
)
def test_a_launcher_is_none_though_the_pod_gives_it_a_rank(command: list[str]) -> None:
    assert classify(POD, 100, command) == NOT_A_RANK
    assert classify(WORKER, 100, command) == NOT_A_RANK


def test_a_program_with_the_rank_of_its_pod_may_be_one() -> None:
    assert classify(POD, 100, TRAINER) == MAYBE_RANK
    assert classify({}, 100, TRAINER) == MAYBE_RANK


def test_a_line_of_python_or_a_prompt_is_none() -> None:
    assert classify({}, 100, ["python", "-c", "print(1)"]) == NOT_A_RANK
    assert classify({}, 100, ["python"]) == NOT_A_RANK
    assert classify({}, 100, []) == NOT_A_RANK


def test_a_spawned_worker_of_a_launcher_may_be_one() -> None:
    assert classify({}, 100, SPAWNED) == MAYBE_RANK


@pytest.mark.parametrize("words", [WORKER, POD, {}])
def test_children_of_a_rank_are_none(words: dict[str, str]) -> None:
    inherited = {**words, OWNER_VARIABLE: mark(words, 100)}
    assert classify(inherited, 101, TRAINER) == NOT_A_RANK
    assert classify(inherited, 101, SPAWNED) == NOT_A_RANK


def test_a_rank_that_replaces_itself_by_exec_stays_one() -> None:
    assert classify({**WORKER, OWNER_VARIABLE: mark(WORKER, 100)}, 100, TRAINER) == RANK


def test_a_worker_that_was_started_by_what_took_itself_for_a_rank_is_one() -> None:
    assert classify({**WORKER, OWNER_VARIABLE: mark(POD, 100)}, 101, TRAINER) == RANK
    assert classify({**WORKER, OWNER_VARIABLE: mark({}, 100)}, 101, TRAINER) == RANK


def test_what_mpirun_and_srun_set_is_understood() -> None:
    told = identity({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})
    assert (told.rank, told.world_size, told.local_rank) == (3, 4, -1)
    slurm = {"SLURM_PROCID": "6", "SLURM_LOCALID": "2", "SLURM_NTASKS": "8"}
    told = identity({**slurm, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "7"})
    assert (told.rank, told.world_size, told.local_rank) == (6, 7, 2)
    assert identity(slurm).rank == -1  # the batch script


@pytest.mark.parametrize("value", ["", "-1", "x", "1" * 30, "٣x"])
def test_a_strange_rank_is_no_rank(value: str) -> None:
    assert identity({"RANK": value}).rank == -1
    assert classify({"RANK": value, "LOCAL_RANK": "0"}, 100, TRAINER) == MAYBE_RANK


def test_a_world_that_the_rank_does_not_fit_in_is_unknown() -> None:
    assert identity({"RANK": "8", "WORLD_SIZE": "8"}).world_size == -1


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["python", "a/train.py", "-m", "x"], "train.py"),
        (["python", "-W", "error", "-Xdev", "train.py"], "train.py"),
        (["python", "-Wignore", "-m", "pkg.mod"], "pkg.mod"),
        (["python", "-mpkg"], "pkg"),
        (["python", "-Bc", "pass"], "-c"),
        (["python", "--check-hash-based-pycs=always", "x.py"], "x.py"),
        (["python", "-"], "-"),
        (["python", "-m"], ""),
    ],
)
def test_the_program_is_found_behind_pythons_own_options(command: list[str], expected: str) -> None:
    assert program(command) == expected
