# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as Megatron and Composer write them, without torch; long files are sparse."""

from __future__ import annotations

import json
import pickle
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from mwatch_trainer.checkpoint.files import CheckpointState
from mwatch_trainer.checkpoint.listing import ListedCheckpoint, list_checkpoints

REAL_INDEX = Path(__file__).parents[2] / "data" / "core_v0.20-dot-metadata.bin"
REAL_SHARD = "__0_0.distcp"
REAL_SHARD_BYTES = 409_991_887
OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
"""How a file of torch before 1.6 begins: its magic number, then its protocol version."""

_METADATA = "torch.distributed.checkpoint.metadata"
_FILESYSTEM = "torch.distributed.checkpoint.filesystem"


def index_of(
    shards: Mapping[str, int],
    *,
    common: bool = True,
    protocol: int = 4,
    mapping: Callable[[], dict[Any, Any]] = dict,
    **extra: Any,
) -> bytes:
    """An index in torch's shape: each file is named twice, up to its length."""
    parents = ("torch", "torch.distributed", "torch.distributed.checkpoint")
    modules = {name: ModuleType(name) for name in (*parents, _METADATA, _FILESYSTEM)}
    places = {"Metadata": _METADATA, "MetadataIndex": _METADATA, "_StorageInfo": _FILESYSTEM}
    kinds = {name: type(name, (), {"__module__": module}) for name, module in places.items()}
    for name, kind in kinds.items():
        setattr(modules[places[name]], name, kind)

    def made(name: str, **attributes: Any) -> Any:
        thing = kinds[name]()
        vars(thing).update(attributes)
        return thing

    storage = mapping()
    for number, (path, length) in enumerate(shards.items()):
        half = length // 2
        for offset, size in ((0, half), (half, length - half)):
            key = made("MetadataIndex", fqn=f"decoder.{number}.{offset}", index=None)
            info = made("_StorageInfo", relative_path=path, offset=offset, length=size)
            storage[key] = info
    if common and storage:
        next(iter(storage)).fqn = "common_state/shard_0_1"
    top = made("Metadata", state_dict_metadata={}, planner_data=None, storage_data=storage)
    vars(top).update(extra)
    with patch.dict(sys.modules, modules):
        return pickle.dumps(top, protocol)


def sparse(path: Path, length: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(length)
    return path


def torch_file(path: Path) -> Path:
    """What `torch.save` writes since 1.6: a zip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
    return path


def config(folder: Path, backend: str = "torch_dist") -> None:
    record = {"sharded_backend": backend, "sharded_backend_version": 1}
    (folder / "metadata.json").write_text(json.dumps(record))


def torch_dist(save: Path, iteration: int, shards: Mapping[str, int] | None = None) -> Path:
    """A complete one; without `shards`, the one whose index is recorded in `tests/data`."""
    folder = save / f"iter_{iteration:07d}"
    folder.mkdir(parents=True)
    lengths = {REAL_SHARD: REAL_SHARD_BYTES} if shards is None else shards
    for name, length in lengths.items():
        sparse(folder / name, length)
    index = REAL_INDEX.read_bytes() if shards is None else index_of(shards)
    (folder / ".metadata").write_bytes(index)
    (folder / "tokenizer").mkdir()
    config(folder)
    return folder


def legacy(save: Path, iteration: int, *ranks: str, files: tuple[str, ...] = ()) -> Path:
    folder = save / f"iter_{iteration:07d}"
    for rank in ranks or ("mp_rank_00",):
        for name in ("model_optim_rng.pt", *files):
            torch_file(folder / rank / name)
    return folder


def track(save: Path, value: object) -> None:
    (save / "latest_checkpointed_iteration.txt").write_text(str(value))


def only(save: Path) -> ListedCheckpoint:
    """The one checkpoint of a folder."""
    (checkpoint,) = list_checkpoints(str(save)).checkpoints
    return checkpoint


def verdict(save: Path) -> tuple[CheckpointState, str | None]:
    checkpoint = only(save)
    return checkpoint.state, checkpoint.reason
