# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Dumps of every rank on request, within a time and size limit: stacks and flight recorders.

A request file makes the probes write `dumps/ID/rank-N.*`. A rank that does not answer in time holds
its GIL or is stopped: it is sent its dump signal, which works without the GIL. Ranks that still do
not answer are listed in `missing.json`. `processes.json` has what /proc shows of all processes,
`environment.json` their arguments and environment at the start, scrubbed, and `sources.json` the
source lines of the innermost calls, because C functions such as `time.sleep` are not on a Python
stack.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import threading
import time
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from mwatch_trainer import contract
from mwatch_trainer.probe import record_file
from mwatch_trainer.probe.dump import DUMP_BYTES, UNFINISHED, stacks_name
from mwatch_trainer.probe.record_file import ProbeRecord
from mwatch_trainer.processes import proc as processes
from mwatch_trainer.processes.proc import Process, Tree, catches, facts_of
from mwatch_trainer.scrub.known_good import scrubbed, scrubbed_environment
from mwatch_trainer.scrub.scrubber import Scrubber

MAX_DUMPS = 8
OLDER_BYTES = 64 << 20
RECORDER_BYTES = 64 << 20
RECORDER = "recorder"  # the folder of torch's own dumps
SOURCES = "sources.json"
MAX_READ_BYTES = 1 << 18
MAX_BYTES = 1 << 20
MAX_PROCESSES = 256
_MAX_ARGUMENTS = 2048


def environments(
    processes: Sequence[Process], patterns: Sequence[str], proc: str = "/proc"
) -> dict[str, Any]:
    """Describe how the trainer's processes were started, parents first, up to a size limit.

    The first process's environment is given in full, for the others only the differences.
    """
    first: dict[str, str] | None = None
    described: list[dict[str, Any]] = []
    size = 0
    for process in processes[:MAX_PROCESSES]:
        size += len(json.dumps(described[-1:]))
        if size > MAX_BYTES:
            break
        environ = _environment(process.pid, proc)
        about: dict[str, Any] = {
            "pid": process.pid, "name": process.name,
            "argv": _arguments(process.pid, patterns, proc),
        }  # fmt: skip
        if not environ:
            described.append({**about, "why": "its environment cannot be read"})
        elif first is None:
            first = environ
            described.append({**about, "environment": "as above"})
        else:
            described.append({**about, "differs": _difference(first, environ, patterns)})
    return {
        "environment": scrubbed_environment(first or {}, Scrubber(patterns)),
        "processes": described,
        "left_out": len(processes) - len(described),
    }


def _difference(
    first: Mapping[str, str], other: Mapping[str, str], patterns: Sequence[str]
) -> dict[str, str | None]:
    """Return the differing variables; None: not set in `other`. Only these are scrubbed, because
    scrubbing is slow."""
    changed = {name: value for name, value in other.items() if first.get(name) != value}
    found: dict[str, str | None] = {}
    found.update(scrubbed_environment(changed, Scrubber(patterns)))
    gone = {name: "" for name in first if name not in other}
    found.update((name, None) for name in scrubbed_environment(gone, Scrubber(patterns)))
    return found


def _environment(pid: int, proc: str) -> dict[str, str]:
    pairs = (each.partition("=") for each in _nul_separated(f"{proc}/{pid}/environ"))
    return {name: value for name, equals, value in pairs if equals and name}


def _arguments(pid: int, patterns: Sequence[str], proc: str) -> list[str]:
    arguments = _nul_separated(f"{proc}/{pid}/cmdline")[:_MAX_ARGUMENTS]
    return scrubbed(arguments, Scrubber(patterns))


def _nul_separated(path: str) -> list[str]:
    data = contract.read_bytes(path, MAX_READ_BYTES + 1) or b""
    # The last item may be cut off, and half a secret is not recognized as one.
    return [each.decode("utf-8", "replace") for each in data.split(b"\0")[:-1]]


_FRAME = re.compile(r'  File "([^"\n]{1,1000})", line (\d{1,7}) in ')
_SOURCE_FRAMES = 32
_MAX_SOURCES = 512
_SOURCE_BYTES = 4 << 20
_SOURCE_SECONDS = 1.0


