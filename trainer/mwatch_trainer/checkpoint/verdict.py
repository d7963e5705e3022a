# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict on one checkpoint, and the words for what is wrong with its files.

*Complete* and *incomplete* are said with proof; what could not be looked at is *unverified*.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import Callable, Iterable, NamedTuple

from mwatch_trainer.checkpoint.files import check_torch_file
from mwatch_trainer.checkpoint.safe_pickle import shown


class CheckpointState(str, Enum):
    COMPLETE = "complete"
    UNVERIFIED = "unverified"
    INCOMPLETE = "incomplete"


class Format(str, Enum):
    TORCH_DIST = "torch_dist"
    TORCH_DCP = "torch_dcp"
    """An index without Megatron's `metadata.json`: `torch_dcp`, `fsdp_dtensor`."""
    LEGACY = "legacy"
    COMPOSER = "composer"
    COMPOSER_SHARDED = "composer_sharded"
    UNKNOWN = "unknown"


class CheckpointVerdict(NamedTuple):
    format: Format
    state: CheckpointState
    reason: str | None
    """Why it is not complete; None where it is."""


class Flaw(Exception):
    """Proof that the checkpoint is not whole."""


class Doubt(Exception):
    """Why it cannot be told."""


def judge(kind: Format, check: Callable[[], None]) -> CheckpointVerdict:
    try:
        check()
    except Flaw as flaw:
        return CheckpointVerdict(kind, CheckpointState.INCOMPLETE, str(flaw))
    except Doubt as doubt:
        return CheckpointVerdict(kind, CheckpointState.UNVERIFIED, str(doubt))
    return CheckpointVerdict(kind, CheckpointState.COMPLETE, None)


def plain(path: str) -> str:
    return path if path.isprintable() and len(path) <= 100 else shown(path)


def first_of(texts: list[str]) -> str:
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    return texts[0] + more


def check_torch_files(folder: str, paths: Iterable[str]) -> None:
    doubts: list[str] = []
    for path in paths:
        flaw, doubt = check_torch_file(os.path.join(folder, path))
        if flaw is not None:
            raise Flaw(f"{plain(path)} {flaw}")
        if doubt is not None:
            doubts.append(f"{plain(path)} {doubt}")
    if doubts:
        raise Doubt(first_of(doubts))
