# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One attempt of a local run: the wrapper around the training command, as a process of ours.

It has a session of its own, so that Ctrl-C reaches only us and we end it in order. If we are
killed it goes on, and so does the training.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from mwatch.errors import InputError
from mwatch_trainer import contract
from mwatch_trainer.control_client import ask

_ASK_SECONDS = 2.0
_AFTER_GRACE_SECONDS = 10.0


class Wrapper:
    def __init__(self, process: subprocess.Popen[bytes], volume: Path) -> None:
        self._process = process
        self._volume = volume

    @property
    def output(self) -> IO[bytes] | None:
        """What the trainer prints, where it was to be captured."""
        return self._process.stdout

    @property
    def exit_code(self) -> int | None:
        """None while it runs; a signal is told as a shell does."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def stop(self, reason: str, grace_seconds: float) -> None:
        """The command and all its processes end: by themselves within the grace, or killed."""
        request = {"op": "stop", "grace_seconds": grace_seconds, "save": grace_seconds > 0,
                   "reason": reason}  # fmt: skip
        try:
            if not self._has_agreed(request):
                self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds + _AFTER_GRACE_SECONDS)
        finally:
            self.kill()

    def _has_agreed(self, request: dict[str, object]) -> bool:
        try:
            return bool(ask(str(self._volume), request, _ASK_SECONDS).get("ok"))
        except (OSError, ValueError):
            return False  # it is just starting, or just ending

    def kill(self) -> None:
        """Nothing of it is left; does nothing where nothing is."""
        if self._process.poll() is not None:
            return
        known = contract.read_json(str(self._volume / contract.ATTEMPT)) or {}
        group = known.get("pgid")
        if isinstance(group, int) and group > 1 and known.get("wrapper_pid") == self._process.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        try:
            self._process.wait(_ASK_SECONDS)  # it reaps the rest of the tree
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait(_AFTER_GRACE_SECONDS)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def start(
    argv: Sequence[str], volume: Path, *, is_act: bool, options: Sequence[str], capture: bool
) -> Wrapper:
    """`capture`: the trainer's output is for us to show; else it goes where ours goes."""
    mode = ["--act"] if is_act else []
    command = [sys.executable, "-P", "-m", "mwatch_trainer", *mode, "--dir", str(volume), *options]
    try:
        process = subprocess.Popen(
            [*command, "--", *argv],
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.STDOUT if capture else None,
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(f"{sys.executable}: cannot be started ({error.strerror})") from error
    return Wrapper(process, volume)
