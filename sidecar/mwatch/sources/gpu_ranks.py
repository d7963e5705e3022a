# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which rank works on which GPU.

Told by the pids that the driver names; those may be of another PID namespace, and then by their
order where there are as many ranks as GPUs. Where neither fits, nobody is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mwatch.model.gpu import Gpu

Ranks = Callable[[], Mapping[int, int]]
"""The rank of each pid, as the kernel sees it."""


def nobody() -> Mapping[int, int]:
    return {}


def ranks_of(gpus: list[Gpu], ranks: Mapping[int, int]) -> list[int | None]:
    by_pid = [next((ranks[pid] for pid in gpu.pids if pid in ranks), None) for gpu in gpus]
    if any(rank is not None for rank in by_pid) or len(ranks) != len(gpus):
        return by_pid
    in_order = sorted(range(len(gpus)), key=lambda place: gpus[place].number)
    found: list[int | None] = [None] * len(gpus)
    for place, rank in zip(in_order, sorted(ranks.values()), strict=True):
        found[place] = rank
    return found
