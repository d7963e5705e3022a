# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read a dump of torch's flight recorder, pickle or JSON, torch 2.2 to 2.13.

The pickle is read by an interpreter that cannot call anything. Any key may be missing; an invalid
record is left out. The rank is not in the file but in its name. NCCL sets `completed` when the GPU
is done; a record retired without it has timed out. gloo never sets it: there, retired means done,
and sends and receives are not recorded. Batched sends and receives are not updated one by one; the
`coalesced` record after them represents the whole batch.
"""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any, ClassVar, NamedTuple

from mwatch import json_codec
from mwatch.model.collective import Dump, GroupSeen, Operation
from mwatch_trainer.checkpoint.safe_pickle import (
    PLAIN_STEPS,
    PickledPairs,
    PickleMachine,
    Steps,
    UnreadablePickle,
)

_RECORD_DEPTH = 2  # marks open where a record begins: that of the whole and that of the list
_PACKED = re.compile(
    rb"\}\((?:h.|K.|M..|[jJ]....|\x8a\x08.{8}|\x8a[\x04-\x07].{4}|G.{8}|[](eN\x88\x89\x86])*u",
    re.DOTALL,
)
_VALUES = {b"\x88": True, b"\x89": False}
_BY_EVENTS = frozenset({"nccl", "rccl", "xccl"})
"""Libraries whose records are updated from device events."""
_P2P = re.compile(r"(send|recv)\w* (\d{1,9})(->|<-)(\d{1,9})")
UNKNOWN_PEER = (-1, -1)
_BATCH = "coalesced"
"""Kind of the record that represents a whole batch; some are named like `ALLGATHER_coalesced`."""
_SENT = frozenset({"all_reduce", "allreduce_coalesced", "broadcast", "reduce", "_reduce_oop"})
_SCATTERED = frozenset({"reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single"})
_GATHERED = frozenset({"all_gather", "_all_gather_base", "all_gather_single"})
"""Operations whose output (for those above: input) has the same size on every member; in other
operations sizes may differ."""
_MAX_TENSORS = 64
_MAX_DIMENSIONS = 16
_MAX_TEXT = 200
GLANCED = ("state", "profiling_name", "retired", "is_p2p")  # the keys that `is_past` reads
MAX_STEPS = 1_200_000
"""Maximum steps of the pickle interpreter, which take at most a second and 100 MB. They suffice for
12,000 records, six times torch's default buffer; nearly all records take one step (`Packed`)."""
MAX_RECORDS = 100_000
MAX_GROUPS = 4096
LOOKED_AT = 320
"""Newest records that are read in full; of older ones that are done only the group is used."""
KEPT = 192  # newest records kept: several steps of a group, or one step of a large model
KEPT_PENDING = 256
_SECOND = "second recorder"
_KEYS = {str, int}
_NUMBER = re.compile(r"\d{1,9}")


def load_dump(data: bytes, max_steps: int) -> Any:
    """Return the value in the pickle: dicts as PickledPairs, some records Packed.

    Only plain values are accepted; any other step raises UnreadablePickle. Jobs have thousands of
    dumps, only the newest records are used, and almost every record holds only references and
    numbers. A pattern skips such a record, which stays packed until its values are needed.
    """
    return _DumpMachine(data).load(max_steps)


class Packed:
    """A skipped record, which holds only references and numbers."""

    __slots__ = ("_data", "_memo", "_tokens")

    def __init__(self, data: bytes, memo: dict[int, Any], tokens: dict[str, bytes]) -> None:
        self._data = data
        self._memo = memo
        self._tokens = tokens

    def unpacked(self) -> Any:
        """Return the record; UnreadablePickle if a reference is invalid."""
        return _DumpMachine(self._data + b".", self._memo).run(len(self._data) + 1)

    def glance(self, key: str) -> Any:
        """Return the value of a key if it is a text, true or false; else None.

        Bytes of a number may look like the key, so the result is good enough to skip a record but
        not to judge it.
        """
        token = self._tokens.get(key)
        if token is None:
            for place, text in list(self._memo.items()):
                if isinstance(text, str):
                    is_short = place < 256
                    token = b"h" + bytes([place]) if is_short else b"j" + struct.pack("<I", place)
                    self._tokens[text] = token
            token = self._tokens.setdefault(key, b"\xff\xff\xff")
        place = self._data.find(token)
        after = self._data[place + len(token) : place + len(token) + 5] if place >= 0 else b""
        if after[:1] == b"h":
            return self._memo.get(after[1]) if len(after) > 1 else None
        if after[:1] == b"j":
            return self._memo.get(int.from_bytes(after[1:], "little"))
        return _VALUES.get(after[:1])


