# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which of the job's wrappers this is, and how many there are.

Exactly one wrapper of a job must be number 0. It need not be the node that torch's rendezvous
makes rank 0. In a PyTorchJob `RANK` is the pod's number and `WORLD_SIZE` counts pods times
processes. An elastic range (`1:64`) has no fixed number of wrappers: its lower end is taken.
"""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Sequence

from mwatch_trainer.argv import Program, value_of

_POD = re.compile(r".+-(?:master|worker|node-[0-9]+)-([0-9]{1,6})|.+-([0-9]{1,6})", re.ASCII)
_BY_TASK = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
_RANK_NAMES = (
    "MWATCH_NODE_RANK",
    "PET_NODE_RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "JOB_COMPLETION_INDEX",
)
_COUNT_NAMES = ("MWATCH_NNODES", "PET_NNODES", "NNODES")


class Place(NamedTuple):
    node_rank: int | None
    """None: it cannot be known, in a job that has several."""
    nnodes: int
    is_elastic: bool = False

    @property
    def is_first(self) -> bool:
        return self.node_rank == 0


def place_of(command: Sequence[str], program: Program, environ: Mapping[str, str]) -> Place:
    options = command[: program.start]
    for rank_name, count_name in _BY_TASK:
        rank, count = _number(environ.get(rank_name)), _number(environ.get(count_name))
        if rank is not None and count is not None and rank < count:
            return Place(rank, count)
    if "LOCAL_RANK" in environ:  # a launcher has started one wrapper for each rank
        rank, count = _number(environ.get("RANK")), _number(environ.get("WORLD_SIZE"))
        if rank is not None and count is not None and rank < count:
            return Place(rank, count)
    nnodes, is_elastic = _count(options, environ)
    if nnodes <= 1 and not is_elastic:
        return Place(0, 1)
    rank = _rank(options, environ)
    is_strange = rank is not None and rank >= nnodes and not is_elastic
    return Place(None if is_strange else rank, max(nnodes, 1), is_elastic)


def _count(options: Sequence[str], environ: Mapping[str, str]) -> tuple[int, bool]:
    given = [value_of(options, "--nnodes", "--num_nodes", "--num_machines")]
    given += [environ.get(name) for name in _COUNT_NAMES]
    for text in given:
        least, _, most = (text or "").partition(":")
        if _number(least) is not None:
            return max(1, int(least)), bool(most) and most != least
    processes = _number(value_of(options, "--nproc_per_node", "--nproc-per-node", "--nproc", "-n"))
    processes = processes or _number(environ.get("PET_NPROC_PER_NODE")) or 1
    world = _number(value_of(options, "--world_size")) or _number(environ.get("WORLD_SIZE"))
    if world is None or "LOCAL_RANK" in environ:
        return 1, False
    whole, rest = divmod(world, processes)
    return (whole if whole and not rest else world), False


def _rank(options: Sequence[str], environ: Mapping[str, str]) -> int | None:
    given = [value_of(options, "--node_rank", "--node-rank", "--machine_rank")]
    given += [environ.get(name) for name in _RANK_NAMES]
    if "LOCAL_RANK" not in environ:
        given.append(environ.get("RANK"))
    for text in given:
        number = _number(text)
        if number is not None:
            return number
    pod = _POD.fullmatch(environ.get("MWATCH_POD") or environ.get("HOSTNAME", ""))
    return int(pod.group(1) or pod.group(2)) if pod else None


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if re.fullmatch(r"[0-9]{1,7}", text, re.ASCII) else None
