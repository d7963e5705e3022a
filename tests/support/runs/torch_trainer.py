# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer of two or more real ranks: torch.distributed over gloo, lines as Megatron prints them.

Runs under any launcher, which gives each process its rank by `RANK` and `WORLD_SIZE`, by Slurm's
variables, or as the arguments of `train`. The rank `--victim` stops itself at `--at`, once: the
`--state` file remembers it. With `--when` it does so later, when that file is there. With
`--without-torch` the ranks wait for each other by files instead: each rank would load torch for
seconds.
"""

from __future__ import annotations

import argparse
import atexit
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is run as a file

from support.runs import printing_trainer as printing


def main() -> None:
    args = arguments(sys.argv[1:])
    rank = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID", "0"))
    world = int(os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_NTASKS", "1"))
    train(rank, world, args)


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    add("--train-iters", type=int, default=60)
    add("--step-seconds", type=float, default=0.05)
    add("--victim", type=int, default=1)
    add("--at", type=int, default=20)
    add("--state", type=Path)
    add("--when", type=Path)
    add("--meeting", type=Path, required=True)
    add("--without-torch", action="store_true")
    return parser.parse_known_args(words)[0]


def train(rank: int, world: int, args: argparse.Namespace) -> None:
    attempt = os.environ.get("MWATCH_ATTEMPT", "0")
    meeting = Path(f"{args.meeting}-{attempt}")  # of its own for each attempt
    all_reduce = (_by_files if args.without_torch else _by_gloo)(meeting, rank, world)
    if rank == 0:
        print("[before the start of training step] datetime: 2026-11-15 09:00:00 ", flush=True)
    for step in range(1, args.train_iters + 1):
        time.sleep(args.step_seconds)
        if rank == args.victim and _is_due(step, args) and not printing.has_happened(args.state):
            printing.fail("stop")
        all_reduce()
        if rank == 0:
            printing.print_line(step, args.train_iters, args.step_seconds, False)
    all_reduce()
    if rank == 0:
        print("[after training is done] datetime: 2026-11-15 09:00:10 ", flush=True)


def _is_due(step: int, args: argparse.Namespace) -> bool:
    if args.when is None:
        return bool(step == args.at)
    return bool(step >= args.at and args.when.exists())


def _by_gloo(meeting: Path, rank: int, world: int) -> Callable[[], None]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    atexit.register(dist.destroy_process_group)
    return lambda: dist.all_reduce(torch.ones(1))


def _by_files(meeting: Path, rank: int, world: int) -> Callable[[], None]:
    """Each rank has a file with a byte for each time that it has been here."""
    meeting.mkdir(exist_ok=True)
    files = [meeting / str(each) for each in range(world)]
    times = itertools.count(1)

    def all_reduce() -> None:
        with files[rank].open("ab") as file:
            file.write(b".")
        here = next(times)
        while any(not each.exists() or each.stat().st_size < here for each in files):
            time.sleep(0.005)

    return all_reduce


if __name__ == "__main__":
    main()
