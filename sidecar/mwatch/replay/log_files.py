# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Find the log files for the names that a user gave: files are taken as given, folders searched.

A search is bounded in depth, entries and files, and notes what it left out. It decides by name and
the first bytes of a file, so it may pick up a text that is not a trainer's log.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from mwatch.errors import InputError
from mwatch.runtime.compressed import MAGICS
from mwatch.runtime.files import STDIN, looks_binary, peek, shown
from mwatch_trainer import contract
from mwatch_trainer.checkpoint.listing import has_checkpoints
from mwatch_trainer.evidence.incidents import MANIFEST

MAX_FILES = 256
MAX_DEPTH = 6
MAX_ENTRIES = 20_000
_HEAD = 8192
_LOG = re.compile(
    r"[^.][^.]*|.+\.(?:log|txt|out|err)(?:[._-](?:\d[\w.-]*|old|bak|prev|previous))?", re.I
)
PACKED = re.compile(r"\.(?:gz|zst|xz|bz2)$")
_CHECKPOINT = re.compile(r"iter_[0-9]+|release|ep[0-9]+-ba[0-9]+|non_persistent")
_NO_LOG = frozenset(
    {
        "progress.txt", "latest_checkpointed_iteration.txt", "requirements.txt", "merges.txt",
        "vocab.txt", "LICENSE", "Makefile", "Dockerfile", "README", "README.txt",
    }
)  # fmt: skip
_STACKS = re.compile(r"rank-\d+\.(?:stacks|signal)\.txt")
"""Stacks written by the probe beside the flight-recorder dumps; `flight_files` reads both."""
_BUNDLE = frozenset({MANIFEST, contract.ATTEMPT})
"""Files in every evidence bundle of mwatch; its log is a copy of the end of the trainer's log."""

_READ_ALREADY = ".mwatch-read-"
"""Name prefix, at the top of a folder, of a link to a log that must not be read."""


class LogFile(NamedTuple):
    path: str
    shown: str
    """The name used in evidence, as valid text."""
    is_named: bool = False
    """Named by the user, not found in a folder."""


class FoundLogs(NamedTuple):
    files: tuple[LogFile, ...]
    checkpoint_folders: tuple[str, ...]
    notes: tuple[str, ...]


def start_of(file: LogFile) -> bytes:
    """Return the first bytes, decompressed; empty if it is neither a regular file nor stdin.

    Opening such a file later reports the reason.
    """
    if file.path != STDIN:
        try:
            is_regular = stat.S_ISREG(os.stat(file.path).st_mode)
        except (OSError, ValueError):
            return b""
        if not is_regular:
            return b""
    return peek(file.path)


def read_instead(top: str, file: LogFile, number: int) -> None:
    """Make `find` skip a log found in a folder, because copies of it are in `top`."""
    if not file.is_named:
        os.symlink(os.path.abspath(file.path), os.path.join(top, f"{_READ_ALREADY}{number}"))


def keep_times(copy: str, file: LogFile) -> None:
    """Give a copy the times of the log, so that both have the same age."""
    if file.path != STDIN:
        status = os.stat(file.path)
        os.utime(copy, (status.st_atime, status.st_mtime))


def find(names: Sequence[str], max_files: int = MAX_FILES) -> FoundLogs:
    """Find the log files; InputError if a name does not exist, but not for an empty folder."""
    search = _Search(max_files)
    for name in names:
        if name == STDIN:
            search.add(LogFile(STDIN, "stdin", True), None)
        elif os.path.isdir(name):
            search.look_through(name)
        else:
            search.add(LogFile(name, shown(name), True), _identity(name))
    search.notes += search.closing_notes()
    return FoundLogs(tuple(search.files), tuple(search.checkpoint_folders), tuple(search.notes))


