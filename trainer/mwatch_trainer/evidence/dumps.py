# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Evidence of every rank, on request and within a bound: stacks and flight recorders.

The probes are asked by a file and write `dumps/ID/rank-N.*`. A rank that does not answer in time
holds its GIL or is stopped: it gets its dump signal, which needs no GIL. Whoever still says nothing
is named in `missing.json`, with what /proc says of it. `environment.json` has the environment and
the arguments of the trainer, scrubbed.

With which environment and arguments the trainer was started, without its secrets.

Read from /proc: what a program has set for itself since is not in it. One environment in full, of
the first process; of every other only what differs, or a job of many ranks would repeat itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from mwatch_trainer import contract
from mwatch_trainer.probe import record_file
from mwatch_trainer.probe.dump import UNFINISHED
from mwatch_trainer.probe.dump_quota import RECORDER, DumpRoom
from mwatch_trainer.probe.dump_signal import stacks_name
from mwatch_trainer.probe.record_file import ProbeRecord
from mwatch_trainer.processes import proc as processes
from mwatch_trainer.processes.proc import Process, Tree, catches, facts_of
from mwatch_trainer.scrub.environment import scrubbed, scrubbed_environment
from mwatch_trainer.scrub.scrubber import Scrubber

MAX_READ_BYTES = 1 << 18
MAX_BYTES = 1 << 20
MAX_PROCESSES = 256
_MAX_WORDS = 2048


def environments(
    processes: Sequence[Process], patterns: Sequence[str], proc: str = "/proc"
) -> dict[str, Any]:
    """Of the trainer's processes, parents first; of the last ones nothing where it is too much."""
    first: dict[str, str] | None = None
    reported: list[dict[str, Any]] = []
    size = 0
    for process in processes[:MAX_PROCESSES]:
        size += len(json.dumps(reported[-1:]))
        if size > MAX_BYTES:
            break
        environ = _environment(process.pid, proc)
        about: dict[str, Any] = {
            "pid": process.pid, "name": process.name,
            "argv": _arguments(process.pid, patterns, proc),
        }  # fmt: skip
        if not environ:
            reported.append({**about, "why": "its environment cannot be read"})
        elif first is None:
            first = environ
            reported.append({**about, "environment": "as above"})
        else:
            reported.append({**about, "differs": _difference(first, environ, patterns)})
    return {
        "environment": scrubbed_environment(first or {}, Scrubber(patterns)),
        "processes": reported,
        "left_out": len(processes) - len(reported),
    }


def _difference(
    first: Mapping[str, str], other: Mapping[str, str], patterns: Sequence[str]
) -> dict[str, str | None]:
    """None: it is not set there. Only what differs is scrubbed, which is dear."""
    changed = {name: value for name, value in other.items() if first.get(name) != value}
    found: dict[str, str | None] = {}
    found.update(scrubbed_environment(changed, Scrubber(patterns)))
    gone = {name: "" for name in first if name not in other}
    found.update((name, None) for name in scrubbed_environment(gone, Scrubber(patterns)))
    return found


def _environment(pid: int, proc: str) -> dict[str, str]:
    pairs = (each.partition("=") for each in _words(f"{proc}/{pid}/environ"))
    return {name: value for name, equals, value in pairs if equals and name}


def _arguments(pid: int, patterns: Sequence[str], proc: str) -> list[str]:
    return scrubbed(_words(f"{proc}/{pid}/cmdline")[:_MAX_WORDS], Scrubber(patterns))


def _words(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_READ_BYTES + 1)
    except OSError:
        return []
    # The last one of what was cut is not whole: half a secret is not known as one.
    words = data.split(b"\0")[:-1]
    return [each.decode("utf-8", "replace") for each in words]


_MAX_RANKS = 512
_SIGNAL_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_LOOKS_AT_REST = 8
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", re.ASCII)
_STOPPED = ("T", "t")


class BadName(ValueError):
    pass


class _Rank(NamedTuple):
    record: ProbeRecord
    state: str | None
    """Of its process; None: it has ended."""

    @property
    def is_alive(self) -> bool:
        return self.state is not None

    @property
    def can_answer(self) -> bool:
        return self.is_alive and self.state not in _STOPPED

    @property
    def why(self) -> str:
        if not self.is_alive:
            return "its process has ended"
        return "no answer" if self.can_answer else "stopped by a signal (state T)"


