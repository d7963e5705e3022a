# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Run `mwatch` commands as processes that start in milliseconds: `support.forked`."""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from support.forked import ForkedProcess, ForkServer, Program
from support.waiting import PATIENCE


def mwatch(
    *words: str | Path,
    stdin: str = "",
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    is_unprivileged: bool = False,
    seconds: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end. `environment` replaces the one of the tests."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(stdin.encode())
        files[0].seek(0)
        process = start_mwatch(
            words, [each.fileno() for each in files], cwd=cwd, environment=environment,
            is_unprivileged=is_unprivileged,
        )  # fmt: skip
        code = process.ends(seconds)
        for each in files:
            each.seek(0)
        out, err = (each.read().decode() for each in files[1:])
        return subprocess.CompletedProcess([*map(str, words)], code, out, err)


def start_mwatch(
    words: Sequence[str | Path],
    files: Sequence[int],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    is_unprivileged: bool = False,
    has_terminal: bool = False,
    patches: Mapping[str, float] = MappingProxyType({}),
) -> ForkedProcess:
    """Start one command; `files` are its standard input, output and error. `patches`: as of
    `Program`."""
    program = Program(
        module="mwatch.cli.main",
        function="main",
        argv=["mwatch", *map(str, words)],
        cwd=str(cwd or Path.cwd()),
        environment={**(os.environ if environment is None else environment)},
        is_unprivileged=is_unprivileged,
        has_terminal=has_terminal,
        patches=patches,
    )
    return _server().start(program, files)


@lru_cache(maxsize=1)
def _server() -> ForkServer:
    return ForkServer(f"{__name__}:_load", [*filter(None, sys.path)])


def _load() -> None:
    """All modules of mwatch, and the catalogue with its patterns compiled."""
    package = importlib.import_module("mwatch")
    for each in pkgutil.walk_packages(package.__path__, "mwatch."):
        if not each.name.endswith("__main__"):
            with suppress(ModuleNotFoundError):  # of an extra that is not installed
                importlib.import_module(each.name)
    _, grammar = importlib.import_module("mwatch.config.catalogue").with_grammar()
    grammar.compile()
    gc.freeze()
