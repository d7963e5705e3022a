# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of one `torch.save` file per rank: Megatron's legacy format, and Composer's.

It cannot know how many ranks there should be: a grid that lost its whole last row or column looks
like a smaller grid. `checkpoint_neighbours` asks those beside it.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import Iterator, Tuple

from mwatch_trainer.checkpoint_files import Contents, is_temporary
from mwatch_trainer.checkpoint_verdict import (
    Doubt,
    Flaw,
    Format,
    Verdict,
    check_torch_files,
    judge,
)

_RANK_FOLDER = re.compile(r"mp_rank_([0-9]{2,5})(?:_([0-9]{3,5}))?(?:_([0-9]{3,5}))?", re.ASCII)
_MODEL_FILES = frozenset({"model_optim_rng.pt", "model_rng.pt"})

Rank = Tuple[int, ...]
"""Tensor rank, then pipeline rank, then expert or data rank, as far as the name has them."""


def judge_legacy(folder: str, contents: Contents) -> Verdict:
    """A folder of Megatron with one `mp_rank_...` folder for each rank."""
    return judge(Format.LEGACY, lambda: _check_legacy(folder, contents))


def judge_composer_files(folder: str, ranks: dict[int, str]) -> Verdict:
    """The files of one batch by rank; rank 0 alone where the state is not sharded."""

    def check() -> None:
        for rank in range(len(ranks)):
            if rank not in ranks:
                raise Flaw(f"the file of rank {rank} is missing")
        names = [ranks[rank] for rank in sorted(ranks)]
        others = [name for name in names if not name.endswith(".pt")]
        check_torch_files(folder, (name for name in names if name.endswith(".pt")))
        if others:
            raise Doubt(f"{others[0]} is compressed or an archive, which is not checked")

    return judge(Format.COMPOSER, check)


def rank_of(name: str) -> Rank | None:
    """The coordinates in the name of a rank's folder; None for another name."""
    found = _RANK_FOLDER.fullmatch(name)
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def _check_legacy(folder: str, contents: Contents) -> None:
    names = {rank: name for name in contents.folders for rank in [rank_of(name)] if rank}
    for path, problem in sorted(contents.problems.items()):
        if rank_of(path.partition(os.sep)[0]):
            raise Doubt(f"{path} {problem}")
    if contents.is_cut:
        raise Doubt("it has too many files to look at all of them")
    _check_grid(set(names))
    _check_file_sets(names, contents)
    own = sorted(path for path in contents.files if rank_of(path.partition(os.sep)[0]))
    for path in own:
        if not contents.files[path].bytes:
            raise Flaw(f"{path} is empty")
    if not any(os.path.basename(path) in _MODEL_FILES for path in own):
        raise Flaw("no rank has model_optim_rng.pt or model_rng.pt")
    check_torch_files(folder, (path for path in own if path.endswith(".pt")))


def _check_grid(ranks: set[Rank]) -> None:
    """Each length of coordinates is a full grid.

    Two lengths occur together: v3.0 kept the model in `mp_rank_00` and the distributed optimizer
    in `mp_rank_00_000`, one for each data rank.
    """
    for _, grid in _by_length(ranks):
        sides = [range(max(rank[axis] for rank in grid) + 1) for axis in range(len(grid[0]))]
        present = set(grid)
        # Stops one past the ranks that are there, however large a number in a name is.
        for rank in itertools.product(*sides):
            if rank not in present:
                raise Flaw(f"{folder_of(rank)} is missing")
    shortest = min(map(len, ranks), default=0)
    shorter = {rank for rank in ranks if len(rank) == shortest}
    for length, grid in _by_length(ranks):
        stems = {rank[:shortest] for rank in grid}
        if stems != shorter:
            stem = min(stems ^ shorter)
            rank = stem if stem not in shorter else stem + (0,) * (length - len(stem))
            raise Flaw(f"{folder_of(rank)} is missing")


def _by_length(ranks: set[Rank]) -> Iterator[tuple[int, list[Rank]]]:
    for length in sorted({len(rank) for rank in ranks}):
        yield length, sorted(rank for rank in ranks if len(rank) == length)


def folder_of(rank: Rank) -> str:
    return f"mp_rank_{rank[0]:02d}" + "".join(f"_{part:03d}" for part in rank[1:])


def _check_file_sets(names: dict[Rank, str], contents: Contents) -> None:
    held: dict[str, set[str]] = {name: set() for name in names.values()}
    for path in contents.files:
        name, _, file = path.partition(os.sep)
        if name in held and not is_temporary(file):
            held[name].add(file)
    for _, grid in _by_length(set(names)):
        folders = [names[rank] for rank in grid]
        wanted = set().union(*(held[name] for name in folders))
        if not wanted:
            raise Flaw(f"{folders[0]} is empty")
        for name in folders:
            for file in sorted(wanted - held[name]):
                raise Flaw(f"{name}/{file} is missing, which other ranks have")
