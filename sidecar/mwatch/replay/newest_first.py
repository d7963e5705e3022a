# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Reverse logs with the newest line first, as Grafana, Loki and CloudWatch Insights list them.

A file whose times run backwards at both ends is reversed before it is read, and a response of
Loki's API is read as the log lines in it. The evidence in the report still names the original file
and line.
"""

from __future__ import annotations

import os
import re
import tempfile
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from mwatch import json_codec
from mwatch.errors import InputError
from mwatch.parse.lines.envelopes import SAMPLE, envelope_of
from mwatch.parse.lines.line import ANSI, stamp
from mwatch.replay.log_files import LogFile, find, keep_times, read_instead, start_of
from mwatch.replay.pod_prefixes import Origin, SplitLogs, without_encoding
from mwatch.report.run_report import RunReport
from mwatch.runtime.compressed import is_packed
from mwatch.runtime.files import STDIN, read_chunks

MAX_BYTES = 64 << 20
"""Size limit of a file to be reversed, because it is held in memory."""
_END = 1 << 16
_LEAST = 4  # fewest differing times needed to determine the order
_SHARE = 0.9
_MOST_STAMPED = 0.5
"""If at least this share of the lines has a time, a line without one belongs to the line above."""
_LOKI = re.compile(rb'\s*\{\s*"status"\s*:\s*"success"\s*,\s*"data"\s*:\s*\{\s*"resultType"')
_RAW = "`logcli query --forward -o raw QUERY > train.log`"


class TurnedLogs(NamedTuple):
    names: Sequence[str]
    origins: Mapping[str, Origin]
    """The original of each copy, by the names that the copy may have in evidence."""
    notes: Sequence[str] = ()

    def restored(self, report: RunReport) -> RunReport:
        """Return the report with the original files and line numbers."""
        if not self.origins:
            return report
        logs = SplitLogs(self.names, self.origins)
        report = logs.restored(report, {name: name for name in self.origins})
        return replace(report, notes=(*self.notes, *report.notes))


@contextmanager
def in_time_order(names: Sequence[str]) -> Iterator[TurnedLogs]:
    """Yield the names, with each log in another order replaced by a sorted copy.

    Raise InputError if a log is too large or cannot be written.
    """
    copies = [(file, copy) for file in find(names).files if (copy := _copy_of(file))]
    if not copies:
        yield TurnedLogs(names, {})
        return
    origins: dict[str, Origin] = {}
    with tempfile.TemporaryDirectory(prefix="mwatch-") as top:
        for number, (file, copy) in enumerate(copies):
            name = f"{os.path.splitext(os.path.basename(file.shown))[0]}.log"
            if os.path.exists(os.path.join(top, name)):
                name = f"{number + 1}-{name}"
            path = os.path.join(top, name)
            _write(path, copy.text, file)
            origins |= dict.fromkeys((name, path), Origin(file.shown, copy.numbers))
            read_instead(top, file, number)
        named = {file.path for file, _ in copies if file.is_named}
        others = (name for name in names if name not in named)
        yield TurnedLogs([top, *others], origins, [copy.note for _, copy in copies])


class _Copy(NamedTuple):
    text: bytes
    numbers: Sequence[int]
    """Number of each line in the original file."""
    note: str


def _copy_of(file: LogFile) -> _Copy | None:
    """Return a copy in time order; None if the file can be read as it is."""
    head = start_of(file)
    if _LOKI.match(head):
        return _lines_of_loki(_whole(file, "an answer of Loki's API"), file)
    lines = _plain(head[:_END])[:-1]
    times = _times(lines)
    if not _run_backwards(times) or not _run_backwards(_times(_plain(_tail(file))[1:]) or times):
        return None
    whole = _plain(_whole(file, "a log that begins with its last line"))
    text, numbers = _turned(whole, each_is_one=len(_stamped(lines)) < _MOST_STAMPED * len(lines))
    return _Copy(
        text, numbers, f"{file.shown}: it begins with its last line, so it was turned round"
    )


def _whole(file: LogFile, what: str) -> bytes:
    data = bytearray()
    for chunk in read_chunks(file.path, "diagnose"):
        data += chunk.data
        if len(data) > MAX_BYTES:
            raise InputError(
                f"{file.shown}: {what}, and larger than {MAX_BYTES >> 20} MiB; save it oldest line "
                f"first, such as by `tac FILE > train.log` or {_RAW}"
            )
    return bytes(data)


def _tail(file: LogFile) -> bytes:
    """Return the end of a plain file; empty if the end cannot be read separately."""
    try:
        if file.path == STDIN or is_packed(file.path):
            return b""
        with open(file.path, "rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - _END))
            return opened.read(_END)
    except OSError:
        return b""


def _plain(data: bytes) -> list[bytes]:
    """Return the lines, also of UTF-16 text."""
    return without_encoding(data, is_first=True).split(b"\n")


def _stamped(lines: Sequence[bytes]) -> list[tuple[int, str]]:
    """Return index and time of each line that has a time."""
    envelope = envelope_of([line for line in lines[: 2 * SAMPLE] if line.strip()][:SAMPLE])
    found = []
    for index, raw in enumerate(lines):
        line = envelope.line(ANSI.sub(b"", raw)) if envelope else raw
        at = stamp(line[:_LONGEST].decode("utf-8", "replace"))
        if at is not None:
            found.append((index, at))
    return found


_LONGEST = 1000


def _times(lines: Sequence[bytes]) -> list[str]:
    return [at for _, at in _stamped(lines)]


def _run_backwards(times: Sequence[str]) -> bool:
    """Whether most times go back; ISO 8601 times compare as text."""
    steps = [before > after for before, after in pairwise(times) if before != after]
    return len(steps) >= _LEAST and sum(steps) >= _SHARE * len(steps)


def _turned(lines: list[bytes], *, each_is_one: bool) -> tuple[bytes, Sequence[int]]:
    """Return the reversed text and the original number of each line; a header stays first."""
    if lines and not lines[-1]:
        lines.pop()
    starts = range(len(lines)) if each_is_one else [index for index, _ in _stamped(lines)]
    ends = [*starts[1:], len(lines)]
    order = [*range(starts[0])]
    for start, end in zip(reversed(starts), reversed(ends), strict=True):
        order += range(start, end)
    text = b"".join(lines[index].rstrip(b"\r") + b"\n" for index in order)
    return text, array("Q", (index + 1 for index in order))


def _lines_of_loki(answer: bytes, file: LogFile) -> _Copy:
    try:
        entries = sorted(_loki_entries(json_codec.decode(answer)), key=lambda entry: entry[0])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError) as error:
        raise InputError(
            f"{file.shown}: an answer of Loki's API without log lines; save them by {_RAW}"
        ) from error
    text = "".join(line for _, line in entries).encode("utf-8", "replace")
    note = f"{file.shown}: an answer of Loki's API, read as the lines in it"
    return _Copy(text, array("Q", [1]) * text.count(b"\n"), note)


def _loki_entries(answer: Any) -> Iterator[tuple[int, str]]:
    """Yield time and text of each entry; entries of equal time in the order of writing.

    Raise ValueError and others if the response is not in Loki's format.
    """
    streams = answer["data"]["result"]
    if answer["data"]["resultType"] != "streams" or not streams:
        raise ValueError
    for stream in streams:
        labels = stream["stream"]
        pod, container = labels.get("pod", ""), labels.get("container", "")
        prefix = f"[pod/{pod}/{container or '-'}] " if pod else ""
        values = stream["values"]
        is_backward = int(values[0][0]) >= int(values[-1][0])
        for value in reversed(values) if is_backward else values:
            at = int(value[0])
            when = datetime.fromtimestamp(at // 1000 / 1e6, UTC).isoformat()
            yield at, "".join(f"{prefix}{when} {line}\n" for line in value[1].splitlines() or [""])


def _write(path: str, text: bytes, file: LogFile) -> None:
    try:
        with open(path, "wb") as out:
            out.write(text)
        keep_times(path, file)
    except OSError as error:
        raise InputError(
            f"{file.shown}: cannot be turned round ({error.strerror}); save it oldest line first"
        ) from error
