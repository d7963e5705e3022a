# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoint formats: torch.distributed's (`torch_dist` and relatives), and one file per rank.

A checkpoint of torch.distributed is complete when its index (`.metadata`) can be read and every
shard it names exists and is long enough; Megatron's `torch_dist` also has `metadata.json`, written
last. No tensors are read, so a corrupted byte inside a shard is not detected.

Megatron's legacy format and Composer's have one `torch.save` file per rank. How many ranks there
should be is not known: a grid without its whole last row or column looks smaller (see
`listing.lost_rank`).
"""

from __future__ import annotations

import itertools
import json
import os
import re
import stat
from typing import Any, Iterator, NamedTuple, Tuple

from mwatch_trainer.checkpoint.files import (
    MAX_FILES,
    CheckpointState,
    CheckpointVerdict,
    Contents,
    Doubt,
    Flaw,
    Format,
    check_torch_files,
    first_of,
    is_temporary,
    judge,
    os_error_text,
    plain,
    read_bounded,
)
from mwatch_trainer.checkpoint.safe_pickle import (
    PickledObject,
    PickledPairs,
    UnreadablePickle,
    read_pickle,
    shown,
)

MAX_BYTES = 32 << 20  # enough for over 100,000 tensor pieces; in a real index 227 take 42 KB
MAX_STEPS = 16_000_000  # a real index has 2.4 bytes per step, so the size limit is hit first
_MAX_ATTRIBUTES = 64  # torch's objects have five; lookups must stay cheap


class ShardIndex(NamedTuple):
    shards: dict[str, int]  # path in the checkpoint -> the minimum size of the file
    has_common_state: bool
    """Megatron's own state is among the entries (older releases store it in `common.pt`)."""


def read_index(data: bytes, max_bytes: int = MAX_BYTES, max_steps: int = MAX_STEPS) -> ShardIndex:
    """Read, without torch, which files the checkpoint consists of. Raises UnreadablePickle."""
    if len(data) > max_bytes:
        raise UnreadablePickle(f"is larger than {max_bytes} bytes")
    top = read_pickle(data, max_steps)
    if not isinstance(top, PickledObject) or not top.kind.name.endswith("Metadata"):
        raise UnreadablePickle("holds no torch Metadata")
    entries = _contents(_state(top).get("storage_data"))
    if not entries:
        raise UnreadablePickle("names no shard")
    shards: dict[str, int] = {}
    has_common_state = False
    for place in range(0, len(entries), 2):
        path, end = _shard(entries[place + 1])
        shards[path] = max(end, shards.get(path, 0))
        key = _state(entries[place]).get("fqn")
        has_common_state |= isinstance(key, str) and key.startswith("common_state/")
    return ShardIndex(shards, has_common_state)


def _contents(value: Any) -> PickledPairs:
    if isinstance(value, PickledObject):
        value = value.items
    return value if isinstance(value, PickledPairs) else PickledPairs()


def _state(value: Any) -> PickledPairs:
    state = value.state if isinstance(value, PickledObject) else None
    if not isinstance(state, PickledPairs):
        return PickledPairs()
    if len(state) > 2 * _MAX_ATTRIBUTES:
        raise UnreadablePickle(f"has an object of more than {_MAX_ATTRIBUTES} values")
    return state


def _shard(info: Any) -> tuple[str, int]:
    state = _state(info)
    path, offset, length = (state.get(key) for key in ("relative_path", "offset", "length"))
    if not isinstance(path, str) or type(offset) is not int or type(length) is not int:
        raise UnreadablePickle("has an entry without path, offset and length")
    if offset < 0 or length < 0 or offset + length >= 1 << 63:
        raise UnreadablePickle("has an entry whose offset or length no file can have")
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise UnreadablePickle(f"names a file outside its folder: {shown(path)}")
    return path, offset + length


INDEX = ".metadata"
CONFIG = "metadata.json"
_COMMON = "common.pt"
_MAX_CONFIG_BYTES = 64 << 10  # Megatron writes about 100