class Dumps:
    def __init__(
        self, directory: str, tree: Tree, proc: str = "/proc", patterns: Sequence[str] = ()
    ) -> None:
        """`patterns`: secrets of the user's own."""
        self._directory = directory
        self._folder = os.path.join(directory, contract.DUMPS_FOLDER)
        self._room = DumpRoom(self._folder)
        self._tree, self._proc, self._patterns = tree, proc, patterns
        self._one_at_a_time = threading.Lock()

    def take(self, name: str, seconds: float) -> dict[str, Any]:
        """Which ranks answered, and where it lies. Raises OSError, and ValueError for the name."""
        name = name or time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        if not _ID.fullmatch(name) or name == RECORDER:
            raise BadName(f"{name!r} is not a name for a dump")
        with self._one_at_a_time:
            return self._take(name, seconds)

    def _take(self, name: str, seconds: float) -> dict[str, Any]:
        folder = os.path.join(self._folder, name)
        self._room.make(name)
        os.makedirs(folder, exist_ok=True)
        ranks = self._ranks()
        request = os.path.join(self._folder, contract.DUMP_REQUEST)
        contract.write_json(request, {"id": name, "asked_at": time.time()})
        able = {number for number, rank in ranks.items() if rank.can_answer}
        _wait(lambda: able <= self._finished(folder, able), seconds)
        silent = able - self._answered(folder, able)
        by_signal = self._signal({number: ranks[number].record for number in silent}, folder)
        self._write_processes(folder)
        cut = self._room.trim(name)
        missing = [
            {"rank": number, "why": rank.why}
            for number, rank in sorted(ranks.items())
            if number not in self._answered(folder, able)
        ]
        reported = {"ranks": missing, "too_large": cut[:_MAX_RANKS]}
        contract.write_json(os.path.join(folder, "missing.json"), reported)
        answered = sorted(self._answered(folder, able))
        return {
            "id": name,
            "folder": folder,
            "ranks": answered,
            "by_signal": sorted(by_signal),
            "missing": missing,
        }

    def _ranks(self) -> dict[int, _Rank]:
        """Of this attempt's probes; a record of a process that is not below us is an old one."""
        below = {(each.pid, each.started): each.state for each in self._tree.processes()}
        found: dict[int, _Rank] = {}
        folder = os.path.join(self._directory, contract.PROBE_FOLDER)
        for name in _listed(folder)[:_MAX_RANKS]:
            if not name.startswith(contract.PROBE_PREFIX):
                continue
            record = _record(os.path.join(folder, name))
            if record is not None:
                found[record.rank] = _Rank(record, below.get((record.pid, record.started)))
        newest = max((each.record.attempt for each in found.values()), default=0)
        return {
            number: each
            for number, each in found.items()
            if each.is_alive or each.record.attempt == newest
        }

    def _answered(self, folder: str, ranks: set[int]) -> set[int]:
        names = set(_listed(folder))
        return {number for number in ranks if f"rank-{number}.stacks.txt" in names}

    def _finished(self, folder: str, ranks: set[int]) -> set[int]:
        """Whose recorder is there too, where there is one: it takes longer than the stacks."""
        answered = self._answered(folder, ranks)
        names = set(_listed(folder))
        return {number for number in answered if f"rank-{number}.{UNFINISHED}" not in names}

    def _signal(self, silent: dict[int, ProbeRecord], folder: str) -> set[int]:
        """Those whose stacks came by the signal; they are put where the others' lie."""
        sizes: dict[int, int] = {}
        for number, record in silent.items():
            process = processes.read(record.pid, self._proc)
            is_same = process is not None and process.started == record.started
            if not is_same or not catches(record.pid, record.dump_signal, self._proc):
                continue
            sizes[number] = _size(self._signal_path(number))
            with contextlib.suppress(OSError):
                os.kill(record.pid, record.dump_signal)
        if not sizes:
            return set()
        _wait(lambda: all(_size(self._signal_path(each)) > sizes[each] for each in sizes),
              _SIGNAL_SECONDS)  # fmt: skip
        self._wait_for_rest(sizes)
        came = {each for each in sizes if _size(self._signal_path(each)) > sizes[each]}
        for number in came:
            target = os.path.join(folder, f"rank-{number}.stacks.txt")
            _copy_tail(self._signal_path(number), sizes[number], target)
        return came

    def _wait_for_rest(self, ranks: Iterable[int]) -> None:
        """They write line by line, and on a busy machine with pauses between."""
        seen: list[int] = []
        looks = 0

        def is_at_rest() -> bool:
            nonlocal seen, looks
            before, seen = seen, [_size(self._signal_path(each)) for each in ranks]
            looks = looks + 1 if seen == before else 0
            return looks >= _LOOKS_AT_REST

        _wait(is_at_rest, _SIGNAL_SECONDS)

    def _signal_path(self, rank: int) -> str:
        return os.path.join(self._folder, stacks_name(rank))

    def _write_processes(self, folder: str) -> None:
        alive = self._tree.processes()[: processes.MAX_PROCESSES]
        document = {"at": time.time(), "processes": [facts_of(each, self._proc) for each in alive]}
        contract.write_json(os.path.join(folder, "processes.json"), document)
        started = environments(alive, self._patterns, self._proc)
        contract.write_json(os.path.join(folder, "environment.json"), started)


def _wait(is_done: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not is_done() and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)


def _record(path: str) -> ProbeRecord | None:
    for _ in range(5):  # torn while it is being written
        try:
            with open(path, "rb") as file:
                record = record_file.unpack(file.read(record_file.SIZE))
        except OSError:
            return None
        if record is not None:
            return record
    return None


def _copy_tail(source: str, start: int, target: str) -> None:
    with contextlib.suppress(OSError):
        with open(source, "rb") as file:
            file.seek(start)
            data = file.read(1 << 20)
        with open(target, "wb") as file:
            file.write(b"# by its dump signal: the probe did not answer\n" + data)


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