class _Search:
    def __init__(self, max_files: int) -> None:
        self._max_files = max_files
        self.files: list[LogFile] = []
        self.checkpoint_folders: list[str] = []
        self.notes: list[str] = []
        self._known: set[tuple[int, int]] = set()
        self._names: set[str] = set()
        self._logs = 0
        self._entries = 0
        self._left_out = 0
        self._copies: list[tuple[os.DirEntry[str], str]] = []
        """Log copies in evidence bundles, read only if the log itself is missing."""

    def add(self, file: LogFile, identity: tuple[int, int] | None) -> None:
        """Add a file once, even if it has several names."""
        self._logs += 1
        if identity is None or identity not in self._known:
            if file.shown in self._names:  # in another of the folders
                file = file._replace(shown=shown(file.path))
            self._names.add(file.shown)
            self.files.append(file)
        if identity is not None:
            self._known.add(identity)

    def look_through(self, top: str) -> None:
        before = self._logs
        try:
            entries = _entries(top)
        except OSError as error:
            fix = "check its mode and owner"
            raise InputError(f"cannot list {shown(top)}: {error.strerror}; {fix}") from error
        if not entries:
            self.notes.append(f"{shown(top)}: the folder is empty")
            return
        self._walk(top, entries, "", 0)
        if self._logs == before:
            for entry, name in self._copies:
                self._consider(entry, name)
        self._copies.clear()
        if self._logs == before:
            self.notes.append(f"{shown(top)}: no log file was found in it")

    def _walk(self, folder: str, entries: list[os.DirEntry[str]], inside: str, depth: int) -> None:
        with suppress(OSError):
            if has_checkpoints(folder):
                self.checkpoint_folders.append(folder)
        is_bundle = depth > 0 and {entry.name for entry in entries} >= _BUNDLE
        for entry in entries:
            self._entries += 1
            if self._entries > MAX_ENTRIES:
                return
            name = f"{inside}{entry.name}"
            if entry.name.startswith(_READ_ALREADY) and not depth:
                self._skip(entry)
            elif entry.is_dir(follow_symlinks=False):
                is_skipped = entry.name.startswith(".") or _CHECKPOINT.fullmatch(entry.name)
                if not is_skipped and depth < MAX_DEPTH:
                    self._descend(entry.path, f"{name}/", depth + 1)
            elif is_bundle:
                self._copies.append((entry, name))
            else:
                self._consider(entry, name)

    def _skip(self, link: os.DirEntry[str]) -> None:
        if (identity := _identity(link.path)) is not None:
            self._known.add(identity)

    def _descend(self, folder: str, inside: str, depth: int) -> None:
        try:
            entries = _entries(folder)
        except OSError as error:
            self.notes.append(f"cannot list {shown(inside)}: {error.strerror}")
            return
        self._walk(folder, entries, inside, depth)

    def _consider(self, entry: os.DirEntry[str], name: str) -> None:
        text = shown(name)
        is_packed = PACKED.search(entry.name) is not None
        is_other = entry.name in _NO_LOG or _STACKS.fullmatch(entry.name)
        if not is_packed and (is_other or not _LOG.fullmatch(entry.name)):
            return
        try:
            status = os.stat(entry.path)
            head = _head(entry.path) if stat.S_ISREG(status.st_mode) else b""
        except OSError as error:
            self.notes.append(f"cannot read {text}: {error.strerror}")
            return
        is_log = (
            head.startswith(MAGICS) and is_packed and _LOG.fullmatch(PACKED.sub("", entry.name))
        )
        if is_log or (
            not is_packed and head and not looks_binary(head) and not head.startswith(b"\x80")
        ):
            if len(self.files) >= self._max_files:
                self._left_out += 1
            else:
                self.add(LogFile(entry.path, text), (status.st_dev, status.st_ino))

    def closing_notes(self) -> Iterator[str]:
        if self._left_out:
            yield f"{self._left_out} more log files were not read: {self._max_files} is the limit"
        if self._entries > MAX_ENTRIES:
            yield f"only the first {MAX_ENTRIES} entries of the folder were read"


def _entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        return sorted(islice(found, MAX_ENTRIES + 1), key=lambda entry: entry.name)


def _identity(name: str) -> tuple[int, int] | None:
    """Return device and inode; None if unknown: opening the file then reports the reason."""
    try:
        status = os.stat(name)
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino)


def _head(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(_HEAD)
