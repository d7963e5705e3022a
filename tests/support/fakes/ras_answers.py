# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Answers of NCCL's RAS service, laid out as NCCL 2.24 to 2.30 prints them.

No NCCL runs on the machine of the tests: the layout was read from its source, release by release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
VERSION = "2.30.7+cuda13.0"


class Lost(NamedTuple):
    rank: int
    is_dead: bool = False
    is_unresponsive: bool = True
    pid: int | None = None


class Comm(NamedTuple):
    """A communicator; `begun` holds each rank's AllReduces."""

    hash: int
    begun: Mapping[int, int]
    lost: Sequence[Lost] = ()
    size: int | None = None
    pids: Mapping[int, int] | None = None
    init_state: int = 0
    finalizing: frozenset[int] = frozenset()

    def pid(self, rank: int) -> int:
        return 4000 + rank if self.pids is None else self.pids[rank]


def host(pid: int) -> str:
    return f"10.0.0.{1 + (pid - 4000) // 8}"


def as_json(*comms: Comm, version: str = VERSION, lost_comma: bool = False) -> str:
    """`lost_comma`: as 2.28.7 and 2.28.9 write a missing rank."""
    text = "{\n"
    text += f'  "nccl_version": "{version}",\n'
    text += '  "cuda_runtime_version": 13000,\n  "cuda_driver_version": 13000,\n'
    text += '  "timestamp": "2026-11-15 13:06:53",\n'
    text += f'  "communicators_count": {len(comms)},\n  "communicators": [\n'
    text += ",\n".join(_json_comm(each, "" if lost_comma else ",") for each in comms)
    text += (
        '\n  ],\n  "ras": {\n    "collection_time_sec": 0.001,\n    "timeouts_count": 0\n  }\n}\n'
    )
    return text


def _json_comm(each: Comm, comma: str) -> str:
    size = each.size or len(each.begun) + len(each.lost)
    text = "    {\n"
    text += f'      "hash": "{each.hash:#x}",\n      "secondary_hash": "0xb7e7:0xb824",\n'
    text += f'      "size": {size},\n      "ranks_count": {len(each.begun)},\n'
    text += f'      "missing_ranks_count": {len(each.lost)},\n      "ranks": [\n'
    text += ",\n".join(_json_rank(each, rank, count) for rank, count in each.begun.items())
    text += '\n      ],\n      "missing_ranks": [\n'
    text += ",\n".join(_json_lost(each, lost, comma) for lost in each.lost)
    return text + "\n      ]\n    }"


def _json_place(rank: int, pid: int) -> str:
    return (
        f'          "rank": {rank},\n          "host": "{host(pid)}",\n'
        f'          "pid": {pid},\n          "cuda_dev": {rank % 8},\n'
        f'          "nvml_dev": {(pid - 4000) % 8}'
    )


def _json_rank(each: Comm, rank: int, count: int) -> str:
    leaves = "true" if rank in each.finalizing else "false"
    counts = {**dict.fromkeys(OPERATIONS, 0), "AllReduce": count}
    lines = ",\n".join(f'            "{name}": {value}' for name, value in counts.items())
    return (
        "        {\n" + _json_place(rank, each.pid(rank)) + ",\n"
        f'          "status": {{\n            "init_state": {each.init_state},\n'
        '            "async_error": 0,\n'
        f'            "finalize_called": {leaves},\n            "destroy_flag": false,\n'
        '            "abort_flag": false\n          },\n'
        f'          "collective_counts": {{\n{lines}\n          }}\n        }}'
    )


def _json_lost(each: Comm, lost: Lost, comma: str) -> str:
    flags = {"unresponsive": lost.is_unresponsive, "considered_dead": lost.is_dead}
    lines = ",\n".join(f'            "{key}": {str(is_so).lower()}' for key, is_so in flags.items())
    pid = each.pid(lost.rank) if lost.pid is None else lost.pid
    return (
        "        {\n" + _json_place(lost.rank, pid) + f"{comma}\n"
        f'          "status": {{\n{lines}\n          }}\n        }}'
    )


HEAD = """NCCL version {version} compiled with CUDA 12.4
CUDA runtime version 12040, driver version 12040

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      4          8            1         32       32

Communicators... ({seconds}s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def as_text(
    rows: Iterable[str],
    errors: str = "",
    warnings: str = "",
    *,
    version: str = "2.27.7+cuda12.4",
) -> str:
    head = HEAD.format(version=version, seconds="0.00")
    table = "".join(f"{row}\n" for row in rows)
    return f"{head}{table}\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}"


def row(status: str = "RUNNING", errors: str = "OK", *, comms: int = 1, size: int = 32) -> str:
    return f"{0:5d}  {comms:8d}  {4:8d}  {'8':>8}  {size:8d}  {32:8d}  {status:>8}  {errors:>6}"


def place(rank: int, pid: int | None = None) -> str:
    pid = 4000 + rank if pid is None else pid
    return f"GPU {rank % 8} managed by process {pid} on node {host(pid)}"


def apart(most: int, late: Mapping[int, int], *, of: str = "AllReduce", size: int = 32) -> str:
    """The MISMATCH of a communicator where a few ranks are behind; each at a count of its own."""
    text = f"#0-0 (27a079b828ff1a75) MISMATCH\n  Communicator ranks have different {of} counts\n"
    text = text.replace(f"{of} counts", f"{of} operation counts")
    text += f"  {size - len(late)} ranks have launched up to operation {most}\n"
    for rank, count in late.items():
        began = f"launched up to operation {count}" if count else "not launched any operations"
        text += f"  Rank {rank} has {began} -- {place(rank)}\n"
    return text + "\n"
