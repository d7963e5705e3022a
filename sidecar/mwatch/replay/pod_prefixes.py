# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Split a log of several pods, as `kubectl logs -l … --prefix` prints it, into a file per pod.

kubectl prints one pod after another, so the clock of the original log goes back at each pod. Such a
log is split however it was given: by name, in a folder or an archive, compressed, or in UTF-16 as
PowerShell writes it. The evidence in the report still names the original log and line.
"""

from __future__ import annotations

import os
import re
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from mwatch.errors import InputError
from mwatch.model.finding import Evidence
from mwatch.replay.log_files import LogFile, find, keep_times, read_instead, start_of
from mwatch.replay.quotes import with_evidence
from mwatch.report.run_report import RunReport
from mwatch.runtime.files import read_chunks

MAX_STREAMS = 256
_PREFIX = re.compile(rb"\[pod/([a-z0-9][a-z0-9.-]{0,252})/([a-z0-9-]{1,63})\] ")
_SHARE = 0.8  # of the first lines must have a prefix; users paste other text around them
_BUFFER = 1 << 18
_BYTE_ORDER_MARK = re.compile(rb"\xef\xbb\xbf|\xff\xfe|\xfe\xff")

_Key = tuple[str, str]  # pod and container


class Origin(NamedTuple):
    file: str  # display name of the original log
    numbers: Sequence[int]  # line numbers in the original log


class SplitLogs(NamedTuple):
    names: Sequence[str]
    origins: Mapping[str, Origin]
    """The original log of each pod's file, by the path of that file."""
    notes: Sequence[str] = ()
    """What could not be read, one text each."""

    def restored(self, report: RunReport, paths: Mapping[str, str]) -> RunReport:
        """Return the report with the original files and line numbers.

        `paths`: path of each file, by its name in evidence.
        """
        origins = {name: self.origins[path] for name, path in paths.items() if path in self.origins}
        if not origins:
            return report
        report = replace(report, notes=(*report.notes, *self.notes))

        def number(file: str, line: int | None) -> int | None:
            numbers = origins[file].numbers
            return numbers[line - 1] if line is not None and 0 < line <= len(numbers) else None

        def locate(each: Evidence) -> Evidence:
            if each.file is None or each.file not in origins:
                return each
            return replace(each, file=origins[each.file].file, line=number(each.file, each.line))

        ends = tuple(
            replace(each, first=number(each.file, each.first)) if each.file in origins else each
            for each in report.log_ends
        )
        files = [origins[file].file if file in origins else file for file in report.files]
        report = replace(report, files=tuple(dict.fromkeys(files)), log_ends=ends)
        return with_evidence(report, lambda evidence: tuple(map(locate, evidence)))


@contextmanager
def split_by_pod(names: Sequence[str]) -> Iterator[SplitLogs]:
    """Yield the names, with each log of several pods replaced by a temporary folder.

    Raise InputError if a log cannot be split.
    """
    files = find(names).files
    split = [file for file in files if _is_prefixed(start_of(file))]
    if not split:
        yield SplitLogs(names, {})
        return
    origins: dict[str, Origin] = {}
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mwatch-") as top:
        for number, file in enumerate(split):
            folder = top if len(files) == 1 else _subfolder(top, file, number)
            splitter = _Splitter(folder)
            try:
                origins |= splitter.split(file)
                notes += splitter.notes
            except OSError as error:
                fix = "save the log of each pod to a file of its own"
                raise InputError(
                    f"{file.shown}: cannot be sorted by pod ({error.strerror}); {fix}"
                ) from error
            read_instead(top, file, number)
        named = {file.path for file in split if file.is_named}
        yield SplitLogs([top, *(name for name in names if name not in named)], origins, notes)


def _is_prefixed(head: bytes) -> bool:
    head = without_encoding(head, is_first=True)
    if b"[pod/" not in head:
        return False
    lines = [line for line in head[: head.rfind(b"\n") + 1].splitlines() if line.strip()]
    return sum(map(bool, map(_PREFIX.match, lines))) > _SHARE * len(lines)


def without_encoding(data: bytes, *, is_first: bool) -> bytes:
    """Remove the byte order mark and NUL bytes, which turns UTF-16 logs into ASCII."""
    if is_first and (mark := _BYTE_ORDER_MARK.match(data)):
        data = data[mark.end() :]
    return data.replace(b"\0", b"") if b"\0" in data else data


def _subfolder(top: str, file: LogFile, number: int) -> str:
    """Create a folder named after the log, because two logs may contain pods of the same name."""
    name = os.path.basename(file.path)
    is_usable = "." in name[1:] and not name.startswith(".") and name not in os.listdir(top)
    folder = os.path.join(top, name if is_usable else f"log-{number + 1}")
    os.mkdir(folder)
    return folder


class _Splitter:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._texts: dict[_Key, bytearray] = {}
        self._numbers: dict[_Key, array[int]] = {}
        self._written: dict[_Key, int] = {}
        self.notes: list[str] = []

    def split(self, file: LogFile) -> dict[str, Origin]:
        """Write a file per pod. Raise OSError, or InputError if the log cannot be read."""
        rest, number, is_first = b"", 0, True
        key: _Key = ("", "")
        for data in self._read(file):
            lines = (rest + without_encoding(data, is_first=is_first)).split(b"\n")
            is_first = False
            rest = lines.pop()
            for line in lines:
                number += 1
                key = self._add(line, number, key)
        if rest:
            self._add(rest, number + 1, key)
        for each in self._texts:
            self._write(each)
        return self._files(file)

    def _read(self, file: LogFile) -> Iterator[bytes]:
        """Yield the content; a damaged file is read up to the damage."""
        has_begun = False
        try:
            for chunk in read_chunks(file.path, "diagnose"):
                has_begun = True
                yield chunk.data
        except InputError as error:
            if not has_begun:
                raise
            self.notes.append(str(error))

    def _add(self, line: bytes, number: int, before: _Key) -> _Key:
        """Add a line to its pod; a line without a prefix belongs to the pod of the previous one."""
        found = _PREFIX.match(line)
        key = before if found is None else (found[1].decode(), found[2].decode())
        if key not in self._texts:
            if len(self._texts) >= MAX_STREAMS:
                raise InputError(
                    f"the log has lines of more than {MAX_STREAMS} containers; give fewer"
                )
            self._texts[key], self._numbers[key] = bytearray(), array("Q")
        text = self._texts[key]
        text += line if found is None else line[found.end() :]
        text += b"\n"
        self._numbers[key].append(number)
        if len(text) > _BUFFER:
            self._write(key)
        return key

    def _write(self, key: _Key) -> None:
        with open(self._path("~".join(key)), "ab") as file:
            file.write(self._texts[key])
        self._written[key] = self._written.get(key, 0) + len(self._texts[key])
        self._texts[key].clear()

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _files(self, file: LogFile) -> dict[str, Origin]:
        """Name the files after the pods; the container that printed most gets the pod's name."""
        found: dict[str, Origin] = {}
        for key in sorted(self._written, key=lambda each: -self._written[each]):
            path = self._path(f"{key[0] or 'other'}.log")
            if path in found:
                path = self._path(f"{key[0]}.{key[1]}.log")
            os.rename(self._path("~".join(key)), path)
            keep_times(path, file)
            found[path] = Origin(file.shown, self._numbers[key])
        return found