def source_lines(texts: Iterable[str], patterns: Sequence[str] = ()) -> dict[str, str]:
    """Return the source lines of the innermost frames in these stacks, by `FILE:LINE`, scrubbed."""
    wanted: dict[str, set[int]] = {}
    count = 0
    for text in texts:
        for thread in text.split("hread 0x")[1:]:
            for file, line in _FRAME.findall(thread)[:_SOURCE_FRAMES]:
                lines = wanted.setdefault(file, set())
                if count < _MAX_SOURCES and int(line) not in lines:
                    count += 1
                    lines.add(int(line))
    scrubber = Scrubber(patterns)
    found: dict[str, str] = {}
    for file, numbers in wanted.items():
        if not os.path.isfile(file):
            continue
        source = (contract.read_bytes(file, _SOURCE_BYTES) or b"").split(b"\n")
        for number in numbers:
            if 0 < number <= len(source):
                text = source[number - 1].decode("utf-8", "replace").strip()
                found[f"{file}:{number}"] = scrubber.text(text[:500])
    return found


_MAX_RANKS = 512
_SIGNAL_SECONDS = 2.0
_LOOK_SECONDS = 0.05
_STABLE_LOOKS = 8
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", re.ASCII)
_STOPPED = ("T", "t")


class BadName(ValueError):
    pass


class _Rank(NamedTuple):
    record: ProbeRecord
    state: str | None  # state of its process; None: ended

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
        """`patterns`: the user's own secrets."""
        self._directory = directory
        self._folder = os.path.join(directory, contract.DUMPS_FOLDER)
        self._quota = DumpQuota(self._folder)
        self._tree, self._proc, self._patterns = tree, proc, patterns
        self._one_at_a_time = threading.Lock()

    def take(self, name: str, seconds: float) -> dict[str, Any]:
        """Take a dump; return its folder and which ranks answered. Raises OSError and BadName."""
        name = name or time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        if not _ID.fullmatch(name) or name == RECORDER:
            raise BadName(f"{name!r} is not a name for a dump")
        with self._one_at_a_time:
            return self._take(name, seconds)

    def _take(self, name: str, seconds: float) -> dict[str, Any]:
        folder = os.path.join(self._folder, name)
        self._quota.make_room(name)
        os.makedirs(folder, exist_ok=True)
        ranks = self._ranks()
        request = os.path.join(self._folder, contract.DUMP_REQUEST)
        contract.write_json(request, {"id": name, "asked_at": time.time()})
        able = {number for number, rank in ranks.items() if rank.can_answer}
        _wait(lambda: able <= self._finished(folder, able), seconds)
        silent = able - self._answered(folder, able)
        by_signal = self._signal({number: ranks[number].record for number in silent}, folder)
        self._write_processes(folder)
        self._write_sources(folder, self._answered(folder, able))
        cut = self._quota.trim(name)
        missing = [
            {"rank": number, "why": rank.why}
            for number, rank in sorted(ranks.items())
            if number not in self._answered(folder, able)
        ]
        document = {"ranks": missing, "too_large": cut[:_MAX_RANKS]}
        contract.write_json(os.path.join(folder, "missing.json"), document)
        answered = sorted(self._answered(folder, able))
        return {
            "id": name,
            "folder": folder,
            "ranks": answered,
            "by_signal": sorted(by_signal),
            "missing": missing,
        }

    def _ranks(self) -> dict[int, _Rank]:
        """Read this attempt's probe records; a record of a process not below us is outdated."""
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
        """Return the ranks whose dump is complete: the flight recorder takes longer than stacks."""
        answered = self._answered(folder, ranks)
        names = set(_listed(folder))
        return {number for number in answered if f"rank-{number}.{UNFINISHED}" not in names}

    def _signal(self, silent: dict[int, ProbeRecord], folder: str) -> set[int]:
        """Signal silent ranks; copy their stacks to `folder` and return those that answered."""
        sizes: dict[int, int] = {}
        for number, record in silent.items():
            is_same = processes.is_alive(record.pid, record.started, self._proc)
            if not is_same or not catches(record.pid, record.dump_signal, self._proc):
                continue
            sizes[number] = _size(self._signal_path(number))
            with contextlib.suppress(OSError):
                os.kill(record.pid, record.dump_signal)
        if not sizes:
            return set()
        _wait(lambda: all(_size(self._signal_path(each)) > sizes[each] for each in sizes),
              _SIGNAL_SECONDS)  # fmt: skip
        self._wait_until_written(sizes)
        came = {each for each in sizes if _size(self._signal_path(each)) > sizes[each]}
        for number in came:
            target = os.path.join(folder, f"rank-{number}.stacks.txt")
            _copy_tail(self._signal_path(number), sizes[number], target)
        return came

    def _wait_until_written(self, ranks: Iterable[int]) -> None:
        """Wait until the files stop growing: they are written line by line, with pauses."""
        seen: list[int] = []
        looks = 0

        def is_stable() -> bool:
            nonlocal seen, looks
            before, seen = seen, [_size(self._signal_path(each)) for each in ranks]
            looks = looks + 1 if seen == before else 0
            return looks >= _STABLE_LOOKS

        _wait(is_stable, _SIGNAL_SECONDS)

    def _signal_path(self, rank: int) -> str:
        return os.path.join(self._folder, stacks_name(rank))

    def _write_processes(self, folder: str) -> None:
        alive = self._tree.processes()[: processes.MAX_PROCESSES]
        document = {"at": time.time(), "processes": [facts_of(each, self._proc) for each in alive]}
        contract.write_json(os.path.join(folder, "processes.json"), document)
        environment = environments(alive, self._patterns, self._proc)
        contract.write_json(os.path.join(folder, "environment.json"), environment)

    def _write_sources(self, folder: str, ranks: Iterable[int]) -> None:
        """Read sources in a thread: the storage they are on may hang."""

        def work() -> None:
            paths = [os.path.join(folder, f"rank-{each}.stacks.txt") for each in ranks]
            texts = (
                (contract.read_bytes(each) or b"").decode("utf-8", "replace") for each in paths
            )
            with contextlib.suppress(OSError):
                lines = source_lines(texts, self._patterns)
                contract.write_json(os.path.join(folder, SOURCES), {"lines": lines})

        thread = threading.Thread(target=work, name="mwatch-sources", daemon=True)
        thread.start()
        thread.join(_SOURCE_SECONDS)


