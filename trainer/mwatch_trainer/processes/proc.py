# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Processes in `/proc`: descendants of the wrapper, their ranks and states, and signals to them.

torchrun starts every rank in a session of its own, so the trainer is not one process group. The
wrapper adopts orphans, so every process below it that is not one of mwatch's helpers belongs to the
trainer.

A process that ends while it is read is left out. If /proc is hidden, no processes are found and no
error is raised. Of another process's environment only the rank and mwatch's own variables are used.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Callable, Collection, NamedTuple

from mwatch_trainer import contract
from mwatch_trainer import rank_variables as names

MAX_PROCESSES = 512
_MAX_ENVIRON = 1 << 18
_TICKS = float(os.sysconf("SC_CLK_TCK"))
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RANK_VARIABLES = {
    os.fsencode(name): name
    for name in (*names.RANKS, "LOCAL_RANK", names.SLURM_STEP, *names.SLURM_RANKS)
}


class Process(NamedTuple):
    pid: int
    ppid: int
    name: str
    state: str
    cpu_seconds: float
    rss_bytes: int
    threads: int
    started: int  # clock ticks since boot; with the pid it identifies one process


def read(pid: int, proc: str = "/proc") -> Process | None:
    stat = contract.read_bytes(f"{proc}/{pid}/stat", 4096)
    return None if stat is None else parse(stat)


def parse(stat: bytes) -> Process | None:
    """Parse a `stat` file; the name may contain blanks and brackets, so use its last bracket."""
    begin, end = stat.find(b"("), stat.rfind(b")")
    fields = stat[end + 2 :].split()
    if begin < 0 or end < begin or len(fields) < 22:
        return None
    try:
        return Process(
            pid=int(stat[:begin]),
            ppid=int(fields[1]),
            name=stat[begin + 1 : end].decode("utf-8", "replace"),
            state=fields[0].decode("ascii", "replace"),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
            rss_bytes=int(fields[21]) * _PAGE,
            threads=int(fields[17]),
            started=int(fields[19]),
        )
    except ValueError:
        return None


def all_processes(proc: str = "/proc") -> dict[int, Process]:
    try:
        names = os.listdir(proc)
    except OSError:
        return {}
    found = (read(int(name), proc) for name in names if name.isdigit())
    return {each.pid: each for each in found if each is not None}


def descendants(
    root: int, known: dict[int, Process], without: Collection[int] = ()
) -> list[Process]:
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


class EnvironmentRank(NamedTuple):
    rank: int
    is_sure: bool  # true: set for a worker; false: for a task, which may itself be a launcher


def rank_of(pid: int, proc: str = "/proc") -> EnvironmentRank | None:
    """Return the global rank in the environment that the process was started with.

    `RANK` counts only together with `LOCAL_RANK`, which launchers set for their workers: on
    Kubernetes `RANK` alone is the number of the pod, and torchrun itself has it. Tasks of mpirun
    and srun have their own variables, but a task may be torchrun.
    """
    found: dict[str, bytes] = {}
    for each in _environ(pid, proc):
        name, _, value = each.partition(b"=")
        if name in _RANK_VARIABLES:
            found[_RANK_VARIABLES[name]] = value
    rank = _number(found.get("RANK", b""))
    if rank is not None and "LOCAL_RANK" in found:
        return EnvironmentRank(rank, True)
    tasks = names.RANKS[1:] + (names.SLURM_RANKS if names.SLURM_STEP in found else ())
    task = next((found[name] for name in tasks if name in found), b"")
    number = _number(task)
    return None if number is None else EnvironmentRank(number, False)


def _number(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) < 10 else None


def _environ(pid: int, proc: str) -> list[bytes]:
    return (contract.read_bytes(f"{proc}/{pid}/environ", _MAX_ENVIRON) or b"").split(b"\0")


