# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The index of a torch.distributed checkpoint (`.metadata`), read without torch.

It cannot know whether the tensors behind the index are right, only where they have to lie.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mwatch_trainer.inert_pickle import Pairs, Thing, UnreadablePickle, read_pickle, shown

MAX_BYTES = 32 << 20  # over 100,000 pieces of tensors; in a real index 42 KB hold 227
MAX_STEPS = 16_000_000  # 2.4 bytes a step in a real index, so the size is reached first
_MAX_ATTRIBUTES = 64  # torch's objects have five; looking one up must stay cheap


class Index(NamedTuple):
    shards: dict[str, int]
    """Path inside the checkpoint -> how many bytes the file must have at least."""
    has_common_state: bool
    """Megatron's own state is among the entries (older releases keep it in `common.pt`)."""


def read_index(data: bytes, max_bytes: int = MAX_BYTES, max_steps: int = MAX_STEPS) -> Index:
    """Which files the checkpoint consists of. UnreadablePickle where that cannot be told."""
    if len(data) > max_bytes:
        raise UnreadablePickle(f"is larger than {max_bytes} bytes")
    top = read_pickle(data, max_steps)
    if not isinstance(top, Thing) or not top.kind.name.endswith("Metadata"):
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
    return Index(shards, has_common_state)


def _contents(value: Any) -> Pairs:
    if isinstance(value, Thing):
        value = value.items
    return value if isinstance(value, Pairs) else Pairs()


def _state(value: Any) -> Pairs:
    """The attributes of an object."""
    state = value.state if isinstance(value, Thing) else None
    if not isinstance(state, Pairs):
        return Pairs()
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
