# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A legacy checkpoint held against those beside it: does it lack the folder of a rank?

One alone cannot tell how many ranks there were: a grid without its last row looks like a smaller
grid. Its neighbours can. A job that was continued with fewer ranks has a smaller grid too, but as
many bytes in it: only one that is both smaller and lighter has lost something. It cannot see a
rank that is missing in all of them.
"""

from __future__ import annotations

import os
from typing import Sequence

from mwatch_trainer.checkpoint_files import Contents, look_through
from mwatch_trainer.checkpoint_ranks import Rank, folder_of, rank_of

_NEIGHBOURS = 2  # on either side
_LIGHTER = 0.95  # padding and random states differ from layout to layout by less


def lost_rank(folder: str, name: str, contents: Contents, names: Sequence[str]) -> str | None:
    """Why `name` is not whole; None: nothing speaks against it. `names`: all, in their order."""
    if name not in names:
        return None  # `release` stands for itself
    own = _ranks(contents.folders)
    for other in _beside(name, names):
        theirs = _ranks(_folders(os.path.join(folder, other)))
        lost = sorted(theirs - own)
        if not lost or not own < theirs:
            continue
        if contents.bytes < look_through(os.path.join(folder, other)).bytes * _LIGHTER:
            return f"{folder_of(lost[0])} is missing, which {other} has"
    return None


def _beside(name: str, names: Sequence[str]) -> list[str]:
    place = names.index(name)
    before = names[max(0, place - _NEIGHBOURS) : place]
    return [*reversed(before), *names[place + 1 : place + 1 + _NEIGHBOURS]]


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _ranks(names: Sequence[str]) -> set[Rank]:
    return {rank for rank in map(rank_of, names) if rank is not None}
