# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One folder that holds one checkpoint: which format it is, and by whose rules it is judged.

The format is told by the files, in Megatron's own order. It cannot tell a `torch_dcp` checkpoint
from a `torch_dist` one that was stopped before `metadata.json`, unless the index gives it away.
"""

from __future__ import annotations

import os
import stat
from itertools import islice

from mwatch_trainer.checkpoint_dist import (
    CONFIG,
    INDEX,
    judge_composer_folder,
    judge_torch_dist,
    judge_without_config,
)
from mwatch_trainer.checkpoint_files import MAX_FILES, Contents, said
from mwatch_trainer.checkpoint_ranks import judge_legacy, rank_of
from mwatch_trainer.checkpoint_verdict import Format, State, Verdict


def judge_folder(folder: str, contents: Contents, is_megatron: bool) -> Verdict:
    """`iter_N` and `release` of Megatron, else `epN-baN` of Composer."""
    unseen = _unseen(folder, contents)
    if unseen is not None:
        return unseen
    if not is_megatron:
        return judge_composer_folder(folder, contents)
    names = _top_names(folder, contents)
    if CONFIG in names:
        return judge_torch_dist(folder, contents)
    if any(map(rank_of, names)):
        return judge_legacy(folder, contents)
    if INDEX in names or any(name.endswith((".distcp", INDEX + ".tmp")) for name in names):
        return judge_without_config(folder, contents)
    reason = "holds no shard, no index and no mp_rank folder"
    if not names:
        reason = "the folder is empty: the save was stopped before its first file"
    return Verdict(Format.UNKNOWN, State.INCOMPLETE, reason)


def looks_like_checkpoint(folder: str) -> bool:
    """Whether this folder is one checkpoint rather than a folder of them."""
    with os.scandir(folder) as entries:
        names = {entry.name for entry in islice(entries, MAX_FILES)}
    return not names.isdisjoint({INDEX, CONFIG}) or any(map(rank_of, names))


def _unseen(folder: str, contents: Contents) -> Verdict | None:
    """The verdict on what is no folder, or one that nobody may look into."""
    try:
        is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
    except FileNotFoundError:
        reason = "is a link to nothing" if os.path.islink(folder) else "went away meanwhile"
        return Verdict(Format.UNKNOWN, State.INCOMPLETE, reason)
    except OSError as error:
        reason = f"cannot be looked at: {said(error)}"
        return Verdict(Format.UNKNOWN, State.UNVERIFIED, reason)
    if not is_folder:
        return Verdict(Format.UNKNOWN, State.INCOMPLETE, "is no folder")
    if "." in contents.problems:
        return Verdict(Format.UNKNOWN, State.UNVERIFIED, contents.problems["."])
    return None


def _top_names(folder: str, contents: Contents) -> set[str]:
    seen = [*contents.files, *contents.folders, *contents.problems]
    names = {path.partition(os.sep)[0] for path in seen}
    if contents.is_cut:  # these two decide, wherever they lie in the listing
        names.update(name for name in (CONFIG, INDEX) if contents.has(folder, name))
    return names
