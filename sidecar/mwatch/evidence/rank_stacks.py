# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the state of each rank of a pod from a dump on the volume: stacks, /proc and GPU.

All reads are bounded, and unreadable data is left out: a dump helps, but is never required.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mwatch import json_codec
from mwatch.model.observation import RankStack, StackKind
from mwatch.model.snapshot.pod import Gpu
from mwatch.parse.stacks import rank_stack
from mwatch.runtime.files import VolumeReader
from mwatch.sources.json_file import objects, text, whole
from mwatch.sources.wrapper_files import read_rank_pids
from mwatch_trainer.contract import DUMPS_FOLDER, MAX_JSON_BYTES
from mwatch_trainer.evidence.dumps import SOURCES

MAX_RANKS = 512
"""Maximum number of ranks of one pod."""
_STACK_BYTES = 256 << 10
_MAX_PROCESSES = 4096
_STACKS = re.compile(r"rank-(\d{1,7})\.stacks\.txt")
_STOPPED = ("T", "t")
_NO_WCHAN = ("", "0")


def read_stacks(volume: str, id: str, gpus: Sequence[Gpu] = ()) -> list[RankStack]:
    """Return the stacks of the dump `id`, in the order of the ranks; empty if there are none."""
    return list(_read(VolumeReader(volume), volume, id, {gpu.rank: gpu for gpu in gpus}))


def _read(
    reader: VolumeReader, volume: str, id: str, gpus: Mapping[int | None, Gpu]
) -> Iterator[RankStack]:
    try:
        found = [match for name in reader.names(DUMPS_FOLDER, id) if (match := _STACKS.match(name))]
    except OSError:
        return
    processes = _processes(reader, volume, id)
    lines = _json(reader, id, SOURCES).get("lines")
    sources = {key: str(each) for key, each in lines.items()} if isinstance(lines, dict) else {}
    ranks = {int(match[1]): match[0] for match in found[:MAX_RANKS]}
    stopped = {rank for rank, each in processes.items() if each.get("state") in _STOPPED}
    for rank in sorted(ranks.keys() | stopped):
        stack = _one(reader, id, rank, ranks.get(rank), sources)
        if rank in stopped:
            stack = (stack or RankStack(rank, StackKind.STOPPED))._replace(
                kind=StackKind.STOPPED, what="stopped by a signal"
            )
        if stack is not None:
            yield _with_facts(stack, processes.get(rank, {}), gpus.get(rank))


def _one(
    reader: VolumeReader, id: str, rank: int, name: str | None, sources: Mapping[str, str]
) -> RankStack | None:
    if name is None:
        return None
    try:
        part = reader.head(DUMPS_FOLDER, id, name, most=_STACK_BYTES)
    except OSError:
        return None
    return rank_stack(rank, part.data.decode("utf-8", "replace"), sources)


def _with_facts(stack: RankStack, process: Mapping[str, Any], gpu: Gpu | None) -> RankStack:
    wchan = text(process.get("wchan"), 64) or ""
    return stack._replace(
        state=text(process.get("state"), 2) or "",
        wchan="" if wchan in _NO_WCHAN else wchan,
        gpu_utilization=None if gpu is None else gpu.utilization,
        tensor_active=None if gpu is None else gpu.tensor_active,
    )


def _processes(reader: VolumeReader, volume: str, id: str) -> dict[int, dict[str, Any]]:
    """Return the /proc data of the main process of each rank."""
    ranks = read_rank_pids(volume)
    found = {}
    for each in objects(_json(reader, id, "processes.json").get("processes"), _MAX_PROCESSES):
        key = (whole(each.get("pid")) or 0, whole(each.get("started")) or 0)
        if key in ranks:
            found[ranks[key]] = each
    return found


def _json(reader: VolumeReader, id: str, name: str) -> dict[str, Any]:
    try:
        body = json_codec.decode(reader.head(DUMPS_FOLDER, id, name, most=MAX_JSON_BYTES).data)
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}