def _wait(is_done: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not is_done() and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)


def _record(path: str) -> ProbeRecord | None:
    for _ in range(5):  # retry: a record is torn while it is being written
        record = record_file.unpack(contract.read_bytes(path, record_file.SIZE) or b"")
        if record is not None:
            return record
    return None


def _copy_tail(source: str, start: int, target: str) -> None:
    with contextlib.suppress(OSError):
        with open(source, "rb") as file:
            file.seek(start)
            data = file.read(1 << 20)
        with open(target, "wb") as file:
            file.write(b"# by the dump signal: the probe did not answer\n" + data)


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


class DumpQuota:
    """Limits the size of dumps on the volume: a pod that exceeds its volume limit is evicted.

    The oldest dumps are removed before a new one is taken. A dump that is too large loses its
    largest flight recorders, then its largest files. Dumps that torch writes itself are limited
    too.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def make_room(self, name: str) -> None:
        """Remove old dumps before the dump `name` is taken."""
        kept = [each for each in self._by_age() if each != name]
        sizes = {each: sum(_sizes(os.path.join(self._folder, each)).values()) for each in kept}
        while kept and (len(kept) >= MAX_DUMPS or sum(sizes[each] for each in kept) > OLDER_BYTES):
            shutil.rmtree(os.path.join(self._folder, kept.pop(0)), ignore_errors=True)
        self.trim_recorder()

    def trim(self, name: str) -> list[str]:
        """Remove files of a dump that is too large; return their names."""
        folder = os.path.join(self._folder, name)
        sizes = _sizes(folder)
        by_worth = sorted(sizes, key=lambda each: (each.endswith(".pickle"), sizes[each]))
        return _remove_from_the_end(folder, by_worth, sizes, DUMP_BYTES)

    def trim_recorder(self) -> None:
        folder = os.path.join(self._folder, RECORDER)
        sizes = _sizes(folder)
        newest_first = sorted(sizes, key=lambda each: -_mtime(os.path.join(folder, each)))
        _remove_from_the_end(folder, newest_first, sizes, RECORDER_BYTES)

    def _by_age(self) -> list[str]:
        paths = {each: os.path.join(self._folder, each) for each in _listed(self._folder)}
        folders = [each for each in paths if os.path.isdir(paths[each]) and each != RECORDER]
        return sorted(folders, key=lambda each: _mtime(paths[each]))


def _remove_from_the_end(
    folder: str, names: list[str], sizes: dict[str, int], most: int
) -> list[str]:
    total = sum(sizes.values())
    gone: list[str] = []
    for name in reversed(names):
        if total <= most:
            break
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
            gone.append(name)
            total -= sizes[name]
    return gone


def _sizes(folder: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in _listed(folder):
        with contextlib.suppress(OSError):
            status = os.lstat(os.path.join(folder, name))
            if not stat.S_ISDIR(status.st_mode):
                found[name] = status.st_size
    return found


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
