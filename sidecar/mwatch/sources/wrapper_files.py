# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the files of the wrapper: its state (`attempt.json`) and the trainer's processes.

The state has the start of an attempt and how its command ended; if the wrapper was killed, the
state still shows the command as running. `node/processes.json` shows stopped, dead and idle ranks.
A rank counts as busy if its process or a descendant (data loader, checkpoint writer) is. Busy is
not progress: a rank that waits for another one may spin. If all processes disappear at once, the
command has ended, which the wrapper reports; that is not the death of a rank. If no process is
known to be a rank (no launcher, no probe), those that did most of the work represent the command.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mwatch.model.observation import (
    AttemptStart,
    Observed,
    ProcessExit,
    Sign,
    SignSource,
    SignState,
)
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.model.snapshot.pod import TrainerEnd, WrapperState
from mwatch.sources.json_file import JsonFile, NodeFile, number, objects, text, whole
from mwatch.sources.probe import read_records
from mwatch_trainer.contract import (
    ATTEMPT,
    NODE_FOLDER,
    NODE_PROCESSES,
    PROBE_FOLDER,
    RUNNING,
    TRAINS_ON,
    UNWATCHED,
    read_bytes,
)
from mwatch_trainer.processes.signals import name_of

_MAX_TEXT = 1000
_MAX_CHANGES = 64
_MAX_ARGV = 2048
_NO_MEMORY = re.compile(r"\boom\b|memory for this container was used up|kernel killed .*memory")
"""Host memory only; the log reports a GPU that runs out of memory."""


class UnwatchedCommand(NamedTuple):
    """The command was started without the wrapper."""

    why: str
    restart_policy: str
    """Restart policy of the pod; empty if unknown."""
    is_running: bool | None
    """None if unknown."""


def read_unwatched(folder: str) -> UnwatchedCommand | None:
    lines = (read_bytes(os.path.join(folder, UNWATCHED), _MAX_TEXT) or b"").decode(errors="replace")
    why, _, rest = lines.partition("\n")
    if not why.strip():
        return None
    return UnwatchedCommand(why.strip(), rest.strip(), _is_held(os.path.join(folder, RUNNING)))


