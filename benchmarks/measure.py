# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a command on one core and says what it cost.

The cost is CPU time, user and system, of the child and what it waited for: on a busy machine it
moves less than the time on the wall. The peak of memory cannot be lower than what this process
itself has, because Linux hands that on to a child; so this process loads nothing large.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
REPEATS = 5
_LIMIT_SECONDS = 7200.0
Feed = Callable[[IO[bytes]], None]


class ChildFailed(RuntimeError):
    """A measured command did not do its work."""


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_seconds: float
    wall_seconds: float
    peak_bytes: int
    output: bytes


def installed() -> dict[str, str]:
    """The environment, in which Python keeps what it compiles, as an installation does: without,
    a start of mwatch takes twice as long."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def run(
    command: Sequence[str], *, feed: Feed | None = None, keep_output: bool = True, tries: int = 1
) -> Usage:
    """The cheapest of `tries` runs. `feed` writes the child's standard input."""
    return min((_run(command, feed, keep_output) for _ in range(tries)), key=_cpu)


def run_in_turns(*commands: Sequence[str], tries: int) -> list[Usage]:
    """The cheapest run of each. A moment at which the machine is slow then meets all of them: one
    that is done in half a second would otherwise have all its runs in the same such moment."""
    rounds = [[_run(each, None, keep_output=True) for each in commands] for _ in range(tries)]
    return [min(each, key=_cpu) for each in zip(*rounds, strict=True)]


def _cpu(usage: Usage) -> float:
    return usage.cpu_seconds


def _run(command: Sequence[str], feed: Feed | None, keep_output: bool) -> Usage:
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as output:
        began = time.monotonic()
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
            stdout=output if keep_output else subprocess.DEVNULL,
            stderr=errors,
            env=installed(),
            preexec_fn=_stay_on_one_core,
        )
        guard = threading.Timer(_LIMIT_SECONDS, child.kill)
        guard.start()
        try:
            left_early = feed is not None and not _feed(feed, child.stdin)
            _, status, cost = os.wait4(child.pid, 0)
        finally:
            guard.cancel()
        wall = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode or left_early:
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").strip()
            raise ChildFailed(f"{' '.join(command)} ended with {child.returncode}:\n{said}")
        output.seek(0)
        cpu = cost.ru_utime + cost.ru_stime
        return Usage(cpu, wall, cost.ru_maxrss * 1024, output.read())


def _feed(feed: Feed, pipe: IO[bytes] | None) -> bool:
    """Whether the child took all of it."""
    assert pipe is not None
    try:
        with pipe:
            feed(pipe)
    except BrokenPipeError:
        return False
    return True


def _stay_on_one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
