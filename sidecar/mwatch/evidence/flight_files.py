# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The flight recordings among what a person named, or in a dump on the volume, read and compared.

Several sets of dumps may lie in one folder: one per request, or what an earlier stall left. The
newest is taken, together with those of other ranks of the same time (a folder per node).

Finds the dumps of torch's flight recorder in a folder, and reads one as bytes.

The rank stands only in a file's name, at its end: `rank-3.flight.pickle`, `nccl_trace_rank_3`, or
whatever prefix a person gave torch. So the first bytes decide whether a file is a dump. A search
is bounded in depth, entries and files, and says what it left out.

What the flight recorders of one dump say about each rank, as signs for the engine.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mwatch.flight_recorder.analysis import analyse, signs
from mwatch.flight_recorder.dump import merged, read_dump
from mwatch.model.collective import Analysis, Attendance, Dump
from mwatch.model.observation import Sign
from mwatch.model.reading import Absent, Failed, Ok, Reading
from mwatch.runtime.files import STDIN, shown
from mwatch_trainer import contract
from mwatch_trainer.checkpoint.safe_pickle import UnreadablePickle
from mwatch_trainer.contract import read_json

MAX_BYTES = 64 << 20
"""Of one file: torch's default buffer, with long stacks, is a hundredth of it."""
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
"""Keys of which every dump has one near its beginning, in either form."""
_STACKS = re.compile(r"rank-(\d{1,7})\.stacks\.txt")
_SKIPPED = re.compile(r"\..*|iter_\d+|release|ep\d+-ba\d+")


class DumpFile(NamedTuple):
    path: str
    folder: str
    label: str
    """What stands before the rank: files of one time share it, or have ranks of their own."""
    rank: int
    recorder: str
    """`gloo` where a rank left a second recording besides that of NCCL; else empty."""
    is_json: bool
    written_at: float


class FoundDumps(NamedTuple):
    files: tuple[DumpFile, ...]
    notes: tuple[str, ...]


def find_dumps(folder: str) -> Reading[FoundDumps]:
    """All dumps under `folder`; Absent where there is none."""
    search = _Search()
    try:
        entries = _entries(folder)
    except FileNotFoundError:
        return Absent(f"there is no folder {folder}")
    except OSError as error:
        return Failed(f"{folder}: may not be listed ({error.strerror})")
    search.walk(folder, entries, 0)
    if not search.files:
        return Absent("there is no dump of the flight recorder")
    return Ok(FoundDumps(tuple(search.files), tuple(search.notes)))


def as_dump(path: str) -> DumpFile | None:
    """The file by its name and first bytes; None where it is no dump, or cannot be read."""
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
    """Who answered the request that this folder is of, as far as the wrapper wrote it down."""
    try:
        names = [entry.name for entry in _entries(folder)]
    except OSError:
        return Attendance()
    answered = frozenset(int(found[1]) for found in map(_STACKS.fullmatch, names) if found)
    told = read_json(os.path.join(folder, "missing.json"))
    ranks = None if told is None else told.get("ranks")
    if not isinstance(ranks, list):
        return Attendance(answered)
    missing = (each.get("rank") for each in ranks if isinstance(each, dict))
    return Attendance(answered, frozenset(rank for rank in missing if isinstance(rank, int)))


def read_dump_file(file: DumpFile) -> Reading[bytes]:
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return Absent("it is gone")
    except OSError as error:
        return Failed(f"cannot be read ({error.strerror})")
    if len(data) > MAX_BYTES:
        return Failed(f"is larger than {MAX_BYTES >> 20} MiB")
    return Ok(data) if data else Failed("is empty")


