# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The verdict on one checkpoint, and the check of `torch.save` files.

*Complete* and *incomplete* are proven; a checkpoint that could not be checked is *unverified*.
"""

from __future__ import annotations

import os
import zipfile
from enum import Enum
from typing import Callable, Iterable, NamedTuple

from mwatch_trainer.checkpoint.files import open_regular, os_error_text
from mwatch_trainer.checkpoint.safe_pickle import shown

_ZIP_START = b"PK\x03\x04"
_OLD_TORCH_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch before 1.6


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
    reason: str | None  # why it is not complete


class Flaw(Exception):
    """Proof that the checkpoint is incomplete."""


class Doubt(Exception):
    """Why it could not be checked."""


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
        try:
            _check_torch_file(os.path.join(folder, path))
        except Flaw as flaw:
            raise Flaw(f"{plain(path)} {flaw}") from None
        except Doubt as doubt:
            doubts.append(f"{plain(path)} {doubt}")
    if doubts:
        raise Doubt(first_of(doubts))


def _check_torch_file(path: str) -> None:
    """Check that the file is complete: a zip is written front to back, its directory last."""
    try:
        with open_regular(path) as file:
            start = file.read(len(_OLD_TORCH_START))
            is_zip = zipfile.is_zipfile(file)
    except FileNotFoundError:
        raise Flaw("is missing") from None
    except zipfile.BadZipFile:
        raise Flaw("is damaged") from None
    except OSError as error:
        raise Doubt(f"cannot be read: {os_error_text(error)}") from None
    if is_zip:
        return
    if not start:
        raise Flaw("is empty")
    if start == _OLD_TORCH_START:
        raise Doubt("is of torch before 1.6, whose end cannot be checked")
    if start.startswith(_ZIP_START):
        raise Flaw("is cut short: the directory at its end is missing")
    raise Flaw("is not a file of torch.save")
