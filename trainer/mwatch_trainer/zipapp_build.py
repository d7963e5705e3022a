# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Build `mwatch-run` as one file: `python -m mwatch_trainer.zipapp_build mwatch-run.pyz`.

The file runs in any image with Python 3.8 or newer. The build is reproducible. The installed
nvidia-ml-py (`pynvml.py`) is bundled with its licence.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import sys
import zipfile
from importlib.util import find_spec
from typing import Iterator, Sequence

from mwatch_trainer import contract

_START = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_MAIN = "mwatch_trainer/__main__.py"
_NVML = "pynvml.py"


def build(target: str) -> None:
    """Write the .pyz file to `target`. Raises OSError."""
    contract.replace_file(target, content(), mode=0o755)


def content() -> bytes:
    """Return the .pyz file's bytes. Raises OSError."""
    sources = sorted([*_sources(), (_NVML, _nvml())])
    file = io.BytesIO(_START)
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sources:
            with open(path, "rb") as source:
                data = source.read()
            _add(archive, name, data)
            if name == _MAIN:
                _add(archive, "__main__.py", data)
            elif name == _NVML:
                _add(archive, "pynvml.LICENSE", _licence(data))
    return file.getvalue()


def _sources() -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(_PACKAGE):
        folders[:] = [each for each in folders if each != "__pycache__"]
        for file in files:
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                yield os.path.relpath(path, os.path.dirname(_PACKAGE)), path


def _nvml() -> str:
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        reason = "nvidia-ml-py is not installed; install it to bundle it"
        raise FileNotFoundError(errno.ENOENT, reason, _NVML)
    return spec.origin


def _licence(source: bytes) -> bytes:
    """Return the comment at the top of the file."""
    head = itertools.takewhile(lambda line: line.startswith(b"#"), source.splitlines())
    return b"\n".join(line.lstrip(b"#").strip() for line in head) + b"\n"


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, data)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m mwatch_trainer.zipapp_build FILE.pyz", file=sys.stderr)
        return 2
    try:
        build(arguments[0])
    except OSError as error:
        print(f"zipapp_build: {arguments[0]}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