class _DumpMachine(PickleMachine):
    text_errors = "replace"

    def __init__(self, data: bytes, memo: dict[int, Any] | None = None) -> None:
        super().__init__(data, memo)
        self._tokens: dict[str, bytes] = {}

    def dict_or_record(self) -> None:
        is_record = len(self.marks) == _RECORD_DEPTH
        found = _PACKED.match(self.data, self.at - 1) if is_record else None
        if found is None:
            self.stack.append(PickledPairs())
            return
        self.stack.append(Packed(found[0], self.memo, self._tokens))
        self.at = found.end()

    steps: ClassVar[Steps] = {**PLAIN_STEPS, ord("}"): dict_or_record}


class Recorded(NamedTuple):
    record: int
    group: str
    description: str
    library: str
    kind: str
    peer: tuple[int, int] | None
    collective_number: int
    p2p_number: int
    shape: str
    state: str
    is_retired: bool
    at: float | None
    timeout_seconds: float | None

    @classmethod
    def of(cls, entry: Mapping[str, Any], place: int) -> Recorded | None:
        title = entry.get("profiling_name")
        if not isinstance(title, str):
            return None
        library, _, call = title.rpartition(":")
        kind, _, _ = call.partition(" ")
        name, description = group_of(entry)
        number = _integer(entry.get("collective_seq_id", entry.get("seq_id")))
        return cls(
            _or(_integer(entry.get("record_id")), place),
            sys.intern(name),
            sys.intern(description),
            library,
            sys.intern(kind[:60]),
            _peer(call, entry.get("is_p2p") is True),
            _or(number, _or(_integer(entry.get("op_id")), 0)),
            _or(_integer(entry.get("p2p_seq_id")), _or(number, 0)),
            _shape(kind, entry),
            text(entry.get("state")),
            entry.get("retired") is True,
            _moment(entry),
            _seconds(entry.get("timeout_ms")),
        )

    @property
    def is_over(self) -> bool:
        done = self.state == "completed"
        return done or (self.is_retired and self.library not in _BY_EVENTS)


def is_past(entry: Mapping[str, Any]) -> bool:
    """Whether an older record is of a collective that is done and will not be needed."""
    if entry.get("state") == "completed":
        return not text(entry.get("profiling_name")).endswith(_BATCH)
    is_over = entry.get("retired") is True and entry.get("is_p2p") is not True
    library = text(entry.get("profiling_name")).partition(":")[0]
    return is_over and library not in _BY_EVENTS


def operations(records: Sequence[Recorded]) -> list[Operation]:
    """Return operations in the order of the records; batched ones are done when the batch is."""
    over = _ends_of_batches(records)
    later_is_over: set[tuple[object, ...]] = set()
    found = []
    for place in range(len(records) - 1, -1, -1):
        record = records[place]
        is_over = over.get(place, record.is_over) or _channel(record) in later_is_over
        if is_over and record.library in _BY_EVENTS and record.kind != _BATCH:
            later_is_over.add(_channel(record))  # same stream: earlier operations are done too
        # Batched records name the peer. Without them only the batch shows that something is open.
        stands_alone = (place - 1) not in over and not record.is_over
        if record.kind != _BATCH or stands_alone:
            found.append(_operation(record, is_over))
    found.reverse()
    return found


def _ends_of_batches(records: Sequence[Recorded]) -> dict[int, bool]:
    over: dict[int, bool] = {}
    open_batches: dict[str, tuple[int, int, bool]] = {}
    for place in range(len(records) - 1, -1, -1):
        record = records[place]
        kind = record.kind
        if kind == _BATCH or (kind.endswith(_BATCH) and kind[0].isupper()):
            open_batches[record.group] = (*_numbers(record), record.is_over)
            continue
        batch = open_batches.get(record.group)
        if batch is not None and _numbers(record) == batch[:2]:
            over[place] = batch[2]
        elif batch is not None:
            del open_batches[record.group]
    return over


def _numbers(record: Recorded) -> tuple[int, int]:
    return record.collective_number, record.p2p_number


def _channel(record: Recorded) -> tuple[object, ...]:
    if record.peer is None:
        return (record.group,)
    return (record.group, record.kind, record.peer)


def _operation(record: Recorded, is_over: bool) -> Operation:
    peer = UNKNOWN_PEER if record.kind == _BATCH else record.peer
    return Operation(
        record.record,
        record.group,
        record.collective_number if peer is None else record.p2p_number,
        record.kind,
        peer,
        record.shape,
        is_over,
        is_over and record.state != "completed" and record.library not in _BY_EVENTS,
        record.state == "started",
        record.at,
        record.timeout_seconds,
    )


def group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    reported = entry.get("process_group")
    if isinstance(reported, list | tuple) and reported:
        return text(reported[0]), text(reported[1]) if len(reported) > 1 else ""
    return text(reported) or text(entry.get("pg_id")) or "0", ""


def _peer(call: str, is_p2p: bool) -> tuple[int, int] | None:
    """Return sender and receiver: `send 0->1` and `recv 1<-0` are the two ends of one transfer."""
    found = _P2P.match(call)
    if found is None:
        return UNKNOWN_PEER if is_p2p else None
    first, second = int(found[2]), int(found[4])
    return (first, second) if found[3] == "->" else (second, first)


