# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The index of a torch.distributed checkpoint: a recorded one, made ones, and wrong ones."""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwatch_trainer.checkpoint.formats import read_index
from mwatch_trainer.checkpoint.safe_pickle import UnreadablePickle
from support.builders.checkpoint import REAL_INDEX, REAL_SHARD, REAL_SHARD_BYTES, index_of

SMALL = index_of({"__0_0.distcp": 100, "__1_0.distcp": 70})


def problem(data: bytes, **limits: int) -> str:
    with pytest.raises(UnreadablePickle) as caught:
        read_index(data, **limits)
    return str(caught.value)


def test_a_recorded_index_names_its_shard_and_its_length() -> None:
    index = read_index(REAL_INDEX.read_bytes())
    assert index.shards == {REAL_SHARD: REAL_SHARD_BYTES}
    assert index.has_common_state


def test_reading_it_imports_nothing() -> None:
    before = set(sys.modules)
    read_index(REAL_INDEX.read_bytes())
    assert set(sys.modules) == before


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_that_torch_has_used_is_read(protocol: int) -> None:
    index = read_index(index_of({"a": 3, "__1_0.distcp": 1 << 40}, protocol=protocol))
    assert index.shards == {"a": 3, "__1_0.distcp": 1 << 40}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_entries_in_an_ordered_dict_are_read_too(protocol: int) -> None:
    data = index_of({"a": 3, "b": 4}, protocol=protocol, mapping=OrderedDict)
    assert read_index(data).shards == {"a": 3, "b": 4}


def test_the_furthest_end_of_a_shard_counts() -> None:
    assert read_index(SMALL).shards == {"__0_0.distcp": 100, "__1_0.distcp": 70}


def test_an_index_without_common_state_is_distinguished() -> None:
    assert not read_index(index_of({"a": 1}, common=False)).has_common_state


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_planners_add_is_no_obstacle(protocol: int) -> None:
    extra: dict[str, Any] = {
        "planner_data": OrderedDict(a=("b", 1), c={1, 2}, d=frozenset({3})),
        "mcore_data": {"x": [1.5, -7, 1 << 70, True, b"raw", bytearray(b"r"), slice(1, 2)]},
        "storage_meta": PurePosixPath("/data/ckpt"),
    }
    assert read_index(index_of({"a": 1}, protocol=protocol, **extra)).shards == {"a": 1}


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../iter_0000020/__0_0.distcp", "a/../../b", "", "a\0b"]
)
def test_a_shard_outside_the_folder_is_refused(path: str) -> None:
    assert "outside its folder" in problem(index_of({path: 1}))


def test_a_shard_in_a_subfolder_is_read() -> None:
    assert read_index(index_of({"sub/a..b": 1})).shards == {"sub/a..b": 1}


@pytest.mark.parametrize("length", [-2, 1 << 64])
def test_a_length_that_no_file_can_have_is_refused(length: int) -> None:
    assert "no file can have" in problem(index_of({"a": length}))


def test_an_entry_without_numbers_is_refused() -> None:
    data = index_of({"a": 5}).replace(b"\x8c\x06length", b"\x8c\x06lenght")
    assert "without path, offset and length" in problem(data)


def test_an_index_without_entries_is_refused() -> None:
    assert problem(index_of({})) == "names no shard"


@pytest.mark.parametrize("value", [None, {}, {"storage_data": {}}, [1], "text"])
def test_another_pickle_is_refused(value: object) -> None:
    assert problem(pickle.dumps(value, 4)) == "holds no torch Metadata"


@pytest.mark.parametrize("data", [b"", b"\x80", b"PK\x03\x04", b"{}", b"\0" * 100, b"(dp0\n."])
def test_what_is_no_pickle_is_refused(data: bytes) -> None:
    assert problem(data)


def test_an_index_cut_anywhere_is_refused() -> None:
    for length in range(len(SMALL)):
        assert problem(SMALL[:length])


def test_a_file_that_is_too_large_is_refused() -> None:
    assert problem(SMALL, max_bytes=len(SMALL) - 1) == f"is larger than {len(SMALL) - 1} bytes"
    assert read_index(SMALL, max_bytes=len(SMALL)).shards


def test_a_pickle_of_too_many_steps_is_refused() -> None:
    assert problem(SMALL, max_steps=20) == "takes more than 20 steps"


def test_one_wide_object_named_by_many_entries_is_refused_at_once() -> None:
    """Each lookup would go through all of its values: a square of the file's size."""
    wide = b"\x80\x04ctorch.x\nMetadata\n)\x81}(" + b"N" * 400 + b"ub."
    assert problem(wide) == "has an object of more than 64 values"


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_index_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    damaged = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(SMALL) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_index(bytes(damaged))
    except UnreadablePickle as error:
        assert str(error).isascii() and str(error).isprintable()
