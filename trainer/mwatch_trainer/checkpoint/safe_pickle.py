# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A reader of pickles that can neither import nor call anything.

An ordinary unpickler runs whatever a pickle asks for. This is a small machine of its own: every
class it meets becomes a `Name`, every object a `Thing`, every dict a flat list (a key is never
hashed or compared, so nested keys cost nothing). It has no way to do more. Names from outside
torch's surroundings are refused all the same: such a file is no index of torch. The number of
steps is bounded, and with it the memory: each step makes one object at most, and nothing recurses.

It knows the steps of protocols 2 to 5 that torch's index uses, and refuses the others.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, List

_TREES = frozenset({"torch", "megatron", "nvidia_resiliency_ext", "composer", "numpy"})
_PATHS = frozenset({"Path", "PosixPath", "PurePath", "PurePosixPath"})
# Protocols 2 and 3 name a nested class by getattr; here that is a name like any other.
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
    """Why these bytes are not read; one line that goes on after "it"."""


class PickledName:
    """A class or function by name; nothing stands behind it."""

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name


class PickledObject:
    """An object: the name it was made from, and what was put into it."""

    __slots__ = ("items", "kind", "state")

    def __init__(self, kind: PickledName) -> None:
        self.kind = kind
        self.state: Any = None
        self.items: PickledPairs | None = None


class PickledPairs(List[Any]):
    """A dict as key, value, key, value ...; a key given twice is there twice."""

    __slots__ = ()

    def get(self, key: str) -> Any:
        """The last value of a text key; None where there is none."""
        for place in range(len(self) - 2, -1, -2):
            if isinstance(self[place], str) and self[place] == key:
                return self[place + 1]
        return None


def read_pickle(data: bytes, max_steps: int) -> Any:
    """What the pickle holds, in stand-ins. UnreadablePickle where it is damaged or refused."""
    try:
        return _Machine(data).run(max_steps)
    except (IndexError, KeyError, TypeError, UnicodeDecodeError):
        # The machine reads ahead of its input or its stack: it checks neither at every step.
        raise UnreadablePickle("is cut short or damaged") from None


def shown(text: str) -> str:
    """A text that others wrote, short and without control characters."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")


class _Machine:
    """One run over one pickle; the methods without underscore are its steps."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, max_steps: int) -> Any:
        data = self._data
        if data[:1] != b"\x80" or not 2 <= data[1] <= 5:
            raise UnreadablePickle("is not a pickle of protocol 2 to 5")
        steps = _STEPS
        for _ in range(max_steps):
            code = data[self._at]
            if code == 0x2E:  # STOP
                return self._stack.pop()
            self._at += 1
            step = steps.get(code)
            if step is None:
                raise UnreadablePickle(f"holds step 0x{code:02x}, unknown in an index")
            step(self)
        raise UnreadablePickle(f"takes more than {max_steps} steps")

    def _take(self, count: int) -> bytes:
        start = self._at
        if count > len(self._data) - start:
            raise IndexError
        self._at = start + count
        return self._data[start : self._at]

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise IndexError
        return self._take(end + 1 - self._at)[:-1].decode()

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def skip(self, count: int) -> None:
        self._take(count)

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def pop(self) -> None:
        self._stack.pop()

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def drop(self) -> None:
        self._since_mark()

    def unsigned(self, size: int) -> None:
        self._stack.append(self._number(size))

    def signed(self, size: int) -> None:
        self._stack.append(int.from_bytes(self._take(size), "little", signed=True))

    def long(self) -> None:
        self.signed(self._number(1))

    def real(self) -> None:
        self._stack.append(struct.unpack(">d", self._take(8))[0])

    def text(self, size: int) -> None:
        self._stack.append(self._take(self._number(size)).decode())

    def raw(self, size: int) -> None:
        self._stack.append(self._take(self._number(size)))

    def memoize(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def put(self, size: int) -> None:
        self._memo[self._number(size)] = self._stack[-1]

    def recall(self, size: int) -> None:
        self._stack.append(self._memo[self._number(size)])

    def pack(self) -> None:
        self._stack.append(tuple(self._since_mark()))

    def short_tuple(self, count: int) -> None:
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        self._stack.append(items)

    def append(self) -> None:
        self._extend([self._stack.pop()])

    def appends(self) -> None:
        self._extend(self._since_mark())

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(
            target, PickledObject
        ):  # the elements of a list-like object are not needed
            _exactly(list, target).extend(items)

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._update([key, value])

    def set_items(self) -> None:
        self._update(self._since_mark())

    def _update(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, PickledObject):
            if target.items is None:
                target.items = PickledPairs()
            target = target.items
        if len(pairs) % 2:
            raise IndexError
        _exactly(PickledPairs, target).extend(pairs)

    def named_by_lines(self) -> None:
        module = self._line()
        self._name(module, self._line())

    def named_by_stack(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._name(_exactly(str, module), _exactly(str, name))

    def _name(self, module: str, name: str) -> None:
        if module.partition(".")[0] not in _TREES and name not in _NAMES.get(module, ()):
            whole = shown(f"{module}.{name}")
            raise UnreadablePickle(f"names {whole}, which no index of torch holds")
        self._stack.append(PickledName(module, name))

    def make(self, arguments: int) -> None:
        del self._stack[-arguments:]
        self._stack.append(PickledObject(_exactly(PickledName, self._stack.pop())))

    def build(self) -> None:
        state = self._stack.pop()
        _exactly(PickledObject, self._stack[-1]).state = state


def _exactly(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


_Step = Callable[[_Machine], None]
_STEPS: dict[int, _Step] = {
    0x80: lambda m: m.skip(1),  # PROTO
    0x95: lambda m: m.skip(8),  # FRAME: a hint for readers of streams
    ord("("): _Machine.mark,
    ord("0"): _Machine.pop,
    ord("1"): _Machine.drop,
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.unsigned(1),
    ord("M"): lambda m: m.unsigned(2),
    ord("J"): lambda m: m.signed(4),
    0x8A: _Machine.long,
    ord("G"): _Machine.real,
    0x8C: lambda m: m.text(1),
    ord("X"): lambda m: m.text(4),
    0x8D: lambda m: m.text(8),
    ord("C"): lambda m: m.raw(1),
    ord("B"): lambda m: m.raw(4),
    0x8E: lambda m: m.raw(8),
    0x96: lambda m: m.raw(8),  # BYTEARRAY8
    0x94: _Machine.memoize,
    ord("q"): lambda m: m.put(1),
    ord("r"): lambda m: m.put(4),
    ord("h"): lambda m: m.recall(1),
    ord("j"): lambda m: m.recall(4),
    ord("]"): lambda m: m.push([]),
    ord("}"): lambda m: m.push(PickledPairs()),
    ord(")"): lambda m: m.push(()),
    0x8F: lambda m: m.push([]),  # EMPTY_SET: a list will do
    0x90: _Machine.appends,  # ADDITEMS
    0x91: _Machine.pack,  # FROZENSET
    ord("t"): _Machine.pack,
    0x85: lambda m: m.short_tuple(1),
    0x86: lambda m: m.short_tuple(2),
    0x87: lambda m: m.short_tuple(3),
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("s"): _Machine.set_item,
    ord("u"): _Machine.set_items,
    ord("c"): _Machine.named_by_lines,
    0x93: _Machine.named_by_stack,
    ord("R"): lambda m: m.make(1),  # REDUCE
    0x81: lambda m: m.make(1),  # NEWOBJ
    0x92: lambda m: m.make(2),  # NEWOBJ_EX
    ord("b"): _Machine.build,
}
