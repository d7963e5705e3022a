# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Child processes of the wrapper: the training command, helper processes, and reaping them all."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, Mapping, NoReturn, Sequence

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # what a shell returns
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder or .pyz file with this package. Resolved at import, because it may be relative."""
_RUN_MODULE = (
    "import sys; sys.path = [sys.argv.pop(1)] + [each for each in sys.path if each]; "
    "sys.path += filter(None, [sys.argv.pop(1)]); "
    "from importlib import import_module; "
    "import_module(sys.argv.pop(1)).main(sys.argv[1:])"
)


class CannotStart(Exception):
    """The command does not exist or cannot be executed."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def start_command(
    argv: Sequence[str], env: Mapping[str, str], stdout: int | None, stderr: int | None
) -> subprocess.Popen[bytes]:
    """Start the training command with the same arguments, files and signals as without mwatch.

    It leads its own session, so Ctrl-C reaches it only through the wrapper. Raises CannotStart, and
    OSError if there are not enough resources to start a process.
    """
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            close_fds=False,  # exec closes the wrapper's files; the command keeps the user's
        )
    except FileNotFoundError:
        where = "no such command" if os.path.isdir(".") else "the working folder is gone"
        raise CannotStart(f"{argv[0]}: {where}", NOT_FOUND) from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in _OUT_OF_RESOURCES:
            raise
        message = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) == errno.E2BIG:
            message = "the arguments and the environment are too long"
        raise CannotStart(f"{argv[0]}: {message}", NOT_EXECUTABLE) from None


def exec_command(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process with the command. Raises CannotStart."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python; exec would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        raise CannotStart(f"{argv[0]}: {error.strerror}", NOT_EXECUTABLE) from None


def shell_code(returncode: int) -> int:
    """Convert to a shell's exit code: for a signal, 128 plus its number."""
    return 128 - returncode if returncode < 0 else returncode


def start_helper(
    module: str, arguments: Sequence[str], fds: Sequence[int] = (), *, needs: str = ""
) -> subprocess.Popen[bytes]:
    """Run `main(arguments)` of a module of this package in a new interpreter. Raises OSError.

    The helper is not forked, because the wrapper has threads. It runs without `site`, so that no
    hook of the user's environment (nor mwatch's own probe) runs in it. `needs` names a third-party
    module: without `site` it would be found only beside this package, so its folder is appended to
    the path.
    """
    # -I ignores PYTHONHOME, which such an interpreter needs to find its library.
    flags = ["-S"] if "PYTHONHOME" in os.environ else ["-S", "-I"]
    name = f"mwatch_trainer.{module}"
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _RUN_MODULE, _ROOT, _folder_of(needs), name, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=tuple(fds),
        start_new_session=True,
    )


def _folder_of(module: str) -> str:
    try:
        spec = find_spec(module) if module else None
    except (ImportError, ValueError):
        spec = None
    return os.path.dirname(spec.origin or "") if spec is not None else ""


class Reaper:
    """Reaps every child: the trainer, helper processes and adopted orphans.

    The wrapper is PID 1 or a subreaper: if it did not reap, the container would fill with zombies.
    """

    def __init__(self) -> None:
        self._known: dict[int, subprocess.Popen[bytes]] = {}
        self.orphans = 0

    def watch(self, process: subprocess.Popen[bytes]) -> None:
        """Take over waiting for the process and set its `returncode`; no other code may wait."""
        self._known[process.pid] = process

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._forget_lost()
                return
            except OSError:
                return
            if not pid:
                return
            process = self._known.pop(pid, None)
            if process is None:
                self.orphans += 1
            elif os.WIFSIGNALED(status):
                process.returncode = -os.WTERMSIG(status)
            else:
                process.returncode = os.WEXITSTATUS(status)

    def _forget_lost(self) -> None:
        """Give lost children code 1: if our parent ignored SIGCHLD, the kernel has reaped them."""
        for process in self._known.values():
            process.returncode = 1
        self._known.clear()


def forward(process: subprocess.Popen[bytes], number: int) -> None:
    if number != signal.SIGCHLD:
        with contextlib.suppress(OSError):
            os.kill(process.pid, number)


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> bool:
    """Make this process, not init, the parent of descendants that daemonize (double fork)."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> bool:
    """Receive signal `number` when the thread that started this process is gone."""
    return _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> bool:
    """Call prctl; return False without ctypes or if the kernel refuses, as the run must go on."""
    try:
        import ctypes

        libc: Any = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False
