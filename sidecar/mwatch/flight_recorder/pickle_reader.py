# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the pickle of a flight-recorder dump: plain values only, no classes, no calls.

torch writes such a dump with its own pickler: texts, numbers, lists, dicts and short tuples. The
reader is that of checkpoints (`mwatch_trainer.checkpoint.safe_pickle`) without the steps for
classes and objects; any other step is refused.

Thousands of ranks may have left a dump each, and of each only the newest records are of use. torch
spells a text out once and refers to it after that, so almost every record holds references and
numbers only. A pattern skips such a record, which stays packed until its values are needed.
"""

from __future__ import annotations

import re
import struct
from typing import Any, ClassVar

from mwatch_trainer.checkpoint.safe_pickle import PLAIN_STEPS, PickledPairs, PickleMachine, Steps

_RECORD_DEPTH = 2
"""Marks that are open where a record begins: that of the whole, and that of the list."""
_PACKED = re.compile(
    rb"\}\((?:h.|K.|M..|[jJ]....|\x8a\x08.{8}|\x8a[\x04-\x07].{4}|G.{8}|[](eN\x88\x89\x86])*u",
    re.DOTALL,
)
_VALUES = {b"\x88": True, b"\x89": False}


def load_dump(data: bytes, max_steps: int) -> Any:
    """The value in the pickle, dicts as PickledPairs, some records Packed. UnreadablePickle where
    it is damaged or refused."""
    return _DumpMachine(data).load(max_steps)


class Packed:
    """A record that was passed over: references and numbers only."""

    __slots__ = ("_data", "_memo", "_tokens")

    def __init__(self, data: bytes, memo: dict[int, Any], tokens: dict[str, bytes]) -> None:
        self._data = data
        self._memo = memo
        self._tokens = tokens

    def unpacked(self) -> Any:
        """UnreadablePickle where it refers to nothing."""
        return _DumpMachine(self._data + b".", self._memo).run(len(self._data) + 1)

    def glance(self, key: str) -> Any:
        """The value of a key, where it is a text or one of true, false and none; else None.

        Bytes of a number may look like the key: good enough to pass over, not to judge by.
        """
        token = self._tokens.get(key)
        if token is None:
            for place, text in list(self._memo.items()):
                if isinstance(text, str):
                    self._tokens[text] = _reference(place)
            token = self._tokens.setdefault(key, b"\xff\xff\xff")
        place = self._data.find(token)
        after = self._data[place + len(token) : place + len(token) + 5] if place >= 0 else b""
        if after[:1] == b"h":
            return self._memo.get(after[1]) if len(after) > 1 else None
        if after[:1] == b"j":
            return self._memo.get(int.from_bytes(after[1:], "little"))
        return _VALUES.get(after[:1])


def _reference(place: int) -> bytes:
    return b"h" + bytes([place]) if place < 256 else b"j" + struct.pack("<I", place)


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
