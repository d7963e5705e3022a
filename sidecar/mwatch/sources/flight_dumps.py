# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Finds the dumps of torch's flight recorder in a folder, and reads one as bytes.

The rank stands only in a file's name, at its end: `rank-3.flight.pickle`, `nccl_trace_rank_3`, or
whatever prefix a person gave torch. So the first bytes decide whether a file is a dump. A search
is bounded in depth, entries and files, and says what it left out.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import NamedTuple

from mwatch.model.collective import Attendance
from mwatch.model.reading import Absent, Failed, Ok, Reading
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


class Found(NamedTuple):
    files: tuple[DumpFile, ...]
    notes: tuple[str, ...]


def find_dumps(folder: str) -> Reading[Found]:
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
    return Ok(Found(tuple(search.files), tuple(search.notes)))


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
