# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A server of somebody else's, for a test: on a free port of this machine, and surely stopped.

A free port can be taken by another process before the server has it. The server ends then, and is
started again on another.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from support.free_ports import free_port

TRIES = 5
READY_SECONDS = 90.0
STOP_SECONDS = 20.0
ANSWER_SECONDS = 60.0

_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Ended with us even where we are killed."""


class Server(NamedTuple):
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def get(self, path: str, **query: str) -> Any:
        """The JSON of a page; AssertionError carries what the server said instead."""
        url = f"http://{self.address}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            with urlopen(url, timeout=ANSWER_SECONDS) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode('utf-8', 'replace')}") from None


@contextmanager
def serving(
    command: Callable[[int], Sequence[str]], ready: str, folder: Path, name: str
) -> Iterator[Server]:
    """`command` by the port that it shall listen on; `ready` is a page that answers then.

    It is started in `folder`.
    """
    server = _start(command, ready, folder, folder / f"{name}.log")
    try:
        yield server
    finally:
        _stop(server.process)


def _start(command: Callable[[int], Sequence[str]], ready: str, folder: Path, log: Path) -> Server:
    for _ in range(TRIES):
        port = free_port()
        with log.open("ab") as file:
            process = subprocess.Popen(
                [*_WITH_US, *command(port)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                cwd=folder,
            )  # fmt: skip
        server = Server(port, process, log)
        try:
            if _becomes_ready(server, ready):
                return server
        except BaseException:
            _stop(process)
            raise
        _stop(process)
    raise AssertionError(f"it does not start:\n{log.read_text('utf-8', 'replace')[-2000:]}")


def _becomes_ready(server: Server, ready: str) -> bool:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end and server.process.poll() is None:
        try:
            with urlopen(f"http://{server.address}{ready}", timeout=ANSWER_SECONDS):
                # Somebody else's server may answer there, if ours has just failed to bind.
                return server.process.poll() is None
        except (URLError, OSError):
            time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    for which in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.kill(process.pid, which)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue
