# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Processes of the cluster, seen from outside: who they are, on which core, and what they cost.

They live in a PID namespace of their own, and die with it; here they have other numbers.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FIRST = ("nice", "-n", "-10")
"""Before whoever else has something to do on this machine: the core is the controller's own."""
_TICKS = os.sysconf("SC_CLK_TCK")
_FOUND_SECONDS = 20.0


class Cores:
    """One for what is measured, and one for all the rest; the same where there is but one."""

    def __init__(self) -> None:
        self._all = sorted(os.sched_getaffinity(0))
        self.measured = self._all[-1]
        self.rest = self._all[0]

    @property
    def are_two(self) -> bool:
        return self.measured != self.rest

    def free(self, root: int) -> None:
        """Everything below, and this process, where it likes."""
        _pin(root, set(self._all))
        os.sched_setaffinity(0, set(self._all))

    def part(self, root: int) -> None:
        """Everything below to the core of the rest; to be called before the measured is started."""
        _pin(root, {self.rest})
        os.sched_setaffinity(0, {self.rest})


def _pin(root: int, cores: set[int]) -> None:
    for _ in range(2):  # a thread may be started meanwhile
        for pid in [root, *below(root)]:
            with suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(task), cores)


def below(root: int) -> Iterator[int]:
    for task in _tasks(root):
        with suppress(OSError):
            for pid in map(int, Path(f"/proc/{root}/task/{task}/children").read_text().split()):
                yield pid
                yield from below(pid)


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def find(root: int, *words: str) -> int:
    """The process below `root` whose command line holds these words, one after the other."""
    wanted = "\0".join(words).encode()
    until = time.monotonic() + _FOUND_SECONDS
    while time.monotonic() < until:
        for pid in below(root):
            with suppress(OSError):
                if wanted in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        time.sleep(0.05)
    raise RuntimeError(f"no process that runs {' '.join(words)}")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_bytes(pid: int, name: str = "VmRSS") -> int:
    """`VmHWM`: the most so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10
