# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which of a job's wrappers this is, in the five workloads and under Slurm."""

from __future__ import annotations

import shlex

import pytest

from mwatch_trainer.command.argv import find_program
from mwatch_trainer.command.run_facts import NodePlace, place_of

# What training-operator 1.8 sets in the worker of a job with a master and one worker, 8 GPUs.
WITH_MASTER = {
    "MASTER_ADDR": "j-master-0", "WORLD_SIZE": "16", "RANK": "1", "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "8", "PET_NNODES": "2", "HOSTNAME": "j-worker-0",
}  # fmt: skip
ELASTIC = {"PET_NNODES": "1:64", "PET_RDZV_BACKEND": "etcd", "HOSTNAME": "megatron-worker-3"}
TRAINER_V2 = {"PET_NNODES": "4", "PET_NODE_RANK": "2", "JOB_COMPLETION_INDEX": "2"}


def place(command: str, environ: dict[str, str]) -> NodePlace:
    words = shlex.split(command)
    return place_of(words, find_program(words, environ), environ)


@pytest.mark.parametrize(
    ("command", "environ", "expected"),
    [
        ("python x.py", {}, NodePlace(0, 1)),
        ("torchrun --nproc-per-node 8 x.py", {}, NodePlace(0, 1)),
        ("torchrun x.py", WITH_MASTER, NodePlace(1, 2)),
        ("bash -c 'torchrun x.py'", WITH_MASTER, NodePlace(1, 2)),
        ("torchrun x.py", {**WITH_MASTER, "RANK": "0", "PET_NODE_RANK": "0"}, NodePlace(0, 2)),
        ("torchrun --nnodes=4 x.py", ELASTIC, NodePlace(3, 4)),
        ("torchrun x.py", ELASTIC, NodePlace(3, 1, True)),
        ("torchrun x.py", TRAINER_V2, NodePlace(2, 4)),
        ("torchrun --nnodes 2 --node_rank 1 x.py", {}, NodePlace(1, 2)),
        ("torchrun --nnodes 2:2 --node-rank=1 x.py", {}, NodePlace(1, 2)),
        ("torchrun --nnodes 2 x.py", {"HOSTNAME": "gpu-17"}, NodePlace(None, 2)),
        ("torchrun --nnodes 2 x.py", {"HOSTNAME": "gpu"}, NodePlace(None, 2)),
        ("torchrun --nnodes 2 x.py", {"HOSTNAME": "set-1"}, NodePlace(1, 2)),
        ("composer --world_size 16 --node_rank 1 --nproc 8 t.py y.yaml", {}, NodePlace(1, 2)),
        ("composer -n 8 t.py y.yaml", {"RANK": "1", "WORLD_SIZE": "2"}, NodePlace(1, 2)),
        ("python x.py", {"SLURM_PROCID": "5", "SLURM_NTASKS": "16"}, NodePlace(5, 16)),
        (
            "python x.py",
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
            NodePlace(0, 2),
        ),
        ("python x.py", {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}, NodePlace(3, 8)),
        ("torchrun --nnodes two x.py", {"PET_NNODES": "x", "RANK": "-1"}, NodePlace(0, 1)),
    ],
)
def test_the_place_is_read_from_command_and_environment(
    command: str, environ: dict[str, str], expected: NodePlace
) -> None:
    assert place(command, environ) == expected
