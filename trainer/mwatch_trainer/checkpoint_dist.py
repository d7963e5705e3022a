# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed: `torch_dist`, its relatives, and Composer's sharded ones.

Such a checkpoint is whole when its index (`.metadata`) can be read and every shard that it names
is there and long enough; Megatron's `torch_dist` also has `metadata.json`, which is written last.
It reads no tensors: a wrong byte inside a shard goes unseen.
"""

from __future__ import annotations

import json
import os
import stat

from mwatch_trainer.checkpoint_files import MAX_FILES, Contents, read_bounded, said
from mwatch_trainer.checkpoint_verdict import (
    Doubt,
    Flaw,
    Format,
    State,
    Verdict,
    check_torch_files,
    first_of,
    judge,
    plain,
)
from mwatch_trainer.dist_metadata import MAX_BYTES, Index, read_index
from mwatch_trainer.inert_pickle import UnreadablePickle, shown

INDEX = ".metadata"
CONFIG = "metadata.json"
_COMMON = "common.pt"
_MAX_CONFIG_BYTES = 64 << 10  # Megatron writes about 100


def judge_torch_dist(folder: str, contents: Contents) -> Verdict:
    """A folder of Megatron that has `metadata.json`."""
    return judge(Format.TORCH_DIST, lambda: _check_torch_dist(folder, contents))


def judge_composer_folder(folder: str, contents: Contents) -> Verdict:
    """One `epN-baN` folder; torch writes its index last."""

    def check() -> None:
        _check_shards(folder, contents, _index(folder, contents))

    return judge(Format.COMPOSER_SHARDED, check)


def judge_without_config(folder: str, contents: Contents) -> Verdict:
    """Either a torch_dist save that was stopped, or a format that has no `metadata.json`."""
    try:
        index = _index(folder, contents)
    except (Flaw, Doubt) as problem:
        reason = f"{problem}, and metadata.json is missing"
        return Verdict(Format.TORCH_DIST, State.INCOMPLETE, reason)
    if index.has_common_state or contents.has(folder, _COMMON):
        reason = "metadata.json is missing, which Megatron writes last"
        return Verdict(Format.TORCH_DIST, State.INCOMPLETE, reason)

    def check() -> None:
        _check_shards(folder, contents, index)
        raise Doubt(
            "metadata.json is missing: whole as torch_dcp or fsdp_dtensor, unfinished as torch_dist"
        )

    return judge(Format.TORCH_DCP, check)


def _check_torch_dist(folder: str, contents: Contents) -> None:
    backend = _backend(folder)
    if backend != Format.TORCH_DIST.value:
        raise Doubt(f"metadata.json names the format {shown(backend)}, not known here")
    index = _index(folder, contents)
    _check_shards(folder, contents, index)
    if contents.has(folder, _COMMON):
        check_torch_files(folder, [_COMMON])
    elif not index.has_common_state:
        raise Flaw("common.pt is missing, and .metadata holds no common state in its place")


def _backend(folder: str) -> str:
    try:
        data = read_bounded(os.path.join(folder, CONFIG), _MAX_CONFIG_BYTES)
    except OSError as error:
        raise Doubt(f"metadata.json cannot be read: {said(error)}") from error
    try:
        config = json.loads(data.decode())
        backend = config["sharded_backend"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise Flaw(f"metadata.json does not parse: {_start_of(data)}") from None
    if not isinstance(backend, str):
        raise Flaw("metadata.json names no sharded_backend")
    return backend


def _start_of(data: bytes) -> str:
    return "it is empty" if not data else f"it begins with {data[:20]!r}"


def _index(folder: str, contents: Contents) -> Index:
    if INDEX in contents.problems:
        raise Doubt(f"{INDEX} {contents.problems[INDEX]}")
    if not contents.has(folder, INDEX):
        is_near = INDEX + ".tmp" in contents.files
        end = "was stopped at .metadata.tmp" if is_near else "did not finish"
        raise Flaw(f".metadata is missing: the save {end}")
    try:
        data = read_bounded(os.path.join(folder, INDEX), MAX_BYTES)
        if not data:
            raise Flaw(".metadata is empty")
        index = read_index(data)
    except OSError as error:
        raise Doubt(f".metadata cannot be read: {said(error)}") from error
    except UnreadablePickle as error:
        raise Doubt(f".metadata cannot be read: it {error}") from error
    if len(index.shards) > MAX_FILES:
        raise Doubt(f".metadata names more than {MAX_FILES} files")
    return index


def _check_shards(folder: str, contents: Contents, index: Index) -> None:
    flaws: list[str] = []
    doubts: list[str] = []
    for path, needed in sorted(index.shards.items()):
        try:
            length = _length(folder, path, contents)
        except (FileNotFoundError, NotADirectoryError):
            flaws.append(f"{plain(path)} is missing")
        except OSError as error:
            doubts.append(f"{plain(path)} cannot be looked at: {said(error)}")
        else:
            if length < needed:
                text = "{} is too short: {} of at least {} bytes"
                flaws.append(text.format(plain(path), length, needed))
    if flaws:
        raise Flaw(first_of(flaws))
    if doubts:
        raise Doubt(first_of(doubts))


def _length(folder: str, path: str, contents: Contents) -> int:
    if path in contents.files:
        return contents.files[path].bytes
    status = os.stat(os.path.join(folder, path))
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError
    return status.st_size
