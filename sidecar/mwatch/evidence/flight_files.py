# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Finds, reads and compares the dumps of torch's flight recorder in a folder.

Only the file name contains the rank, at its end: `rank-3.flight.pickle`, `nccl_trace_rank_3`, or
any prefix that the user configured in torch. So a file is recognized as a dump by its first bytes.
A folder may contain several sets of dumps: one per request, or from an earlier stall. The newest
set is used, together with dumps of other ranks from the same time (there is a folder per node).
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mwatch.flight_recorder.analysis import analyse, signs
from mwatch.flight_recorder.dump import merged, read_dump
from mwatch.model.collective import Analysis, Attendance, Dump
from mwatch.model.observation import Sign
from mwatch.runtime.files import STDIN, shown
from mwatch_trainer import contract
from mwatch_trainer.contract import read_json

MAX_BYTES = 64 << 20
"""Limit for one file: a hundred times torch's default buffer with long stacks."""
MAX_FILES = 16_384
MAX_DEPTH = 6
MAX_ENTRIES = 50_000
_HEAD = 1 << 16
_NAME = re.compile(
    r"(?P<label>.*?)(?P<rank>\d{1,7})(?:\.flight(?:[-_](?P<recorder>\w+))?)?"
    r"(?P<form>\.(?:pickle|pkl|json|bin|trace|dump))?",
    re.IGNORECASE,
)
_MARKS = (b"profiling_name", b"pg_config", b"pg_status")
"""Every dump has one of these keys near its start."""
_STACKS = re.compile(r"rank-(\d{1,7})\.stacks\.txt")
_SKIPPED = re.compile(r"\..*|iter_\d+|release|ep\d+-ba\d+")


class DumpFile(NamedTuple):
    path: str
    folder: str
    label: str
    """The name before the rank; it differs between sets of dumps."""
    rank: int
    recorder: str
    """`gloo` for the second recording of a rank, in addition to that of NCCL; else empty."""
    is_json: bool
    written_at: float


class FoundDumps(NamedTuple):
    files: tuple[DumpFile, ...]
    notes: tuple[str, ...]


def find_dumps(folder: str) -> FoundDumps:
    files: list[DumpFile] = []
    seen = 0
    folders = [(folder, 0)]
    while folders:
        path, depth = folders.pop()
        below = []
        for entry in _entries(path):
            seen += 1
            if seen > MAX_ENTRIES or len(files) >= MAX_FILES:
                note = f"only the first {seen - 1} entries were searched for dumps"
                return FoundDumps(tuple(files), (note,))
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH and not _SKIPPED.fullmatch(entry.name):
                    below.append((entry.path, depth + 1))
            elif (found := as_dump(entry.path)) is not None:
                files.append(found)
        folders += reversed(below)
    return FoundDumps(tuple(files), ())


def as_dump(path: str) -> DumpFile | None:
    """Recognize a dump by its name and first bytes; None if it is not one or is unreadable."""
    named = _NAME.fullmatch(os.path.basename(path))
    if named is None:
        return None
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or not _looks_like_one(path):
            return None
    except (OSError, ValueError):
        return None
    return DumpFile(
        path,
        os.path.dirname(path),
        named["label"],
        int(named["rank"]),
        (named["recorder"] or "").lower(),
        (named["form"] or "").lower() == ".json",
        status.st_mtime,
    )


def attendance(folder: str) -> Attendance:
    """Return which ranks answered the request, from the files of the dump in the folder."""
    names = [entry.name for entry in _entries(folder)]
    answered = frozenset(int(found[1]) for found in map(_STACKS.fullmatch, names) if found)
    written = read_json(os.path.join(folder, "missing.json"))
    ranks = None if written is None else written.get("ranks")
    if not isinstance(ranks, list):
        return Attendance(answered)
    missing = (each.get("rank") for each in ranks if isinstance(each, dict))
    return Attendance(answered, frozenset(rank for rank in missing if isinstance(rank, int)))


def read_dump_file(file: DumpFile) -> bytes:
    """Read a dump completely; OSError or ValueError if that is not possible."""
    descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"is larger than {MAX_BYTES >> 20} MiB")
    if not data:
        raise ValueError("is empty")
    return data


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """List a folder, sorted and bounded; nothing if it cannot be listed."""
    try:
        with os.scandir(folder) as found:
            bounded = [entry for _, entry in zip(range(MAX_ENTRIES + 1), found, strict=False)]
    except OSError:
        return []
    return sorted(bounded, key=lambda entry: entry.name)


def _looks_like_one(path: str) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        head = file.read(_HEAD)
    if not head.startswith(b"\x80") and head.lstrip()[:1] not in (b"{", b"["):
        return False
    return any(mark in head for mark in _MARKS)


_SAME_TIME_SECONDS = 900.0
_MAX_NOTES = 3

Set = dict[int, list[DumpFile]]
"""The files of each rank."""


class Flight(NamedTuple):
    dumps: dict[int, Dump]
    taken_at: float | None
    notes: tuple[str, ...]
    attendance: Attendance = Attendance()

    def analysis(self, world_size: int | None = None) -> Analysis:
        return analyse(self.dumps, world_size, self.attendance)


