# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Start real processes in milliseconds: forked from one that has loaded their modules already.

Each has its own files, folder, environment and exit code, as if it had been started anew. Loading
mwatch takes most of a second of a core, and the tests start hundreds of processes.
What depends on the start of Python itself (signals at once, closed files, memory, what is
imported, the command line in /proc) is tested with a new interpreter.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from support.unprivileged import unprivileged
from support.waiting import PATIENCE

_TESTS = Path(__file__).parents[1]
_MESSAGE = 1 << 18
_ANSWER_SECONDS = 5 * PATIENCE
"""The first answer comes after all modules are loaded, which a busy machine does not do in one."""


class Program(NamedTuple):
    """What a process runs, and how: `function` of `module`, with `sys.argv`."""

    module: str
    function: str
    argv: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    is_unprivileged: bool = False
    has_terminal: bool = False
    """It leads a session of its own, on the terminal that its standard input is."""
    patches: Mapping[str, float] = MappingProxyType({})
    """Limits of time in the process, which a busy machine must not reach: `module:NAME`, or
    `module:Class.function` for the default of its last parameter."""


class ForkedProcess:
    """As much of `subprocess.Popen` as tests need."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self._end = os.pidfd_open(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._code(0.0)

    def wait(self, timeout: float = PATIENCE) -> int:
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("forked", timeout)
        return code

    def ends(self, seconds: float) -> int:
        """Its exit code; it is killed where it takes longer."""
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            self.wait()
            raise

    def _code(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], seconds)[0]:
            self.returncode = self._server.ask({"reap": self.pid})
            os.close(self._end)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that others are forked from. `prepare`, as `module:function`, loads what they
    need; `folders` are where it looks for modules."""

    def __init__(self, prepare: str, folders: Sequence[str | Path]) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = here
        self._lock = threading.Lock()
        with there:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(there.fileno()), prepare],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))},
                cwd=_TESTS,
                pass_fds=[there.fileno()],
            )
        atexit.register(self.close)

    def start(self, program: Program, files: Sequence[int]) -> ForkedProcess:
        """`files`: descriptors for its standard input, output and error."""
        request = {**program._asdict(), "patches": dict(program.patches)}
        return ForkedProcess(self, self.ask(request, files))

    def ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            if not select.select([self._socket], [], [], _ANSWER_SECONDS)[0]:
                raise subprocess.TimeoutExpired("fork server", _ANSWER_SECONDS)
            return int(self._socket.recv(_MESSAGE))

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _serve(server: socket.socket, prepare: str) -> None:
    module, _, name = prepare.partition(":")
    getattr(importlib.import_module(module), name)()
    while True:
        message, files, _, _ = socket.recv_fds(server, _MESSAGE, 3)
        if not message:
            return
        request = json.loads(message)
        if "reap" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["reap"], 0)[1])
        elif not (answer := os.fork()):
            server.close()
            _become(Program(**request), files)
        for each in files:
            os.close(each)
        server.send(str(answer).encode())


def _become(program: Program, files: Sequence[int]) -> NoReturn:
    """In the child: what Python does with a main program and its `SystemExit`."""
    code: object = 1
    try:
        for number, each in enumerate(files):
            os.dup2(each, number)
            os.close(each)
        if program.has_terminal:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        os.chdir(program.cwd)
        os.environ.clear()
        os.environ.update(program.environment)
        sys.stdin, sys.stdout, sys.stderr = map(_text, range(3))
        sys.argv = [*program.argv]
        for place, value in program.patches.items():
            _patch(place, value)
        function: Callable[[], object] = getattr(
            importlib.import_module(program.module), program.function
        )
        with unprivileged() if program.is_unprivileged else ExitStack():
            code = function()
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


def _patch(place: str, value: float) -> None:
    found = pkgutil.resolve_name(place)
    if callable(found):
        found.__defaults__ = (*found.__defaults__[:-1], value)
    else:
        module, _, name = place.partition(":")
        setattr(importlib.import_module(module), name, value)


def _text(number: int) -> Any:
    """A standard stream as Python makes it."""
    is_by_line = number == 2 or os.isatty(number)
    how: dict[str, Any] = {"errors": "backslashreplace"} if number == 2 else {}
    return open(
        number, "w" if number else "r", 1 if is_by_line and number else -1, "utf-8",
        closefd=False, **how,
    )  # fmt: skip


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _server:
        _serve(_server, sys.argv[2])