class Ranks:
    """Finds which processes are ranks; caches the result, because reading environments is slow.

    A process is cached only from its second lookup on: between fork and exec it has its parent's
    environment, and briefly none.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[tuple[int, int], EnvironmentRank | None] = {}
        self._seen: set[tuple[int, int]] = set()

    def of(self, processes: Collection[Process]) -> dict[int, tuple[int | None, bool]]:
        """Map pid to the rank in its environment and whether it is that rank's main process.

        Data-loader workers inherit the variable, so they have the same rank as their parent.
        """
        keys = {(each.pid, each.started) for each in processes}
        known = {key: rank for key, rank in self._known.items() if key in keys}
        known.update((key, rank_of(key[0], self._proc)) for key in keys - set(known))
        ranks = _chosen({each.pid: known[each.pid, each.started] for each in processes})
        self._known = {key: rank for key, rank in known.items() if key in self._seen}
        self._seen = keys
        return {
            each.pid: (
                ranks[each.pid],
                ranks[each.pid] is not None and ranks.get(each.ppid) != ranks[each.pid],
            )
            for each in processes
        }


def _chosen(found: dict[int, EnvironmentRank | None]) -> dict[int, int | None]:
    """Return ranks by pid; if there are certain ranks, tasks are launchers and do not count."""
    is_sure = any(each is not None and each.is_sure for each in found.values())
    return {
        pid: None if each is None or (is_sure and not each.is_sure) else each.rank
        for pid, each in found.items()
    }


_MAX_BYTES = 16384
_WANTED = ("State", "Threads", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt", "VmRSS")


def facts_of(process: Process, proc: str = "/proc") -> dict[str, Any]:
    """Describe a process that does not answer; `wchan` is 0 or empty if the kernel hides it."""
    return {
        "pid": process.pid,
        "ppid": process.ppid,
        "name": process.name,
        "state": process.state,
        "cpu_seconds": process.cpu_seconds,
        "started": process.started,
        "wchan": _text(f"{proc}/{process.pid}/wchan"),
        "syscall": _text(f"{proc}/{process.pid}/syscall"),
        "stack": _text(f"{proc}/{process.pid}/stack"),
        "status": _status(process.pid, proc),
    }


def catches(pid: int, number: int, proc: str = "/proc", *, unknown: bool = False) -> bool:
    """Whether the process has a handler for the signal; `unknown` if that cannot be read."""
    mask = _status(pid, proc).get("SigCgt", "")
    try:
        return number > 0 and bool(int(mask, 16) >> (number - 1) & 1)
    except ValueError:
        return unknown


def _status(pid: int, proc: str) -> dict[str, str]:
    lines = (line.partition(":") for line in _text(f"{proc}/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in lines if name in _WANTED}


def _text(path: str) -> str:
    return (contract.read_bytes(path, _MAX_BYTES) or b"").decode("utf-8", "replace").strip()


class Tree:
    """The trainer: all living descendants of the wrapper except its own helpers (`helpers`)."""

    def __init__(self, helpers: Callable[[], Collection[int]], proc: str = "/proc") -> None:
        self._helpers = helpers
        self._proc = proc
        self._ranks = Ranks(proc)

    def processes(self) -> list[Process]:
        found = descendants(os.getpid(), all_processes(self._proc), without=self._helpers())
        return [each for each in found if each.state not in ("Z", "X")]

    def ranks(self) -> list[Process]:
        alive = self.processes()
        ranks = self._ranks.of(alive)
        return [each for each in alive if ranks[each.pid][1]]

    def signal(self, number: int) -> None:
        for each in self.processes():
            send(each, number, self._proc)

    def kill(self) -> None:
        _kill_all(self.processes(), self._proc)


def _kill_all(processes: list[Process], proc: str) -> None:
    """Stop all before killing any, so that none can start new processes in between."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for each in processes:
            send(each, number, proc)


def is_alive(pid: int, started: object, proc: str = "/proc") -> bool:
    """Whether the process still lives; a reused pid has a different start time."""
    now = read(pid, proc)
    return now is not None and now.started == started and now.state not in "ZX"


def send(process: Process, number: int, proc: str = "/proc") -> bool:
    if not is_alive(process.pid, process.started, proc):
        return False
    with contextlib.suppress(OSError):
        os.kill(process.pid, number)
        return True
    return False


_KILL_SECONDS = 10.0


def end_abandoned(directory: str, proc: str = "/proc") -> int:
    """Kill the processes of an attempt whose wrapper was killed; return how many there were.

    Without their wrapper, which alone reads the fencing token, they run unfenced. They get SIGKILL,
    because after SIGTERM they might save over the new attempt. Nothing is done while that wrapper
    lives or if it recorded an exit.
    """
    document = contract.read_json(os.path.join(directory, contract.ATTEMPT))
    if document is None or document.get("exit") is not None:
        return 0
    wrapper = document.get("wrapper_pid")
    if isinstance(wrapper, int) and is_alive(wrapper, document.get("wrapper_started"), proc):
        return 0
    wanted = {
        f"{contract.DIR_VARIABLE}={directory}".encode("utf-8", "surrogateescape"),
        f"{contract.ATTEMPT_VARIABLE}={document.get('attempt')}".encode(),
    }
    first = found = _with_variables(wanted, proc)
    until = time.monotonic() + _KILL_SECONDS
    while found and time.monotonic() < until:
        _kill_all(found, proc)
        time.sleep(0.05)
        found = _with_variables(wanted, proc)
    return len(first)


def _with_variables(wanted: set[bytes], proc: str) -> list[Process]:
    """Return the processes with all of these variables, except this process and its ancestors."""
    known = all_processes(proc)
    above = set()
    pid = os.getpid()
    while pid in known and pid not in above:
        above.add(pid)
        pid = known[pid].ppid
    others = (each for each in known.values() if each.pid not in above and each.state not in "ZX")
    return [each for each in others if wanted <= set(_environ(each.pid, proc))]