def judge_torch_dist(folder: str, contents: Contents) -> CheckpointVerdict:
    return judge(Format.TORCH_DIST, lambda: _check_torch_dist(folder, contents))


def judge_composer_folder(folder: str, contents: Contents) -> CheckpointVerdict:

    def check() -> None:
        _check_shards(folder, contents, _index(folder, contents))

    return judge(Format.COMPOSER_SHARDED, check)


def judge_without_config(folder: str, contents: Contents) -> CheckpointVerdict:
    """Judge an interrupted torch_dist save or a format without `metadata.json`."""
    try:
        index = _index(folder, contents)
    except (Flaw, Doubt) as problem:
        reason = f"{problem}, and metadata.json is missing"
        return CheckpointVerdict(Format.TORCH_DIST, CheckpointState.INCOMPLETE, reason)
    if index.has_common_state or contents.has(folder, _COMMON):
        reason = "metadata.json is missing, which Megatron writes last"
        return CheckpointVerdict(Format.TORCH_DIST, CheckpointState.INCOMPLETE, reason)

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
        raise Doubt(f"metadata.json cannot be read: {os_error_text(error)}") from error
    try:
        config = json.loads(data.decode())
        backend = config["sharded_backend"]
    except (ValueError, RecursionError, KeyError, TypeError):
        start = f"it begins with {data[:20]!r}" if data else "it is empty"
        raise Flaw(f"metadata.json does not parse: {start}") from None
    if not isinstance(backend, str):
        raise Flaw("metadata.json names no sharded_backend")
    return backend


def _index(folder: str, contents: Contents) -> ShardIndex:
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
        raise Doubt(f".metadata cannot be read: {os_error_text(error)}") from error
    except UnreadablePickle as error:
        raise Doubt(f".metadata cannot be read: it {error}") from error
    if len(index.shards) > MAX_FILES:
        raise Doubt(f".metadata names more than {MAX_FILES} files")
    return index


def _check_shards(folder: str, contents: Contents, index: ShardIndex) -> None:
    flaws: list[str] = []
    doubts: list[str] = []
    for path, needed in sorted(index.shards.items()):
        try:
            length = _length(folder, path, contents)
        except (FileNotFoundError, NotADirectoryError):
            flaws.append(f"{plain(path)} is missing")
        except OSError as error:
            doubts.append(f"{plain(path)} cannot be read: {os_error_text(error)}")
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


_RANK_FOLDER = re.compile(r"mp_rank_([0-9]{2,5})(?:_([0-9]{3,5}))?(?:_([0-9]{3,5}))?", re.ASCII)
_MODEL_FILES = frozenset({"model_optim_rng.pt", "model_rng.pt"})

Rank = Tuple[int, ...]
"""Tensor rank, then pipeline rank, then expert or data rank, if the name contains them."""


def judge_legacy(folder: str, contents: Contents) -> CheckpointVerdict:
    return judge(Format.LEGACY, lambda: _check_legacy(folder, contents))


def judge_composer_files(folder: str, ranks: dict[int, str]) -> CheckpointVerdict:
    """Judge the files of one batch, by rank; an unsharded state has only rank 0."""

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
    found = _RANK_FOLDER.fullmatch(name)
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def _check_legacy(folder: str, contents: Contents) -> None:
    names = {rank: name for name in contents.folders for rank in [rank_of(name)] if rank}
    for path, problem in sorted(contents.problems.items()):
        if rank_of(path.partition(os.sep)[0]):
            raise Doubt(f"{path} {problem}")
    if contents.is_cut:
        raise Doubt("it has too many files to check all of them")
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
    """Check that each length of coordinates is a full grid.

    Two lengths can occur together: v3.0 kept the model in `mp_rank_00` and the distributed
    optimizer in `mp_rank_00_000`, one folder per data rank.
    """
    for _, grid in _by_length(ranks):
        sides = [range(max(rank[axis] for rank in grid) + 1) for axis in range(len(grid[0]))]
        present = set(grid)
        # Stops one past the number of existing ranks, however large a rank in a name is.
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
