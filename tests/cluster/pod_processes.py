# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A pod cut off from everything, as on a node that hangs or lost its network, and back again.

The node of the tests is this machine, so its processes are seen here. Those of the pod stand
still, its network is down, and so does the program that containerd would end it with: whoever
believes the pod is gone is wrong, as with a real node that is away.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_RANK = re.compile(rb"^[^\0]+\0(-u\0)?-m\0mwatch_gpt")


@dataclass(frozen=True)
class Lost:
    containers: tuple[str, ...]
    processes: tuple[int, ...]
    keeper: int
    """containerd's program for this pod."""

    def ranks(self) -> list[int]:
        return [
            each for each in processes_of(self.containers) if _RANK.match(read(each, "cmdline"))
        ]


def processes_of(containers: Sequence[str]) -> list[int]:
    """By their cgroups, which are named after the containers."""
    marks = [each.encode() for each in containers]
    found = (int(each.name) for each in Path("/proc").glob("[0-9]*"))
    return [each for each in found if any(mark in read(each, "cgroup") for mark in marks)]


def cut_off(containers: Sequence[str]) -> Lost:
    processes = processes_of(containers)
    assert processes, f"no process of {containers} is seen"
    keeper = _keeper(processes)
    _network(processes[0], "down")
    os.kill(keeper, signal.SIGSTOP)
    for each in processes:
        os.kill(each, signal.SIGSTOP)
    return Lost(tuple(containers), tuple(processes), keeper)


@contextlib.contextmanager
def join_again(lost: Lost) -> Iterator[None]:
    """The pod first; its keeper, which will end it, when the caller has seen enough."""
    try:
        for each in lost.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)
        _network(lost.processes[0], "up")
        yield
    finally:
        os.kill(lost.keeper, signal.SIGCONT)


def _keeper(processes: list[int]) -> int:
    """Whose child is none of the pod's own."""
    for each in processes:
        parent = int(read(each, "stat").rsplit(b")", 1)[1].split()[1])
        if parent not in processes and b"shim" in read(parent, "comm"):
            return parent
    raise AssertionError("no shim of containerd is a parent of the pod's processes")


def _network(pid: int, state: str) -> None:
    words = ["nsenter", "-t", str(pid), "-n", "ip", "link", "set", "eth0", state]
    subprocess.run(words, check=True, timeout=60)


def read(pid: int, name: str) -> bytes:
    """A file of the process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
