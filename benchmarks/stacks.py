# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How long it takes to read and merge the stacks of a large job in which one rank is elsewhere."""

from __future__ import annotations

import time

from benchmarks.row import Row
from mwatch.model.stacks import grouped, odd_one_out, tree
from mwatch.parse.stacks import rank_stack

RANKS = 2048
_MOST_SECONDS = 2.0
_DEPTH = 40
_THREADS = 12
_TORCH = "/opt/venv/lib/python3.12/site-packages/torch"


def merging(ranks: int = RANKS) -> Row:
    culprit = ranks // 3
    texts = [_text(rank, is_late=rank == culprit) for rank in range(ranks)]
    began = time.process_time()
    found = [rank_stack(rank, text) for rank, text in enumerate(texts)]
    groups = grouped(each for each in found if each is not None)
    lines = tree(groups)
    seconds = time.process_time() - began
    odd = odd_one_out(groups)
    is_right = odd is not None and odd.first == culprit and len(lines) == len(groups) + 1
    size = sum(map(len, texts)) / 1e6
    return Row(
        f"stacks of {ranks} ranks, read and merged",
        f"{seconds:.2f} s",
        target=f"{_MOST_SECONDS:g} s",
        met=is_right and seconds < _MOST_SECONDS,
        note=f"{size:.0f} MB of text; the odd one out is {'named' if is_right else 'NOT named'}",
    )


def _text(rank: int, *, is_late: bool) -> str:
    """A dump as the probe writes it: the main thread and the threads of torch and a data loader."""
    waiting = [
        (f"{_TORCH}/distributed/distributed_c10d.py", 2810, "all_reduce"),
        (f"{_TORCH}/distributed/c10d_logger.py", 81, "wrapper"),
        ("/repo/megatron/training/training.py", 3532, "train_step"),
    ]
    late = [
        (f"{_TORCH}/utils/data/dataloader.py", 1243, "_try_get_data"),
        (f"{_TORCH}/utils/data/dataloader.py", 701, "__next__"),
        ("/repo/pretrain_gpt.py", 120, "get_batch"),
    ]
    outer = [("/repo/megatron/training/training.py", 900 + at, f"f{at}") for at in range(_DEPTH)]
    main = _thread("main thread", 0, [*(late if is_late else waiting), *outer])
    wait = [("/usr/lib/python3.12/threading.py", 355, "wait")] * 6
    rest = (_thread("thread", number, wait) for number in range(1, _THREADS))
    return "\n".join([f"# rank {rank}, pid {1000 + rank}", main, *rest])


def _thread(how: str, number: int, frames: list[tuple[str, int, str]]) -> str:
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    head = f"\n{how} 0x{number:016x} [thread {number}] (most recent call first):"
    return "\n".join([head, *lines])
