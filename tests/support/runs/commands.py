# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Run `mwatch` commands as processes that start in milliseconds.

Each command is a real process with its own files, environment and exit code, forked from one that
has imported mwatch and compiled the catalogue already: hundreds of commands would spend most of a
second each on that.
What depends on the start of Python itself (signals at once, closed files, memory, what is
imported) is tested with `python -m mwatch`.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import pkgutil
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from support.unprivileged import unprivileged
from support.waiting import PATIENCE

_TESTS = Path(__file__).parents[2]


def mwatch(
    *words: str | Path,
    stdin: str = "",
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    is_unprivileged: bool = False,
    seconds: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end. `environment` replaces the one of the tests."""
    arguments = [*map(str, words)]
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.NamedTemporaryFile("w+")) for _ in range(3)]
        files[0].write(stdin)
        files[0].flush()
        request = {
            "words": arguments,
            "files": [each.name for each in files],
            "cwd": str(cwd or Path.cwd()),
            "environment": {**(os.environ if environment is None else environment)},
            "is_unprivileged": is_unprivileged,
        }
        code = _server().run(request, seconds)
        return subprocess.CompletedProcess(arguments, code, files[1].read(), files[2].read())


class _Server:
    """The process with all modules loaded, and the pipes to and from it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path)])},
            cwd=_TESTS,
            bufsize=0,
        )
        atexit.register(self.close)

    def run(self, request: Mapping[str, Any], seconds: float) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        pid = self._answer(PATIENCE)
        try:
            return self._answer(seconds)
        except subprocess.TimeoutExpired:
            os.kill(pid, 9)
            self._answer(PATIENCE)
            raise

    def _answer(self, seconds: float) -> int:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired("mwatch", seconds)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@lru_cache(maxsize=1)
def _server() -> _Server:
    return _Server()


def _serve() -> None:
    package = importlib.import_module("mwatch")
    for each in pkgutil.walk_packages(package.__path__, "mwatch."):
        if not each.name.endswith("__main__"):
            importlib.import_module(each.name)
    importlib.import_module("mwatch.config.catalogue").with_grammar()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if not (child := os.fork()):
            _become(request)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(request: Mapping[str, Any]) -> NoReturn:
    """The command, in the child: what Python does with a main program and its `SystemExit`."""
    from mwatch.cli.main import main

    code: object = 1
    try:
        for number, name in enumerate(request["files"]):
            mode = os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY
            os.dup2(os.open(name, mode), number)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.stdin = open(0, closefd=False, encoding="utf-8")  # noqa: SIM115
        sys.argv = ["mwatch", *request["words"]]
        with unprivileged() if request["is_unprivileged"] else ExitStack():
            main()
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _serve()
