# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the pickle of a flight-recorder dump: plain values only, no classes, no calls.

torch writes such a dump with its own pickler: texts, numbers, lists, dicts and short tuples. This
is a machine that knows just these steps, so there is nothing that a hostile file could make it
do; any other step is refused. A dict is kept as a flat list of keys and values: no key is hashed.
The steps, and with them time and memory, are bounded.

Thousands of ranks may have left a dump each, and of each only the newest records are of use. torch
spells a text out once and refers to it after that, so almost every record holds references and
numbers only. Such a one is passed over by a pattern and stays packed until somebody needs it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

_MARK, _GET, _PUT, _BYTE, _STOP, _DICT = b"(hqK.}"
_RECORD_DEPTH = 2
"""Marks that are open where a record begins: that of the whole, and that of the list."""
_PACKED = re.compile(
    rb"\}\((?:h.|K.|M..|[jJ]....|\x8a\x08.{8}|\x8a[\x04-\x07].{4}|G.{8}|[](eN\x88\x89\x86])*u",
    re.DOTALL,
)
_VALUES = {b"\x88": True, b"\x89": False}


class UnreadableDump(ValueError):
    """Why it is not read; one line that goes on after the file's name."""


class DumpPairs(list[Any]):
    """A dict as key, value, key, value, …"""

    __slots__ = ()


class Packed:
    """A record that was passed over: references and numbers only."""

    __slots__ = ("_data", "_memo", "_tokens")

    def __init__(self, data: bytes, memo: dict[int, Any], tokens: dict[str, bytes]) -> None:
        self._data = data
        self._memo = memo
        self._tokens = tokens

    def unpacked(self) -> Any:
        """UnreadableDump where it refers to nothing."""
        return _guarded(_Machine(self._data + b".", self._memo, 0), len(self._data) + 1)

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


def load(data: bytes, max_steps: int) -> Any:
    """The value in the pickle, dicts as Pairs, some records Packed. UnreadableDump where it is
    damaged or refused."""
    if data[:1] != b"\x80":
        raise UnreadableDump("is not a pickle")
    return _guarded(_Machine(data, {}, 2), max_steps)


def _guarded(machine: _Machine, max_steps: int) -> Any:
    try:
        return machine.run(max_steps)
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error):
        # The machine reads ahead of its input or its stack: it checks neither at every step.
        raise UnreadableDump("is cut short or damaged") from None


class _Machine:
    def __init__(self, data: bytes, memo: dict[int, Any], at: int) -> None:
        self.data = data
        self.at = at
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo = memo
        self.tokens: dict[str, bytes] = {}

    def run(self, max_steps: int) -> Any:
        """The four steps that make up most of a dump are done here, the others by table."""
        data, stack, memo, marks = self.data, self.stack, self.memo, self.marks
        at = self.at
        for _ in range(max_steps):
            code = data[at]
            if code == _GET:
                stack.append(memo[data[at + 1]])
                at += 2
            elif code == _BYTE:
                stack.append(data[at + 1])
                at += 2
            elif code == _MARK:
                marks.append(len(stack))
                at += 1
            elif code == _PUT:
                memo[data[at + 1]] = stack[-1]
                at += 2
            elif code == _STOP:
                return stack.pop()
            else:
                self.at = at + 1
                if code != _DICT or len(marks) != _RECORD_DEPTH or not self.pass_over(at):
                    _STEPS.get(code, _refuse)(self)
                at = self.at
        raise UnreadableDump(f"takes more than {max_steps} steps")

    def pass_over(self, at: int) -> bool:
        found = _PACKED.match(self.data, at)
        if found is None:
            return False
        self.stack.append(Packed(found[0], self.memo, self.tokens))
        self.at = found.end()
        return True

    def take(self, count: int) -> bytes:
        start = self.at
        if count > len(self.data) - start:
            raise IndexError
        self.at = start + count
        return self.data[start : self.at]

    def skip_frame(self) -> None:
        """A hint for readers of streams."""
        self.take(8)

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def signed(self, size: int) -> None:
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def text(self, size: int) -> None:
        self.stack.append(self.take(self.number(size)).decode("utf-8", "replace"))

    def real(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def last(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise IndexError
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not DumpPairs or len(items) % 2:
            raise TypeError
        target.extend(items)


def _refuse(machine: _Machine) -> None:
    code = machine.data[machine.at - 1]
    raise UnreadableDump(f"holds step 0x{code:02x}, which no dump of the flight recorder has")


def _keep(machine: _Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


_STEPS: dict[int, Callable[[_Machine], None]] = {
    ord("X"): lambda m: m.text(4),
    0x8C: lambda m: m.text(1),
    0x8D: lambda m: m.text(8),
    ord("M"): lambda m: m.stack.append(m.number(2)),
    ord("J"): lambda m: m.signed(4),
    0x8A: lambda m: m.signed(m.number(1)),
    ord("G"): _Machine.real,
    ord("N"): lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    ord("}"): lambda m: m.stack.append(DumpPairs()),
    ord("]"): lambda m: m.stack.append([]),
    ord(")"): lambda m: m.stack.append(()),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    ord("s"): lambda m: m.set_items(m.last(2)),
    ord("e"): lambda m: m.append(m.since_mark()),
    ord("a"): lambda m: m.append(m.last(1)),
    ord("t"): lambda m: m.stack.append(tuple(m.since_mark())),
    0x85: lambda m: m.stack.append(tuple(m.last(1))),
    0x86: lambda m: m.stack.append(tuple(m.last(2))),
    0x87: lambda m: m.stack.append(tuple(m.last(3))),
    ord("j"): lambda m: m.stack.append(m.memo[m.number(4)]),
    ord("r"): lambda m: _keep(m, m.number(4)),
    0x94: lambda m: _keep(m, len(m.memo)),
    0x95: _Machine.skip_frame,
}
