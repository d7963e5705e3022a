# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The index of a torch.distributed checkpoint (`.metadata`), read without torch.

It cannot know whether the tensors behind the index are right, only where they have to lie.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Tuple

from mwatch_trainer.inert_pickle import Pairs, Thing, UnreadablePickle, read_pickle, shown

MAX_BYTES = 32 << 20  # over 100,000 pieces of tensors; in a real index 42 KB hold 227
MAX_STEPS = 16_000_000  # 2.4 bytes a step in a real index, so the size is reached first
_MAX_ATTRIBUTES = 64  # torch's objects have five; looking one up must stay cheap


class Index(NamedTuple):
    shards: Dict[str, int]
    """Path inside the checkpoint -> how many bytes the file must have at least."""
    has_common_state: bool
    """Megatron's own state is among the entries (older releases keep it in `common.pt`)."""


def read_index(data: bytes, max_bytes: int = MAX_BYTES, max_steps: int = MAX_STEPS) -> Index:
    """Which files the checkpoint consists of. UnreadablePickle where that cannot be told."""
    if len(data) > max_bytes:
        raise UnreadablePickle("is larger than {} bytes".format(max_bytes))
    top = read_pickle(data, max_steps)
    if not isinstance(top, Thing) or not top.kind.name.endswith("Metadata"):
        raise UnreadablePickle("holds no torch Metadata")
    entries = _contents(_state(top).get("storage_data"))
    if not entries:
        raise UnreadablePickle("names no shard")
    shards: Dict[str, int] = {}
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
    """The attributes of an object; slots are pickled as the second of a pair."""
    state = value.state if isinstance(value, Thing) else None
    if isinstance(state, tuple) and len(state) == 2:
        state = state[1] if state[0] is None else state[0]
    if not isinstance(state, Pairs):
        return Pairs()
    if len(state) > 2 * _MAX_ATTRIBUTES:
        raise UnreadablePickle("has an object of more than {} values".format(_MAX_ATTRIBUTES))
    return state


def _shard(info: Any) -> Tuple[str, int]:
    state = _state(info)
    path, offset, length = (state.get(key) for key in ("relative_path", "offset", "length"))
    if not isinstance(path, str) or type(offset) is not int or type(length) is not int:
        raise UnreadablePickle("has an entry without path, offset and length")
    if offset < 0 or length < 0 or offset + length >= 1 << 63:
        raise UnreadablePickle("has an entry whose offset or length no file can have")
    if not path or path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise UnreadablePickle("names a file outside its folder: {}".format(shown(path)))
    return path, offset + length
