# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Processes as `/proc` shows them: who descends from whom, in which state, at what cost.

Reads no other user's secrets: of an environment only the rank is taken. A process that ends while
it is looked at is left out. Where /proc is hidden from us there are no processes, and no error.
"""

from __future__ import annotations

import os
from typing import Collection, NamedTuple

MAX_PROCESSES = 512
_MAX_ENVIRON = 1 << 18
_TICKS = float(os.sysconf("SC_CLK_TCK"))
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    pid: int
    ppid: int
    pgid: int
    name: str
    state: str
    cpu_seconds: float
    rss_bytes: int
    threads: int
    started: int
    """Clock ticks since boot: with the pid it names one process for ever."""


def read(pid: int, proc: str = "/proc") -> Process | None:
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            text = file.read(4096)
    except OSError:
        return None
    return parse(text)


def parse(stat: bytes) -> Process | None:
    """The name may hold blanks and brackets, so the fields are counted from its last bracket."""
    begin, end = stat.find(b"("), stat.rfind(b")")
    fields = stat[end + 2 :].split()
    if begin < 0 or end < begin or len(fields) < 22:
        return None
    try:
        return Process(
            pid=int(stat[:begin]),
            ppid=int(fields[1]),
            pgid=int(fields[2]),
            name=stat[begin + 1 : end].decode("utf-8", "replace"),
            state=fields[0].decode("ascii", "replace"),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
            rss_bytes=int(fields[21]) * _PAGE,
            threads=int(fields[17]),
            started=int(fields[19]),
        )
    except ValueError:
        return None


def everything(proc: str = "/proc") -> dict[int, Process]:
    try:
        names = os.listdir(proc)
    except OSError:
        return {}
    found = (read(int(name), proc) for name in names if name.isdigit())
    return {each.pid: each for each in found if each is not None}


def descendants(
    root: int, known: dict[int, Process], without: Collection[int] = ()
) -> list[Process]:
    """Below `root`, parents first; not `without` and what is below those."""
    children: dict[int, list[Process]] = {}
    for each in known.values():
        children.setdefault(each.ppid, []).append(each)
    found: list[Process] = []
    seen = {root, *without}
    level = [root]
    while level:
        below = [each for pid in level for each in children.get(pid, []) if each.pid not in seen]
        seen.update(each.pid for each in below)
        found += below
        level = [each.pid for each in below]
    return found


def rank_of(pid: int, proc: str = "/proc") -> int | None:
    """The global rank in the environment that the process was started with.

    Only beside `LOCAL_RANK`, which launchers give their workers: on Kubernetes `RANK` alone is
    the number of the pod, and torchrun itself has it. A trainer without either is known by its
    probe.
    """
    try:
        with open(f"{proc}/{pid}/environ", "rb") as file:
            data = file.read(_MAX_ENVIRON)
    except OSError:
        return None
    rank, is_worker = None, False
    for each in data.split(b"\0"):
        if each.startswith(b"RANK=") and each[5:].isdigit() and len(each) < 16:
            rank = int(each[5:])
        elif each.startswith(b"LOCAL_RANK="):
            is_worker = True
    return rank if is_worker else None


class Ranks:
    """Which processes are ranks. Remembers, because an environment is long to read."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[tuple[int, int], int | None] = {}

    def of(self, processes: Collection[Process]) -> dict[int, tuple[int | None, bool]]:
        """pid -> the rank in its environment, and whether it is that rank's own process.

        Data-loader workers inherit the variable: theirs is the rank of their parent.
        """
        keys = {(each.pid, each.started) for each in processes}
        self._known = {key: rank for key, rank in self._known.items() if key in keys}
        for pid, started in keys - set(self._known):
            self._known[pid, started] = rank_of(pid, self._proc)
        ranks = {each.pid: self._known[each.pid, each.started] for each in processes}
        return {
            each.pid: (
                ranks[each.pid],
                ranks[each.pid] is not None and ranks.get(each.ppid) != ranks[each.pid],
            )
            for each in processes
        }