def _is_held(pipe: str) -> bool | None:
    """Return whether a process has the named pipe open for reading; None if unknown."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return False if error.errno == errno.ENXIO else None
    return True


class WrapperFile:
    def __init__(self, folder: str, stream: str) -> None:
        self._file = JsonFile(os.path.join(folder, ATTEMPT))
        self._stream = stream
        self._started: tuple[int, float] | None = None
        self._is_ended = False
        self._folder = folder
        self.state: WrapperState | None = None
        self.unwatched: UnwatchedCommand | None = None

    def read(self) -> Reading[tuple[Observed, ...]]:
        self.unwatched = read_unwatched(self._folder)
        found = self._file.read()
        if self.unwatched is not None:
            return Absent(f"not watched: {self.unwatched.why}")
        if isinstance(found, Absent):
            return Absent(f"{found.reason}: no wrapper has started yet")
        if isinstance(found, Failed):
            return found
        state = _state(found.value)
        if state is None:
            return Failed(f"{ATTEMPT} has no attempt number")
        self.state = state
        return Ok(tuple(self._changes(state)))

    def _changes(self, state: WrapperState) -> Iterator[Observed]:
        started = (state.attempt, state.started_at)
        if started != self._started:
            self._started = started
            self._is_ended = False
            start = AttemptStart(state.attempt, state.resume_from, None)
            yield Observed(state.started_at, self._stream, start)
        ended = state.exit
        if ended is not None and not self._is_ended:
            self._is_ended = True
            gone = ProcessExit(ended.code, ended.signal, _kube_reason(ended.reason))
            yield Observed(max(ended.at, state.started_at), self._stream, gone)


def _kube_reason(reason: str | None) -> str | None:
    """Return Kubernetes' name for lack of memory, or that the training continues; for any other
    reason the log is more precise."""
    if reason and reason.startswith(TRAINS_ON):
        return TRAINS_ON
    return "OOMKilled" if reason and _NO_MEMORY.search(reason) else None


def _state(body: dict[str, Any]) -> WrapperState | None:
    attempt, started_at = whole(body.get("attempt")), number(body.get("started_at"))
    if attempt is None or started_at is None:
        return None
    return WrapperState(
        attempt,
        text(body.get("mode")) or "",
        started_at,
        whole(body.get("pid")),
        text(body.get("host")),
        whole(body.get("node_rank")),
        whole(body.get("nnodes")),
        _texts(body.get("changes"), _MAX_CHANGES),
        whole(body.get("resume_from")),
        text(body.get("resume_reason"), _MAX_TEXT),
        text(body.get("save"), _MAX_TEXT),
        _ended(body.get("exit"), started_at),
        body.get("final") is True,
        _texts(body.get("ran") or body.get("argv"), _MAX_ARGV),
    )


def _texts(found: object, most: int) -> tuple[str, ...]:
    listed = found[:most] if isinstance(found, list) else []
    return tuple(str(each)[:_MAX_TEXT] for each in listed)


def _ended(found: object, started_at: float) -> TrainerEnd | None:
    if not isinstance(found, dict):
        return None
    at, name = number(found.get("at")), found.get("signal")
    signal = whole(name)
    return TrainerEnd(
        started_at if at is None else at,
        whole(found.get("code")),
        text(name) if signal is None else name_of(signal),
        text(found.get("reason"), _MAX_TEXT),
        whole(found.get("returned")),
        found.get("asked") is True,
    )


def read_rank_pids(volume: str) -> dict[tuple[int, int], int]:
    """Map pid and start time to the rank, as written by the probe inside each rank.

    The environment is not enough: a PyTorchJob sets `RANK` for the launcher too, and children
    inherit it. A record outlives its process, so a pid counts only with its start time.
    """
    try:
        records = list(read_records(os.path.join(volume, PROBE_FOLDER)))
    except OSError:
        return {}
    return {(each.pid, each.started): each.rank for each in records}


Key = tuple[int, int]
"""Pid and start time: a pid alone may be reused."""


class NodeProcess(NamedTuple):
    pid: int
    parent: int | None
    started: int
    rank: int | None
    is_rank: bool
    name: str
    state: str
    cpu_seconds: float | None
    resident_bytes: float | None = None
    threads: int | None = None

    @property
    def key(self) -> Key:
        return self.pid, self.started


class ResourceUse(NamedTuple):
    cpu_seconds: float | None = None
    resident_bytes: float | None = None
    threads: int | None = None
    """Of the main process alone."""


class RankUse:
    """Sums the resource use of the processes of each rank.

    CPU time never decreases: that of a data loader that has ended still counts. Memory that several
    processes share is counted for each of them.
    """

    def __init__(self) -> None:
        self._known: dict[Key, float] = {}
        self._spent: dict[int, float] = {}
        self.ranks: dict[int, ResourceUse] = {}

    def update(self, found: Mapping[int, Sequence[NodeProcess]]) -> None:
        self.ranks = {rank: self._use(rank, every) for rank, every in found.items()}
        there = {each.key for every in found.values() for each in every}
        self._known = {key: spent for key, spent in self._known.items() if key in there}

    def _use(self, rank: int, every: Sequence[NodeProcess]) -> ResourceUse:
        for each in every:
            if each.cpu_seconds is None:
                continue
            more = each.cpu_seconds - self._known.get(each.key, 0.0)
            self._known[each.key] = each.cpu_seconds
            self._spent[rank] = self._spent.get(rank, 0.0) + max(more, 0.0)
        held = [each.resident_bytes for each in every if each.resident_bytes is not None]
        return ResourceUse(self._spent.get(rank), sum(held) if held else None, every[0].threads)


MAX_PROCESSES = 4096
WINDOW_SECONDS = 5.0
FLAT_SHARE = 0.02
"""Share of one core below which a process is idle. A rank that sleeps in a collective uses less
than 0.01 with its probe, torch's watchdogs and a metrics client; one that works or spins uses most
of a core."""
_MAX_SAMPLES = 64
_GONE = frozenset({"Z", "X", "x"})
_STOPPED = "T"  # by a signal
_TRACED = "t"  # by a debugger
_WORKER_SHARE = 0.1
"""Least CPU time of a worker, as a share of the busiest process: shells, launchers and monitors use
less."""


_GOES_ON = Sign(SignSource.PROCESS, SignState.UNKNOWN, None, "the command is no longer stopped")


class _Moment(NamedTuple):
    monotonic: float
    cpu_seconds: dict[Key, float]


class NodeProcesses:
    def __init__(
        self, folder: str, stream: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._volume = folder
        self._file = NodeFile(os.path.join(folder, NODE_FOLDER, NODE_PROCESSES), clock)
        self._stream = stream
        self._moments: deque[_Moment] = deque(maxlen=_MAX_SAMPLES)
        self._ranks: dict[int, Key] = {}
        self._living: set[Key] = set()
        self._probed: set[int] = set()
        """Ranks whose main process is known from the probe."""
        self._odd: dict[int | None, SignState] = {}
        """Abnormal state last reported for a rank, or for the whole command (None)."""
        self._use = RankUse()

    @property
    def use(self) -> dict[int, ResourceUse]:
        return self._use.ranks

    @property
    def ranks(self) -> dict[int, int]:
        return {pid: rank for rank, (pid, _) in self._ranks.items()}

    def read(self) -> Reading[tuple[Observed, ...]]:
        match self._file.read():
            case Ok(sample):
                if not sample.is_new:
                    return Ok(())
                found = self._with_probe(_processes(sample.body))
                signs = tuple(self._signs(found, sample.monotonic))
                return Ok(tuple(Observed(sample.at, self._stream, sign) for sign in signs))
            case other:
                return other

    def _with_probe(self, found: list[NodeProcess]) -> list[NodeProcess]:
        named = read_rank_pids(self._volume)
        self._probed.update(named[each.key] for each in found if each.key in named)
        return [
            each._replace(rank=named[each.key], is_rank=True)
            if each.key in named
            else each._replace(is_rank=each.is_rank and each.rank not in self._probed)
            for each in found
        ]

    def _signs(self, found: list[NodeProcess], monotonic: float) -> Iterator[Sign]:
        living = {each.key for each in found if each.state not in _GONE}
        if not living:
            return  # the command has ended
        if not living & self._living:
            self._forget()  # another command: none of its ranks has died
        self._living = living
        alive = _main_processes(found)
        is_held = all(each.state in (_STOPPED, _TRACED) for each in found if each.key in living)
        if is_held or not (alive or self._ranks):
            yield from self._command(found, is_held=is_held)
        elif self._odd.pop(None, None) is not None:
            yield _GOES_ON
        yield from self._states(alive, is_held=is_held)
        yield from self._deaths(alive)
        self._ranks.update((rank, each.key) for rank, each in alive.items())
        below = _descendants(found)
        self._use.update({rank: (one, *below.get(one.pid, ())) for rank, one in alive.items()})
        yield from self._cpu(found, alive, below, monotonic)

    def _command(self, found: list[NodeProcess], *, is_held: bool) -> Iterator[Sign]:
        """Report a stopped command at each sample, and its recovery once."""
        workers = _workers(found)
        traced = next((each for each in workers if each.state == _TRACED), None)
        stopped = next((each for each in workers if each.state == _STOPPED), None)
        one = traced or stopped
        if one is None:
            if self._odd.pop(None, None) is not None:
                yield _GOES_ON
            return
        if traced is not None:
            state, words = SignState.TRACED, "a debugger has stopped"
        elif is_held:
            state, words = SignState.SUSPENDED, "a signal has stopped every process (state T), as"
        else:
            state, words = SignState.STOPPED, "a signal has stopped (state T)"
        self._odd[None] = state
        yield Sign(SignSource.PROCESS, state, None, f"{words} {one.name} (pid {one.pid})")

    def _forget(self) -> None:
        self._ranks.clear()
        self._probed.clear()
        self._odd.clear()
        self._moments.clear()
        self._use = RankUse()

    def _states(self, alive: dict[int, NodeProcess], *, is_held: bool) -> Iterator[Sign]:
        """Report a stopped rank at each sample, and its recovery once.

        While the whole command is stopped, `_command` reports it instead.
        """
        for rank, process in sorted(alive.items()):
            if process.state == _TRACED and not is_held:
                self._odd[rank] = SignState.TRACED
                words = f"a debugger has stopped rank {rank} (pid {process.pid})"
                yield Sign(SignSource.PROCESS, SignState.TRACED, rank, words)
            elif process.state == _STOPPED and not is_held:
                self._odd[rank] = SignState.STOPPED
                words = f"rank {rank} (pid {process.pid}) is stopped by a signal (state T)"
                yield Sign(SignSource.PROCESS, SignState.STOPPED, rank, words)
            elif (odd := self._odd.pop(rank, None)) is not None:
                # A death is cleared only by MOVING, not by UNKNOWN.
                state = SignState.MOVING if odd is SignState.DEAD else SignState.UNKNOWN
                words = f"rank {rank} (pid {process.pid}) is alive"
                yield Sign(SignSource.PROCESS, state, rank, words)

    def _deaths(self, alive: dict[int, NodeProcess]) -> Iterator[Sign]:
        """Report a death once: it lasts until the rank has a process again."""
        for rank in sorted(self._ranks.keys() - alive.keys()):
            if self._odd.get(rank) is not SignState.DEAD:
                self._odd[rank] = SignState.DEAD
                words = f"the process of rank {rank} (pid {self._ranks[rank][0]}) is gone"
                yield Sign(SignSource.PROCESS, SignState.DEAD, rank, words)

    def _cpu(
        self,
        found: list[NodeProcess],
        alive: dict[int, NodeProcess],
        below: dict[int, list[NodeProcess]],
        monotonic: float,
    ) -> Iterator[Sign]:
        spent = {each.key: each.cpu_seconds for each in found if each.cpu_seconds is not None}
        before = self._window(monotonic)
        self._moments.append(_Moment(monotonic, spent))
        if before is None:
            return
        seconds = monotonic - before.monotonic
        if not alive and not self._ranks:
            keys = spent.keys() & before.cpu_seconds.keys()
            known = [each.key for each in _workers(found) if each.key in keys]
            used = [(spent[key] - before.cpu_seconds[key]) / seconds for key in known]
            if used:
                yield _cpu_sign(None, max(used), seconds)
        for rank, process in sorted(alive.items()):
            if process.key not in before.cpu_seconds or process.key not in spent:
                continue  # younger than the window
            shares = [
                (spent[each.key] - before.cpu_seconds.get(each.key, 0.0)) / seconds
                for each in (process, *below.get(process.pid, ()))
                if each.key in spent
            ]
            yield _cpu_sign(rank, max(shares), seconds)

    def _window(self, monotonic: float) -> _Moment | None:
        """Return the newest sample that is at least a window old, and drop those before it."""
        found = None
        while self._moments and monotonic - self._moments[0].monotonic >= WINDOW_SECONDS:
            found = self._moments.popleft()
        if found is not None:
            self._moments.appendleft(found)
        return found


def _cpu_sign(rank: int | None, share: float, seconds: float) -> Sign:
    state = SignState.FLAT if share < FLAT_SHARE else SignState.MOVING
    who = "the command" if rank is None else f"rank {rank}"
    words = f"{who} used {share:.0%} of a core in the last {seconds:.0f} s"
    return Sign(SignSource.CPU_TIME, state, rank, words)


def _main_processes(found: list[NodeProcess]) -> dict[int, NodeProcess]:
    """Return the main process of each living rank: the oldest, because children inherit RANK."""
    chosen: dict[int, NodeProcess] = {}
    for each in sorted(found, key=lambda process: process.started, reverse=True):
        if each.rank is not None and each.is_rank and each.state not in _GONE:
            chosen[each.rank] = each
    return chosen


def _workers(found: list[NodeProcess]) -> list[NodeProcess]:
    """Return the processes that did most of the work, busiest first, where no rank is known."""
    spent = [(each.cpu_seconds or 0.0, each) for each in found if each.state not in _GONE]
    least = _WORKER_SHARE * max((seconds for seconds, _ in spent), default=0.0)
    spent.sort(key=lambda one: one[0], reverse=True)
    return [each for seconds, each in spent if seconds >= least]


def _descendants(found: list[NodeProcess]) -> dict[int, list[NodeProcess]]:
    """Return, by the pid of a main process, all processes below it, up to the next rank."""
    mains = {each.pid for each in found if each.is_rank}
    parents = {each.pid: each.parent for each in found}
    below: dict[int, list[NodeProcess]] = {}
    for each in found:
        above, steps = each.parent, 0
        while above is not None and above not in mains and steps < len(found):
            above, steps = parents.get(above), steps + 1
        if above in mains and above is not None and not each.is_rank:
            below.setdefault(above, []).append(each)
    return below


def _processes(body: dict[str, Any]) -> list[NodeProcess]:
    found = []
    for each in objects(body.get("processes"), MAX_PROCESSES):
        pid = whole(each.get("pid"))
        if pid is not None:
            found.append(
                NodeProcess(
                    pid,
                    whole(each.get("ppid")),
                    whole(each.get("started")) or 0,
                    whole(each.get("rank")),
                    each.get("is_rank") is True,
                    text(each.get("name")) or "",
                    text(each.get("state")) or "",
                    number(each.get("cpu_seconds")),
                    number(each.get("rss_bytes")),
                    whole(each.get("threads")),
                )
            )
    return found
