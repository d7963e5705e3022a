# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the pickle of a flight-recorder dump: plain values only, no classes, no calls.

torch writes such a dump with its own pickler: texts, numbers, lists, dicts and short tuples. This
is a machine that knows just these steps, so there is nothing that a hostile file could make it
do; any other step is refused. A dict is kept as a flat list of keys and values: no key is hashed.
The steps, and with them time and memory, are bounded. It is three times as fast as the general
`mwatch_trainer.inert_pickle`, which matters where thousands of ranks left a dump each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

_MARK, _GET, _PUT, _BYTE, _STOP = b"(hqK."


class UnreadableDump(ValueError):
    """Why it is not read; one line that goes on after the file's name."""


class Pairs(list[Any]):
    """A dict as key, value, key, value, …"""

    __slots__ = ()


def load(data: bytes, max_steps: int) -> Any:
    """The value in the pickle, dicts as Pairs. UnreadableDump where it is damaged or refused."""
    if data[:1] != b"\x80":
        raise UnreadableDump("is no pickle")
    try:
        return _Machine(data).run(max_steps)
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error):
        # The machine reads ahead of its input or its stack: it checks neither at every step.
        raise UnreadableDump("is cut short or damaged") from None


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 2
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, max_steps: int) -> Any:
        """The four steps that make up most of a dump are done here, the others by table."""
        data, stack, memo, marks = self.data, self.stack, self.memo, self.marks
        at = 2
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
                _STEPS.get(code, _refuse)(self)
                at = self.at
        raise UnreadableDump(f"takes more than {max_steps} steps")

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
        if type(target) is not Pairs or len(items) % 2:
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
    ord("}"): lambda m: m.stack.append(Pairs()),
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