def _shape(kind: str, entry: Mapping[str, Any]) -> str:
    """Return element counts and types that must be equal on all members; empty if none must."""
    if kind in _SENT or kind in _SCATTERED:
        side = "input"
    elif kind in _GATHERED:
        side = "output"
    else:
        return ""
    sizes = entry.get(f"{side}_sizes")
    types = entry.get(f"{side}_dtypes")
    if not isinstance(sizes, list):
        return ""
    counts = ",".join(str(_elements(each)) for each in sizes[:_MAX_TENSORS])
    names = types[:_MAX_TENSORS] if isinstance(types, list) else ()
    kinds = ",".join(dict.fromkeys(each for each in names if isinstance(each, str)))
    return sys.intern(f"{counts} {kinds}".strip())


def _elements(sizes: object) -> int:
    if not isinstance(sizes, list | tuple):
        return 0
    return prod(_or(_integer(each), 0) for each in sizes[:_MAX_DIMENSIONS])


def _moment(entry: Mapping[str, Any]) -> float | None:
    nanoseconds = _integer(entry.get("time_created_ns"))
    if nanoseconds:
        return nanoseconds / 1e9
    microseconds = _integer(entry.get("time_created_us"))
    return microseconds / 1e6 if microseconds else None


def _seconds(value: object) -> float | None:
    milliseconds = _integer(value)
    return milliseconds / 1e3 if milliseconds and milliseconds > 0 else None


def text(value: object) -> str:
    """Return a text or number as text; other values are dropped, as they could be huge as text."""
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    return "" if _integer(value) is None else str(value)


def _integer(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _or(value: int | None, other: int) -> int:
    return other if value is None else value


def read_dump(data: bytes, rank: int) -> Dump:
    """Read a dump; UnreadablePickle if it is not a dump, or damaged."""
    top = _decode(data)
    if type(top) is list:  # torch 2.2 writes only the records
        top = {"entries": top}
    found = _plain(top)
    entries = None if found is None else found.get("entries")
    if found is None or not (type(entries) is list or "pg_status" in found):
        raise UnreadablePickle("is not a dump of the flight recorder")
    taken = _sequence(entries)
    first = (_plain(taken[0]) or {}).get("record_id") if taken else None
    records, descriptions = _records(taken[-MAX_RECORDS:])
    ours = operations(records)
    return Dump(
        rank=rank,
        version=text(found.get("version")),
        groups=_groups(_config(found.get("pg_config")), descriptions, ours),
        operations=_tail(ours),
        has_wrapped=len(taken) > MAX_RECORDS or (isinstance(first, int) and first > 0),
    )


def merged(one: Dump, other: Dump) -> Dump:
    """Merge two recorders of one rank, NCCL's and gloo's, in time order.

    Both may have recorded in the same group, each with its own numbers.
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
        return load_dump(data, MAX_STEPS)
    try:
        return json_codec.decode(data)
    except ValueError:
        raise UnreadablePickle("is neither a pickle nor JSON, or is cut short") from None


def _plain(value: object) -> Mapping[str, Any] | None:
    """Return a dict with text keys, from either format; None if the value is not one."""
    if isinstance(value, Packed):
        value = value.unpacked()
    if isinstance(value, PickledPairs):
        keys = value[::2]
        if not set(map(type, keys)) <= _KEYS:
            return None
        return dict(zip(keys, value[1::2], strict=True))
    return value if isinstance(value, dict) else None


def _sequence(value: object) -> Sequence[Any]:
    is_dict = isinstance(value, PickledPairs)
    return value if isinstance(value, list | tuple) and not is_dict else ()


def _records(entries: Sequence[Any]) -> tuple[list[Recorded], dict[str, str]]:
    """Return the records to keep, and the description of each group that recorded anything."""
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


def _tail(ours: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the newest operations and the older ones that are not done, oldest first."""
    older = ours[:-KEPT]
    pending = [each for each in older if not each.is_done][:KEPT_PENDING]
    return (*pending, *ours[-KEPT:])


class _Known(NamedTuple):
    description: str
    ranks: tuple[int, ...] | None


def _config(value: object) -> dict[str, _Known]:
    found: dict[str, _Known] = {}
    for key, each in (_plain(value) or {}).items():
        reported = _plain(each)
        if reported is None:
            continue
        name = text(reported.get("name", key))
        ranks = _ranks(_rank_text(reported.get("ranks")))
        if (name or ranks) and len(found) < MAX_GROUPS:  # gloo leaves one empty line
            found[name] = _Known(text(reported.get("desc")), ranks)
    return found


def _rank_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return ",".join(str(each) for each in _sequence(value) if type(each) is int)


@lru_cache(maxsize=4096)
def _ranks(text: str) -> tuple[int, ...] | None:
    """Parse a list of ranks; cached because thousands of dumps name the same groups."""
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
