# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A pickle reader that can neither import nor call anything.

Every class becomes a `PickledName`, every object a `PickledObject`, every dict a flat list (keys
are never hashed or compared, so nested keys cost nothing). Names outside torch's environment are
rejected, because such a file is not a torch index. The number of steps is limited, which also
limits memory: each step creates at most one object, and nothing recurses.

It implements the operations of protocols 2 to 5 that torch's index uses and rejects all others. A
subclass with only those for plain values reads the dumps of torch's flight recorder.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, ClassVar, List, Mapping

_MARK, _GET, _PUT, _BYTE, _STOP = b"(hqK."
_TREES = frozenset({"torch", "megatron", "nvidia_resiliency_ext", "composer", "numpy"})
_PATHS = frozenset({"Path", "PosixPath", "PurePath", "PurePosixPath"})
# Protocols 2 and 3 refer to a nested class with getattr; here that is treated as a class name.
_PLAIN = frozenset(
    {
        "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "getattr", "int",
        "list", "object", "range", "set", "slice", "str", "tuple",
    }
)  # fmt: skip
_NAMES = {
    "builtins": _PLAIN,
    "__builtin__": _PLAIN,
    "_codecs": frozenset({"encode"}),
    "collections": frozenset({"OrderedDict", "defaultdict", "deque"}),
    "copyreg": frozenset({"_reconstructor"}),
    "copy_reg": frozenset({"_reconstructor"}),
    "pathlib": _PATHS,
    "pathlib._local": _PATHS,
}


class UnreadablePickle(ValueError):
    """The bytes cannot be read; the message continues a sentence that begins with "it"."""


class PickledName:
    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name


class PickledObject:
    __slots__ = ("items", "kind", "state")

    def __init__(self, kind: PickledName) -> None:
        self.kind = kind
        self.state: Any = None
        self.items: PickledPairs | None = None


class PickledPairs(List[Any]):
    """A dict as a flat list: key, value, key, value ...; a repeated key occurs twice."""

    __slots__ = ()

    def get(self, key: str) -> Any:
        for place in range(len(self) - 2, -1, -2):
            if isinstance(self[place], str) and self[place] == key:
                return self[place + 1]
        return None


def read_pickle(data: bytes, max_steps: int) -> Any:
    """Read a pickle; classes and objects become placeholders. Raises UnreadablePickle."""
    return _IndexMachine(data).load(max_steps)


