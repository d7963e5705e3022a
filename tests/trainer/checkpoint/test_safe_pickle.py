# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Hostile pickles: nothing in them runs, and none of them costs more than its length."""

from __future__ import annotations

import ast
import os
import pickle
import struct
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mwatch_trainer.checkpoint import safe_pickle
from mwatch_trainer.checkpoint.safe_pickle import (
    PickledName,
    PickledObject,
    UnreadablePickle,
    read_pickle,
)

STEPS = 3_000_000


class Calls:
    """Pickled, it asks its reader to call `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.request = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.request


def attacks(canary: Path) -> dict[str, Calls]:
    code = f"open({str(canary)!r}, 'w').close()"
    return {
        "os.system": Calls(os.system, f"touch '{canary}'"),
        "subprocess": Calls(subprocess.call, ["touch", str(canary)]),
        "eval": Calls(eval, code),
        "exec": Calls(exec, code),
        "open": Calls(open, str(canary), "w"),
        "os.mkdir": Calls(os.mkdir, str(canary)),
        "nested": Calls(list, [Calls(exec, code)]),
    }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", attacks(Path("x")))
def test_nothing_is_executed(name: str, protocol: int, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    data = pickle.dumps(attacks(canary)[name], protocol)
    with pytest.raises(UnreadablePickle, match="which no index of torch holds"):
        read_pickle(data, STEPS)
    assert not canary.exists()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", attacks(Path("x")))
def test_an_ordinary_unpickler_would_have_executed_it(name: str, tmp_path: Path) -> None:
    """So that the test above can fail."""
    canary = tmp_path / "canary"
    opened = pickle.loads(pickle.dumps(attacks(canary)[name]))
    if hasattr(opened, "close"):
        opened.close()
    assert canary.exists()


@pytest.mark.parametrize(
    "name",
    [
        "os\nsystem", "posix\nsystem", "nt\nsystem", "subprocess\nPopen", "builtins\neval",
        "builtins\nexec", "builtins\n__import__", "builtins\nopen", "builtins\ncompile",
        "builtins\nsetattr", "builtins\nvars", "__builtin__\neval", "importlib\nimport_module",
        "runpy\nrun_path", "sys\nexit", "pickle\nloads", "functools\npartial",
        "operator\nattrgetter", "builtins.x\ndict", "torchvision\nx", "pathlib\nos.system",
        "collections\nabc", "\n", "x\n\x1b[2J",
    ],
)  # fmt: skip
def test_a_name_from_elsewhere_is_refused_in_plain_words(name: str) -> None:
    with pytest.raises(UnreadablePickle, match="which no index of torch holds") as caught:
        read_pickle(b"\x80\x02c" + name.encode() + b"\n.", STEPS)
    assert str(caught.value).isprintable()


def test_a_name_of_torch_is_only_a_name(tmp_path: Path) -> None:
    made = read_pickle(b"\x80\x02ctorch.hub\nload\nX\x01\0\0\0a\x85R.", STEPS)
    assert isinstance(made, PickledObject)
    assert (made.kind.module, made.kind.name) == ("torch.hub", "load")
    assert isinstance(read_pickle(b"\x80\x02cbuiltins\ngetattr\n.", STEPS), PickledName)


def test_state_never_reaches_a_class() -> None:
    """An ordinary unpickler would set attributes of the class itself."""
    with pytest.raises(UnreadablePickle):
        read_pickle(b"\x80\x02ctorch\nSize\n}X\x01\0\0\0aNsb.", STEPS)


DOUBLED = b"".join(b"h%ch%c\x86\x940" % (n, n) for n in range(200))
CHEAP = {
    "a million nested lists": b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "a million nested tuples": b"\x80\x04)" + b"\x85" * 1_000_000 + b".",
    "a million nested keys": b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns.",
    "a key of 2 to the 200 parts": b"\x80\x04})\x940" + DOUBLED + b"h\xc8Ns.",
    "a list in itself": b"\x80\x04]\x94h\x00a.",
    "an object in itself": b"\x80\x04ctorch\nSize\n)\x81\x94h\x00b.",
    "a high number in the memo": b"\x80\x04Nr\xff\xff\xff\xff.",
    "a million marks": b"\x80\x04" + b"(" * 1_000_000 + b"N.",
    "a long frame": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CHEAP)
def test_it_is_cheap_to_read(name: str) -> None:
    read_pickle(CHEAP[name], STEPS)


HUGE = struct.pack("<Q", 1 << 62)
REFUSED = {
    "a text longer than the file": b"\x80\x04\x8d" + HUGE + b"x.",
    "bytes longer than the file": b"\x80\x04\x8e" + HUGE + b"x.",
    "a bytearray longer than the file": b"\x80\x05\x96" + HUGE + b"x.",
    "a number longer than the file": b"\x80\x02\x8a\xffx.",
    "a number without bound": b"\x80\x02\x8b\xff\xff\xff\x7fx.",
    "a number of digits": b"\x80\x02L" + b"9" * 100_000 + b"L\n.",
    "a memo that is not there": b"\x80\x04j\xff\xff\xff\xff.",
    "a persistent id": b"\x80\x02X\x01\0\0\0aQ.",
    "a persistent id in text": b"\x80\x02Pa\n.",
    "an extension code": b"\x80\x02\x82\x01.",
    "an instance of protocol 0": b"\x80\x02(ios\nsystem\n.",
    "an object of protocol 1": b"\x80\x02(ctorch\nSize\no.",
    "an out-of-band buffer": b"\x80\x05\x97.",
    "a call of a text": b"\x80\x02X\x01\0\0\0a)R.",
    "a call of an object": b"\x80\x02ctorch\nSize\n)R)R.",
    "state for a list": b"\x80\x02]Nb.",
    "a name made of a list": b"\x80\x04]]\x93.",
    "an append to a dict": b"\x80\x02}Na.",
    "an odd number of items": b"\x80\x02}(Nu.",
    "text that is no UTF-8": b"\x80\x04\x8c\x01\xff.",
    "half a character": b"\x80\x04\x8c\x03\xed\xa0\x80.",
    "an empty stack": b"\x80\x02.",
    "a pop of nothing": b"\x80\x020.",
    "items without a mark": b"\x80\x02}u.",
    "no end": b"\x80\x02N",
    "protocol 6": b"\x80\x06N.",
    "protocol 0": b"N.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_without_memory_for_it(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(UnreadablePickle):
            read_pickle(REFUSED[name], STEPS)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_steps_are_counted() -> None:
    with pytest.raises(UnreadablePickle, match="more than 1000 steps"):
        read_pickle(b"\x80\x02" + b"N" * 5000 + b".", 1000)


def test_the_source_holds_no_call_that_could_import_or_run() -> None:
    tree = ast.parse(Path(safe_pickle.__file__).read_text("utf-8"))
    imports = {ast.unparse(each) for each in ast.walk(tree) if isinstance(each, ast.Import)}
    called = {
        each.func.id
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    }
    assert imports == {"import struct"}
    assert called.isdisjoint({"__import__", "eval", "exec", "compile", "getattr", "setattr"})