class _Search:
    def __init__(self) -> None:
        self.files: list[DumpFile] = []
        self.notes: list[str] = []
        self._seen = 0

    def walk(self, folder: str, entries: list[os.DirEntry[str]], depth: int) -> None:
        for entry in entries:
            self._seen += 1
            if self._seen > MAX_ENTRIES or len(self.files) >= MAX_FILES:
                self._note(f"only the first {self._seen - 1} entries were looked at for dumps")
                return
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH and not _SKIPPED.fullmatch(entry.name):
                    self._descend(entry.path, depth + 1)
                continue
            found = as_dump(entry.path)
            if found is not None:
                self.files.append(found)

    def _descend(self, folder: str, depth: int) -> None:
        try:
            entries = _entries(folder)
        except OSError:
            return  # said by whoever looks for logs in it
        self.walk(folder, entries, depth)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        bounded: Iterator[os.DirEntry[str]] = (
            entry for _, entry in zip(range(MAX_ENTRIES + 1), found, strict=False)
        )
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
    """When the newest file was written: about when it was asked for, unless it was copied."""
    notes: tuple[str, ...]
    attendance: Attendance = Attendance()

    def analysis(self, world_size: int | None = None) -> Analysis:
        return analyse(self.dumps, world_size, self.attendance)


def gather(names: Sequence[str]) -> tuple[Flight | None, list[str]]:
    """The recordings among what was named, and the names that remain to be read as logs."""
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
            match find_dumps(name):
                case Ok(found):
                    files += found.files
                    notes += found.notes
    return (_read(files, notes) if files else None), others


def gather_folder(folder: str) -> Flight | None:
    flight, _ = gather([folder])
    return flight


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
    """Of all nodes together; asked in vain only where every folder tells."""
    told = [attendance(folder) for folder in folders]
    answered = frozenset[int]().union(*(each.answered for each in told))
    missing = [each.unanswered for each in told if each.unanswered is not None]
    if len(missing) < len(told):
        return Attendance(answered)
    return Attendance(answered, frozenset[int]().union(*missing))


def _bounded(notes: list[str]) -> tuple[str, ...]:
    if len(notes) <= _MAX_NOTES:
        return tuple(notes)
    return (*notes[:_MAX_NOTES], f"{len(notes) - _MAX_NOTES} more dumps have such faults")


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
    """The end of one of its recordings; by the file's date where that does not tell."""
    first = of_rank[min(of_rank)]
    dump = _dump(first, [])
    at = None if dump is None else dump.last_at
    return first[0].written_at if at is None else at


def _dump(files: list[DumpFile], notes: list[str]) -> Dump | None:
    """Of one rank: every recorder once, in the form that is the quicker to read."""
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
    match read_dump_file(file):
        case Ok(data):
            try:
                return read_dump(data, file.rank)
            except UnreadablePickle as error:
                problem = str(error)
        case reading:
            problem = getattr(reading, "error", None) or "is gone"
    notes.append(f"{shown(os.path.basename(file.path))}: {problem}")
    return None


_WAIT_SECONDS = 6.0
_LOOK_SECONDS = 0.2
"""A rank writes its stacks at once; its recording may take a few seconds longer."""


def signs_of(
    volume: Path, id: str, world_size: int | None = None, wait_seconds: float = _WAIT_SECONDS
) -> list[Sign]:
    """Of the dump `id` on the volume; nothing where there is none that can be read.

    `world_size`: of the job, where it is known; a volume may hold the dumps of one pod of many.
    """
    folder = str(volume / contract.DUMPS_FOLDER / id)
    began = time.monotonic()
    flight = gather_folder(folder)
    while time.monotonic() - began < _patience(folder, flight, wait_seconds):
        time.sleep(_LOOK_SECONDS)
        flight = gather_folder(folder)
    if flight is None or not flight.dumps:
        return []
    return signs(flight.analysis(world_size))


def _patience(folder: str, flight: Flight | None, wait_seconds: float) -> float:
    """How long to wait for who answered and has left no recording; where nobody has left one,
    none may ever come."""
    there = {} if flight is None else flight.dumps
    if attendance(folder).answered <= there.keys():
        return 0.0
    return wait_seconds if there else wait_seconds / 2
