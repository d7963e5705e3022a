# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a dump of torch's flight recorder: the pickle and the JSON form, torch 2.2 to 2.13.

A pickle is read by a machine that can call nothing. Keys came and went between releases, so
every one may be missing; a record that makes no sense is left out, and only a file without any
structure of a dump is refused. The rank is not in the file: its name tells it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import orjson

from mwatch.model.collective import Dump, GroupSeen, Operation
from mwatch.parse.flight_pickle import Packed, Pairs, UnreadableDump, load
from mwatch.parse.flight_records import GLANCED, Recorded, group_of, is_past, operations, text

MAX_STEPS = 8_000_000
"""Of the pickle machine: 80,000 records, forty times the buffer of torch's default."""
MAX_RECORDS = 100_000
MAX_GROUPS = 4096
LOOKED_AT = 320
"""Newest records that are read in full; of those before, what is over only tells of its group."""
KEPT = 192
"""Newest records that are kept: several steps of a group, or one step of a large model."""
KEPT_PENDING = 256
_SECOND = "second recorder"
_KEYS = {str, int}
_NUMBER = re.compile(r"\d{1,9}")


def read_dump(data: bytes, rank: int) -> Dump:
    """UnreadableDump where it is no dump, or damaged."""
    top = _decode(data)
    if type(top) is list:  # torch 2.2: nothing but the records
        top = {"entries": top}
    found = _plain(top)
    entries = None if found is None else found.get("entries")
    if found is None or not (type(entries) is list or "pg_status" in found):
        raise UnreadableDump("is no dump of the flight recorder")
    taken = _sequence(entries)
    records, descriptions = _records(taken[-MAX_RECORDS:])
    ours = operations(records)
    return Dump(
        rank=rank,
        version=text(found.get("version")),
        groups=_groups(_config(found.get("pg_config")), descriptions, ours),
        operations=_tail(ours),
        has_wrapped=bool(taken) and (_first(taken) > 0 or len(taken) > MAX_RECORDS),
    )


def merged(one: Dump, other: Dump) -> Dump:
    """Two recorders of the same rank, NCCL's and gloo's, in the order of time.

    Both may have recorded in the same group, each with numbers of its own.
    """
    names = {name: f"{name} ({_SECOND})" if name in one.groups else name for name in other.groups}
    moved = (each._replace(group=names[each.group]) for each in other.operations)
    in_order = sorted((*one.operations, *moved), key=lambda each: each.at or 0.0)
    renamed = {
        names[name]: group._replace(name=names[name]) for name, group in other.groups.items()
    }
    return Dump(
        one.rank,
        one.version,
        {**one.groups, **renamed},
        tuple(each._replace(record=place) for place, each in enumerate(in_order)),
        one.has_wrapped or other.has_wrapped,
    )


def _decode(data: bytes) -> Any:
    if data[:1] == b"\x80":
        return load(data, MAX_STEPS)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        raise UnreadableDump("is neither a pickle nor JSON, or is cut short") from None


def _plain(value: object) -> Mapping[str, Any] | None:
    """A dict with text keys, from either form; None where it is none."""
    if isinstance(value, Packed):
        value = value.unpacked()
    if isinstance(value, Pairs):
        keys = value[::2]
        if not set(map(type, keys)) <= _KEYS:
            return None
        return dict(zip(keys, value[1::2], strict=True))
    return value if isinstance(value, dict) else None


def _sequence(value: object) -> Sequence[Any]:
    is_dict = isinstance(value, Pairs)
    return value if isinstance(value, list | tuple) and not is_dict else ()


def _records(entries: Sequence[Any]) -> tuple[list[Recorded], dict[str, str]]:
    """What is worth keeping, and the description of each group that recorded anything."""
    found = []
    descriptions: dict[str, str] = {}
    newest = len(entries) - LOOKED_AT
    for place, entry in enumerate(entries):
        if place < newest and isinstance(entry, Packed):
            name = entry.glance("process_group")
            is_known = isinstance(name, str) and name in descriptions
            if is_known and is_past({key: entry.glance(key) for key in GLANCED}):
                continue
        plain = _plain(entry)
        if plain is None:
            continue
        if place < newest and is_past(plain):
            name, description = group_of(plain)
            descriptions.setdefault(name, description)
            continue
        record = Recorded.of(plain, place)
        if record is not None:
            found.append(record)
            descriptions.setdefault(record.group, record.description)
    found.sort(key=lambda record: record.record)
    return found, descriptions


def _first(entries: Sequence[Any]) -> int:
    number = (_plain(entries[0]) or {}).get("record_id")
    return number if isinstance(number, int) else 0


def _tail(ours: Sequence[Operation]) -> tuple[Operation, ...]:
    """The newest; of the older ones those that are not over, the oldest of them first."""
    older = ours[:-KEPT]
    pending = [each for each in older if not each.is_done][:KEPT_PENDING]
    return (*pending, *ours[-KEPT:])


class _Known:
    """One line of `pg_config`."""

    def __init__(self, description: str, ranks: tuple[int, ...] | None) -> None:
        self.description = description
        self.ranks = ranks


def _config(value: object) -> dict[str, _Known]:
    found: dict[str, _Known] = {}
    for key, each in (_plain(value) or {}).items():
        told = _plain(each)
        if told is None:
            continue
        name = text(told.get("name", key))
        ranks = _ranks(_rank_text(told.get("ranks")))
        if (name or ranks) and len(found) < MAX_GROUPS:  # gloo leaves one empty line
            found[name] = _Known(text(told.get("desc")), ranks)
    return found


def _rank_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return ",".join(str(each) for each in _sequence(value) if type(each) is int)


@lru_cache(maxsize=4096)
def _ranks(text: str) -> tuple[int, ...] | None:
    """One object for one text: thousands of dumps name the same groups."""
    return tuple(map(int, _NUMBER.findall(text))) or None


def _groups(
    config: Mapping[str, _Known], descriptions: Mapping[str, str], ours: Iterable[Operation]
) -> dict[str, GroupSeen]:
    numbers: dict[str, tuple[int, int]] = {}
    with_p2p = set()
    for each in ours:
        if each.is_p2p:
            with_p2p.add(each.group)
        else:
            first, last = numbers.get(each.group, (each.number, each.number))
            numbers[each.group] = (min(first, each.number), max(last, each.number))
    found = {}
    for name in dict.fromkeys(chain(descriptions, config)):
        known = config.get(name)
        description = descriptions.get(name) or (known.description if known else "")
        first, last = numbers.get(name, (0, 0))
        ranks = known.ranks if known else None
        found[name] = GroupSeen(name, description, ranks, first, last, name in with_p2p)
        if len(found) >= MAX_GROUPS:
            break
    return found