def shown(text: str) -> str:
    """Quote untrusted text, short and without control characters."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")


Steps = Mapping[int, Callable[[Any], None]]  # operations by opcode


class PickleMachine:
    """Reads one pickle of plain values: strings, numbers, lists, tuples and dicts."""

    steps: ClassVar[Steps]
    text_errors = "strict"

    def __init__(self, data: bytes, memo: dict[int, Any] | None = None) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {} if memo is None else memo

    def load(self, max_steps: int) -> Any:
        if self.data[:1] != b"\x80" or self.data[1:2] not in (b"\2", b"\3", b"\4", b"\5"):
            raise UnreadablePickle("is not a pickle of protocol 2 to 5, or is cut short")
        self.at = 2
        return self.run(max_steps)

    def run(self, max_steps: int) -> Any:
        try:
            return self._run(max_steps)
        except (IndexError, KeyError, TypeError, UnicodeDecodeError, struct.error):
            # Steps do not check the bounds of the input and the stack: a bad pickle raises these.
            raise UnreadablePickle("is cut short or damaged") from None

    def _run(self, max_steps: int) -> Any:
        """Run the pickle: the most frequent operations inline, the others from the table."""
        data, stack, memo, marks, steps = self.data, self.stack, self.memo, self.marks, self.steps
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
                step = steps.get(code)
                if step is None:
                    raise UnreadablePickle(f"holds step 0x{code:02x}, unknown in such a file")
                self.at = at + 1
                step(self)
                at = self.at
        raise UnreadablePickle(f"takes more than {max_steps} steps")

    def take(self, count: int) -> bytes:
        start = self.at
        if count > len(self.data) - start:
            raise IndexError
        self.at = start + count
        return self.data[start : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

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

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def signed(self, size: int) -> None:
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def text(self, size: int) -> None:
        self.stack.append(self.take(self.number(size)).decode("utf-8", self.text_errors))

    def keep(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def append(self, items: list[Any]) -> None:
        _exactly(list, self.stack[-1]).extend(items)

    def set_items(self, items: list[Any]) -> None:
        if len(items) % 2:
            raise IndexError
        _exactly(PickledPairs, self.stack[-1]).extend(items)


PLAIN_STEPS: Steps = {
    0x95: lambda m: m.take(8),  # FRAME: a hint for streaming readers
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("M"): lambda m: m.push(m.number(2)),
    ord("J"): lambda m: m.signed(4),
    0x8A: lambda m: m.signed(m.number(1)),
    ord("G"): lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    0x8C: lambda m: m.text(1),
    ord("X"): lambda m: m.text(4),
    0x8D: lambda m: m.text(8),
    0x94: lambda m: m.keep(len(m.memo)),
    ord("r"): lambda m: m.keep(m.number(4)),
    ord("j"): lambda m: m.push(m.memo[m.number(4)]),
    ord("]"): lambda m: m.push([]),
    ord("}"): lambda m: m.push(PickledPairs()),
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.since_mark())),
    0x85: lambda m: m.push(tuple(m.last(1))),
    0x86: lambda m: m.push(tuple(m.last(2))),
    0x87: lambda m: m.push(tuple(m.last(3))),
    ord("a"): lambda m: m.append(m.last(1)),
    ord("e"): lambda m: m.append(m.since_mark()),
    ord("s"): lambda m: m.set_items(m.last(2)),
    ord("u"): lambda m: m.set_items(m.since_mark()),
}


class _IndexMachine(PickleMachine):
    def line(self) -> str:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise IndexError
        return self.take(end + 1 - self.at)[:-1].decode()

    def append(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not PickledObject:  # an object's elements are not needed
            super().append(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not PickledObject:
            super().set_items(items)
            return
        if len(items) % 2:
            raise IndexError
        if target.items is None:
            target.items = PickledPairs()
        target.items.extend(items)

    def name(self, module: str, name: str) -> None:
        if module.partition(".")[0] not in _TREES and name not in _NAMES.get(module, ()):
            whole = shown(f"{module}.{name}")
            raise UnreadablePickle(f"names {whole}, which no index of torch holds")
        self.stack.append(PickledName(module, name))

    def named_by_stack(self) -> None:
        module, name = self.last(2)
        self.name(_exactly(str, module), _exactly(str, name))

    def make(self, arguments: int) -> None:
        self.last(arguments)
        self.stack.append(PickledObject(_exactly(PickledName, self.stack.pop())))

    def build(self) -> None:
        state = self.stack.pop()
        _exactly(PickledObject, self.stack[-1]).state = state

    steps: ClassVar[Steps] = {
        **PLAIN_STEPS,
        ord("0"): lambda m: m.last(1),
        ord("1"): lambda m: m.since_mark(),
        ord("C"): lambda m: m.push(m.take(m.number(1))),
        ord("B"): lambda m: m.push(m.take(m.number(4))),
        0x8E: lambda m: m.push(m.take(m.number(8))),
        0x96: lambda m: m.push(m.take(m.number(8))),  # BYTEARRAY8
        0x8F: lambda m: m.push([]),  # EMPTY_SET: a list is sufficient
        0x90: lambda m: m.append(m.since_mark()),  # ADDITEMS
        0x91: lambda m: m.push(tuple(m.since_mark())),  # FROZENSET
        ord("c"): lambda m: m.name(m.line(), m.line()),
        0x93: named_by_stack,
        ord("R"): lambda m: m.make(1),  # REDUCE
        0x81: lambda m: m.make(1),  # NEWOBJ
        0x92: lambda m: m.make(2),  # NEWOBJ_EX
        ord("b"): build,
    }


def _exactly(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value