def gather(names: Sequence[str]) -> tuple[Flight | None, list[str]]:
    """Return the dumps among the files and folders in `names`, and the names to read as logs."""
    files: list[DumpFile] = []
    notes: list[str] = []
    others = []
    for name in names:
        one = None if name == STDIN or os.path.isdir(name) else as_dump(name)
        if one is not None:
            files.append(one)
            continue
        others.append(name)
        if name != STDIN and os.path.isdir(name):
            found = find_dumps(name)
            files += found.files
            notes += found.notes
    return (_read(files, notes) if files else None), others


def _read(files: Iterable[DumpFile], notes: list[str]) -> Flight | None:
    sets: dict[tuple[str, str], Set] = {}
    for file in files:
        of_rank = sets.setdefault((file.folder, file.label), {})
        of_rank.setdefault(file.rank, []).append(file)
    chosen = _of_one_time(list(sets.values()), notes)
    dumps = {}
    for rank, of_rank_files in sorted(chosen.items()):
        dump = _dump(of_rank_files, notes)
        if dump is not None:
            dumps[rank] = dump
    if not dumps:
        return Flight({}, None, tuple(notes[: _MAX_NOTES + 1])) if notes else None
    written = max(file.written_at for each in chosen.values() for file in each)
    folders = {file.folder for each in chosen.values() for file in each}
    return Flight(dumps, written, _bounded(notes), _attendance(folders))


def _attendance(folders: Iterable[str]) -> Attendance:
    """Merge the nodes' attendance; missing ranks are known only if every folder lists them."""
    found = [attendance(folder) for folder in folders]
    answered = frozenset[int]().union(*(each.answered for each in found))
    missing = [each.unanswered for each in found if each.unanswered is not None]
    if len(missing) < len(found):
        return Attendance(answered)
    return Attendance(answered, frozenset[int]().union(*missing))


def _bounded(notes: list[str]) -> tuple[str, ...]:
    if len(notes) <= _MAX_NOTES:
        return tuple(notes)
    return (*notes[:_MAX_NOTES], f"{len(notes) - _MAX_NOTES} more dumps have problems")


def _of_one_time(sets: list[Set], notes: list[str]) -> Set:
    if len(sets) == 1:
        return sets[0]
    moments = sorted(((_moment(each), place) for place, each in enumerate(sets)), reverse=True)
    newest = moments[0][0]
    chosen: Set = {}
    left_out = 0
    for moment, place in moments:
        is_of_others = chosen.keys().isdisjoint(sets[place])
        if is_of_others and newest - moment <= _SAME_TIME_SECONDS:
            chosen.update(sets[place])
        else:
            left_out += 1
    if left_out:
        notes.append(f"{left_out} older sets of flight-recorder dumps were left out")
    return chosen


def _moment(of_rank: Set) -> float:
    """Return the time of a set: the end of one of its recordings, else the file's time."""
    first = of_rank[min(of_rank)]
    dump = _dump(first, [])
    at = None if dump is None else dump.last_at
    return first[0].written_at if at is None else at


def _dump(files: list[DumpFile], notes: list[str]) -> Dump | None:
    """Read each recorder of a rank once, in the file format that is faster to read."""
    found: dict[str, Dump] = {}
    for file in sorted(files, key=lambda file: (file.recorder, not file.is_json)):
        if file.recorder not in found:
            dump = _one(file, notes)
            if dump is not None:
                found[file.recorder] = dump
    all_of_rank = list(found.values())
    if len(all_of_rank) < 2:
        return all_of_rank[0] if all_of_rank else None
    return merged(all_of_rank[0], all_of_rank[1])


def _one(file: DumpFile, notes: list[str]) -> Dump | None:
    try:
        return read_dump(read_dump_file(file), file.rank)
    except FileNotFoundError:
        problem = "is gone"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except ValueError as error:
        problem = str(error)
    notes.append(f"{shown(os.path.basename(file.path))}: {problem}")
    return None


_WAIT_SECONDS = 6.0
_POLL_SECONDS = 0.2
"""Interval to poll for recordings: a rank writes its stacks first, and its recording may take
some seconds longer."""


def signs_of(
    volume: Path, id: str, world_size: int | None = None, wait_seconds: float = _WAIT_SECONDS
) -> list[Sign]:
    """Analyse the dump `id` on the volume; empty if it cannot be read.

    `world_size` is that of the job; the volume may contain the dumps of only one of its pods.
    """
    folder = str(volume / contract.DUMPS_FOLDER / id)
    began = time.monotonic()
    flight = gather([folder])[0]
    while time.monotonic() - began < _patience(folder, flight, wait_seconds):
        time.sleep(_POLL_SECONDS)
        flight = gather([folder])[0]
    if flight is None or not flight.dumps:
        return []
    return signs(flight.analysis(world_size))


def _patience(folder: str, flight: Flight | None, wait_seconds: float) -> float:
    """Return how long to wait for ranks that answered but left no recording yet."""
    there = {} if flight is None else flight.dumps
    if attendance(folder).answered <= there.keys():
        return 0.0
    return wait_seconds if there else wait_seconds / 2
