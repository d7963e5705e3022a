# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The flight recordings among what a person named, or in a dump on the volume, read and compared.

Several sets of dumps may lie in one folder: one per request, or what an earlier stall left. The
newest is taken, together with those of other ranks of the same time (a folder per node).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mwatch.app.inputs import STDIN, shown
from mwatch.model.collective import Analysis, Attendance, Dump
from mwatch.model.reading import Ok
from mwatch.parse.flight_analysis import analyse
from mwatch.parse.flight_pickle import UnreadableDump
from mwatch.parse.flight_recorder import merged, read_dump
from mwatch.sources.flight_dumps import DumpFile, as_dump, attendance, find_dumps, read_dump_file

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
            except UnreadableDump as error:
                problem = str(error)
        case reading:
            problem = getattr(reading, "error", None) or "is gone"
    notes.append(f"{shown(os.path.basename(file.path))}: {problem}")
    return None
