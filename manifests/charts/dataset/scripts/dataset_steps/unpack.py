# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Opens what is compressed: .gz and .xz by Python itself, .zst by what the image has."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import re
import shutil
import subprocess
import tarfile
from functools import partial
from typing import Any, Callable, Iterator

from dataset_steps.problem import Problem, Settled

_CHUNK = 1 << 20
_MANY_LINES = re.compile(r"\n{3,}")
PLAIN = (".jsonl", ".json")


def unpack(path: str, target: Any) -> None:
    """Writes the JSON lines of `path` to an open file. Problem where it is cut or damaged."""
    try:
        if path.endswith((".tar.xz", ".tar.gz", ".tar")):
            _from_archive(path, target)
        elif path.endswith(".zst"):
            _zstd()(path, target)
        elif path.endswith((".xz", ".gz")):
            kind = lzma if path.endswith(".xz") else gzip
            with kind.open(path, "rb") as source:
                shutil.copyfileobj(source, target, _CHUNK)
        else:
            raise Settled(
                f"{path}: unknown ending; .jsonl, .json, .zst, .xz, .gz, .tar.xz are known"
            )
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise Problem(f"{path}: cannot be unpacked ({error})") from None


def _from_archive(path: str, target: Any) -> None:
    with tarfile.open(path, "r:*") as archive:
        for text in _texts(archive):
            target.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")


def _texts(archive: tarfile.TarFile) -> Iterator[str]:
    """One document a text file; archives inside archives, as OpenWebText has them."""
    for member in archive:
        file = archive.extractfile(member) if member.isfile() else None
        if file is None:
            continue
        if member.name.endswith((".xz", ".tar", ".gz")):
            with tarfile.open(fileobj=file, mode="r:*") as inner:
                yield from _texts(inner)
        elif member.name.endswith(".txt"):
            text = file.read().decode("utf-8", errors="replace")
            text = _MANY_LINES.sub("\n\n", text).strip()
            if text:
                yield text


def _zstd() -> Callable[[str, Any], None]:
    """Python 3.14's own, the package zstandard, or the program zstd."""
    for name, way in (("compression.zstd", _by_python), ("zstandard", _by_package)):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return partial(way, module)
    if shutil.which("zstd") is None:
        raise Settled("this image has neither Python's zstandard nor the program zstd; add one")
    return _by_program


def _by_python(module: Any, path: str, target: Any) -> None:
    try:
        with module.open(path, "rb") as source:
            shutil.copyfileobj(source, target, _CHUNK)
    except module.ZstdError as error:
        raise Problem(f"{path}: cannot be unpacked ({error})") from None


def _by_package(module: Any, path: str, target: Any) -> None:
    """Frame by frame: its reader takes a file that is cut for one that has ended."""
    frame = None
    try:
        with open(path, "rb") as raw:
            for block in iter(lambda: raw.read(_CHUNK), b""):
                while block:
                    frame = frame or module.ZstdDecompressor().decompressobj()
                    target.write(frame.decompress(block))
                    block = frame.unused_data if frame.eof else b""
                    frame = None if frame.eof else frame
    except module.ZstdError as error:
        raise Problem(f"{path}: cannot be unpacked ({error})") from None
    if frame is not None:
        raise Problem(f"{path}: cannot be unpacked (it is cut)")


def _by_program(path: str, target: Any) -> None:
    target.flush()
    done = subprocess.run(
        ["zstd", "-dc", "--", path], stdout=target, stderr=subprocess.PIPE, check=False
    )
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()[-300:]
        raise Problem(f"{path}: cannot be unpacked ({words})")
    target.seek(0, 2)
