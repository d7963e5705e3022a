# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Starts the training command: the same arguments, files and signals as without mwatch.

Only two things differ: it leads a session of its own (so Ctrl-C reaches it through the wrapper),
and stdout and stderr may be pipes of ours. Other open files are inherited as they would have been.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from typing import Mapping, NoReturn, Sequence

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # what a shell returns
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class CannotStart(Exception):
    """The command is not there or cannot be run; the text says why."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def start(
    argv: Sequence[str], env: Mapping[str, str], stdout: int | None, stderr: int | None
) -> subprocess.Popen[bytes]:
    """Raises CannotStart, and OSError where only the means for a process of its own are missing."""
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            close_fds=False,  # ours are closed by exec; the user's are for the command
        )
    except FileNotFoundError:
        where = "no such command" if os.path.isdir(".") else "the working folder is gone"
        raise CannotStart(f"{argv[0]}: {where}", NOT_FOUND) from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in _NO_ROOM:
            raise
        message = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", None) == errno.E2BIG:
            message = "the arguments and the environment are too long"
        raise CannotStart(f"{argv[0]}: {message}", NOT_EXECUTABLE) from None


def become(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """The command in place of this process. Raises CannotStart."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, the command must not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), dict(env))
    except OSError as error:
        raise CannotStart(f"{argv[0]}: {error.strerror}", NOT_EXECUTABLE) from None


def shell_code(returncode: int) -> int:
    """As a shell tells it: a signal is 128 and its number."""
    return 128 - returncode if returncode < 0 else returncode


def forward(process: subprocess.Popen[bytes], number: int) -> None:
    if number != signal.SIGCHLD:
        with contextlib.suppress(OSError):
            os.kill(process.pid, number)
