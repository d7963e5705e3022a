# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Small files made to explode are refused, or read to a bound, within 2 s and 100 MB.

Each is read in a process of its own that had loaded the reader before; its own processor time and
the growth of its memory count. The limit of time is three times those 2 s, since a core that is
shared takes up to twice as long; without their bounds these files take minutes.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import multiprocessing
import os
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mwatch import json_codec
from mwatch.config import loader
from mwatch.errors import InputError
from mwatch.flight_recorder import dump
from mwatch.manifests import plain_data, stream
from mwatch.model.settings import Settings
from mwatch.runtime import compressed, files
from mwatch_trainer import contract
from mwatch_trainer.checkpoint import safe_pickle

SECONDS = 6.0
BYTES = 100 << 20
_FORK = multiprocessing.get_context("fork")


def _peak() -> int:
    """Bytes; `ru_maxrss` would be inherited from the parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")


def _measure(work: Callable[[], object], pipe: Any) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = _peak(), os.times()
    try:
        work()
        how = "read"
    except (InputError, ValueError) as error:
        how = f"refused: {error}"
    except BaseException as error:
        how = f"fails: {type(error).__name__}: {error}"
    took = os.times()
    pipe.send((how, took.user + took.system - began.user - began.system, _peak() - before))


def cost(work: Callable[[], object]) -> tuple[str, float, int]:
    here, there = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_measure, args=(work, there))
    process.start()
    there.close()
    try:
        assert here.poll(300), "it does not end"
        found: tuple[str, float, int] = here.recv()
        return found
    except EOFError:
        raise AssertionError("its process died") from None
    finally:
        process.kill()
        process.join()


def lol(levels: int, width: int, separator: str = ", ") -> str:
    lines = ["a0: &a0 [" + separator.join(["lol"] * width) + "]"]
    for level in range(1, levels):
        inside = separator.join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} [{inside}]")
    return "\n".join(lines) + "\n"


JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: x}\nspec:\n"


def manifest(text: str) -> None:
    for each in stream.read(text, "job.yaml"):
        plain_data.plain(each.content)
        each.lines()


YAMLS = {
    "aliases": lol(9, 9),
    "aliases in a job": JOB + "".join(f"  {line}\n" for line in lol(12, 12).splitlines()),
    "merges": "a0: &a0 {k: v}\n"
    + "".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], k{n}: v}}\n" for n in range(1, 9)
    ),
    "itself": "a: &a [*a, *a]\n",
    "brackets": "a: " + "[" * 100_000,
    "closed brackets": "a: " + "[" * 20_000 + "]" * 20_000,
    "braces": "{" * 100_000,
    "indents": "\n".join(" " * n + "a:" for n in range(1500)),
    "dashes": "- " * 100_000 + "a",
    "number": "a: " + "9" * 200_000,
    "sexagesimal": "a: " + "1:" * 100_000 + "1",
    "tags": "a: " + "!x " * 100_000,
}


@pytest.mark.parametrize("name", YAMLS)
def test_yaml(name: str) -> None:
    how, seconds, size = cost(lambda: manifest(YAMLS[name]))
    assert not how.startswith("fails"), how
    assert seconds < SECONDS and size < BYTES, (how, seconds, size >> 20)


TOMLS = {
    "brackets": "a = " + "[" * 100_000,
    "tables": "a = " + "{a=" * 50_000,
    "dotted key": "a." * 400_000 + "a = 1",
    "dotted keys": "\n".join("a." * 200 + f"k{n} = 1" for n in range(1500)),
    "tables in tables": "\n".join("[" + "a." * n + "a]" for n in range(900)),
    "arrays": "\n".join(["[[a]]"] * 50_000),
    "keys": "\n".join(f"k{n} = 1" for n in range(20_000)),
    "number": "a = " + "9" * 900_000,
    "text": 'a = "' + "\\u0041" * 150_000 + '"',
    "large": "#" * 5_000_000,
}


@pytest.mark.parametrize("name", TOMLS)
def test_toml(name: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(TOMLS[name])
    how, seconds, size = cost(lambda: loader.load(file, Settings()))
    assert how.startswith("refused"), how
    assert seconds < SECONDS and size < BYTES, (how, seconds, size >> 20)


JSONS = {
    "brackets": b"[" * 1_000_000,
    "closed brackets": b"[" * 500_000 + b"]" * 500_000,
    "braces": b'{"a":' * 500_000,
    "number": b'{"version": ' + b"9" * 1_000_000 + b"}",
    "keys": json.dumps({str(n): n for n in range(200_000)}).encode(),
    "surrogates": b'{"a": "' + b"\\ud800" * 300_000 + b'"}',
    "empty lists": b"[" + b"[]," * 700_000 + b"[]]",
}


@pytest.mark.parametrize("name", JSONS)
def test_json(name: str, tmp_path: Path) -> None:
    file = tmp_path / "attempt.json"
    file.write_bytes(JSONS[name])
    for work in (
        lambda: json_codec.decode(JSONS[name]),
        lambda: contract.read_json(str(file)),
    ):
        how, seconds, size = cost(work)
        assert not how.startswith("fails"), how
        assert seconds < SECONDS and size < BYTES, (how, seconds, size >> 20)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


PICKLES = {
    "doubling": b"\x80\x02]q\x00" + b"h\x00h\x00\x86q\x00" * 400_000 + b".",
    "tuples": b"\x80\x02" + b"N" * 5 + b"\x85" * 1_300_000 + b".",
    "marks": b"\x80\x02" + b"(" * 1_300_000,
    "memo": b"\x80\x02N" + b"".join(b"r" + struct.pack("<I", n) for n in range(650_000)) + b".",
    "numbers": b"\x80\x02(" + b"K\x01" * 1_300_000 + b"l.",
    "large number": b"\x80\x02\x8b" + struct.pack("<i", 5_000_000) + b"\xff" * 5_000_000 + b".",
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62),
    "call": b"\x80\x02cos\nsystem\n(" + text("true") + b"tR.",
    "lists": b"\x80\x02" + b"]" * 1_300_000,
    "dicts": b"\x80\x02" + b"}" * 1_300_000,
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles(name: str) -> None:
    for work in (
        lambda: dump.read_dump(PICKLES[name], 0),
        lambda: safe_pickle.read_pickle(PICKLES[name], 1_000_000),
    ):
        how, seconds, size = cost(work)
        assert not how.startswith("fails"), how
        assert seconds < SECONDS and size < BYTES, (how, seconds, size >> 20)


def zeros(size: int) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as packed:
        for _ in range(size >> 20):
            packed.write(bytes(1 << 20))
    return out.getvalue()


def archive(members: Iterator[tarfile.TarInfo]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as made:
        for each in members:
            made.addfile(each, io.BytesIO(bytes(each.size)) if each.isreg() else None)
    return out.getvalue()


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> Any:
    found = tarfile.TarInfo(name)
    found.size, found.type, found.linkname = size, kind, link
    return found


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: zeros(300 << 20),
    "xz": lambda: lzma.compress(bytes(260 << 20), preset=0),
    "tar, many": lambda: archive(member(f"f{n}") for n in range(10_100)),
    "tar, out of it": lambda: archive(iter([member("../../out", 10), member("/tmp/out", 10)])),
    "tar, link": lambda: archive(
        iter([member("l", kind=tarfile.SYMTYPE, link="/etc"), member("l/passwd", 5)])
    ),
    "tar, device": lambda: archive(iter([member("null", kind=tarfile.CHRTYPE)])),
    "tar, long names": lambda: archive(member("x" * 3000 + str(n)) for n in range(2000)),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives(name: str, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tgz"
    file.write_bytes(ARCHIVES[name]())

    def work() -> None:
        for _ in files.read_chunks(str(file)):
            pass

    def unpack() -> None:
        with compressed.unpacked([str(file)], files.unpacked_pieces) as names:
            for each in names:
                for path in Path(each).rglob("*"):
                    assert not path.is_symlink() and tmp_path.parent not in path.parents

    for each in (work, unpack):
        how, seconds, size = cost(each)
        assert not how.startswith("fails"), how
        assert seconds < SECONDS and size < BYTES, (how, seconds, size >> 20)
    assert not (tmp_path.parent / "out").exists()
