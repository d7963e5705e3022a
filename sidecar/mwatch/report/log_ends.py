# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Log excerpts for a page that is read without access to the logs: the end of each log, and the
lines up to each incident, which contain the traceback. Excerpts are scrubbed and bounded. A log
that cannot be read again is left out with a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from mwatch.errors import InputError
from mwatch.report.model import IncidentStory, LogEnd
from mwatch.report.run_report import RunReport
from mwatch.runtime.files import STDIN, read_chunks
from mwatch_trainer import contract
from mwatch_trainer.scrub.scrubber import Scrubber, scrub_text

MAX_LINES = 50
MAX_LOGS = 8
MAX_INCIDENTS = 16
_CHARACTERS = 400
_AFTER = 8
"""Lines to show after the last line of evidence, for the rest of a traceback."""
_SCRUBBED = "[scrubbed"
"""Start of the scrubber's marker. A log read from the cluster still has the text that the watcher
scrubbed from its evidence, so only the part before the marker can match."""
_QUOTE = 200
_LEAST_QUOTE = 12
"""Minimum characters to search for; a shorter text may match unrelated lines."""
_MAX_QUOTATION = 2000
_TAIL = 1 << 16
_CHUNK = 1 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
Find = Callable[[str], Path | None]


def ends(tails: dict[str, bytes], size: int) -> tuple[LogEnd, ...]:
    """Return the last lines of each log. `tails`: by name, its last `size` bytes or all of it."""
    found = []
    for name, data in islice(reversed(tails.items()), MAX_LOGS):
        whole = data.rstrip(b"\r\n").split(b"\n")
        is_cut = len(data) >= size and len(whole) > 1
        found.append(LogEnd(name, _clean(whole[is_cut:][-MAX_LINES:])))
    return tuple(reversed(found))


def of_replay(report: RunReport, paths: Mapping[str, str]) -> RunReport:
    """Add the lines up to each incident. `paths`: the log files, by their names in evidence."""
    files = {name: Path(path) for name, path in paths.items() if path != STDIN}
    return _with_incidents(report, files.get)


def of_run(report: RunReport, folder: Path) -> RunReport:
    """Add the log lines of a watched run; only files inside its folder are read."""
    volume = folder / "volume"

    def find(name: str) -> Path | None:
        for path in (folder / name, volume / name):
            if path.resolve().is_relative_to(folder.resolve()) and path.is_file():
                return path
        return None

    if not report.log_ends:
        report = replace(report, log_ends=of_log(find(contract.LOG)))
    return _with_incidents(report, find)


def of_logs(report: RunReport, logs: Mapping[str, list[bytes]], cut: Container[str]) -> RunReport:
    """Add lines of logs that were read from a cluster, keyed by their names in evidence.

    Lines of evidence are found by their text, because a sidecar numbers the lines of a different
    file. `cut`: logs whose middle was not read, so that their lines have no numbers.
    """
    tails = {name: b"\n".join(lines[-MAX_LINES:]) for name, lines in logs.items()}
    found = list(ends(tails, 1 << 62))
    for number, each in list(enumerate(report.incidents, 1))[-MAX_INCIDENTS:]:
        place = _quoted_place(each, logs)
        if place is None:
            continue
        name, last = place
        lines = logs[name]
        end = min(last + _AFTER, len(lines))
        begin = max(0, end - MAX_LINES)
        if begin < len(lines) - MAX_LINES:
            first = None if name in cut else begin + 1
            found.append(LogEnd(name, _clean(lines[begin:end]), first, number))
    return replace(report, log_ends=tuple(found))


def _quoted_place(
    incident: IncidentStory, logs: Mapping[str, list[bytes]]
) -> tuple[str, int] | None:
    """Return the log and the number of the last line of evidence; None if no log has that line.

    A watcher may report a file name on its own volume; then every log is searched."""
    for each in incident.voices[0].evidence if incident.voices else ():
        known = each.text.rstrip("…").partition(_SCRUBBED)[0].rstrip()
        text = known[:_QUOTE].encode("utf-8", "replace")
        if not each.file or len(text) < _LEAST_QUOTE:
            continue
        pod = each.file.partition(" ")[0]
        others = [name for name in logs if name.partition(" ")[0] == pod]
        for name in dict.fromkeys((each.file, *(others or logs))):
            lines = logs.get(name, [])
            for index in range(len(lines) - 1, -1, -1):
                if text in lines[index]:
                    return name, index + 1
    return None


def of_log(log: Path | None) -> tuple[LogEnd, ...]:
    """Return the last lines of the trainer's log, if there is one."""
    return () if log is None else ends({contract.LOG: _tail(log)}, _TAIL)


def _tail(log: Path) -> bytes:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL))
            return stream.read(_TAIL)
    except OSError:
        return b""


def _with_incidents(report: RunReport, find: Find) -> RunReport:
    wanted: dict[str, dict[int, int]] = {}
    for number, each in list(enumerate(report.incidents, 1))[-MAX_INCIDENTS:]:
        place = _last_evidence(each)
        if place is not None:
            wanted.setdefault(place[0], {})[number] = place[1] + _AFTER
    found: list[LogEnd] = []
    for name, lasts in wanted.items():
        path = find(name)
        found += [] if path is None else _windows(name, path, lasts)
    return replace(report, log_ends=(*report.log_ends, *found))


def _last_evidence(incident: IncidentStory) -> tuple[str, int] | None:
    """Return the log and the last line of its evidence; None if no log line is evidence."""
    lead = incident.voices[0].evidence if incident.voices else ()
    placed = [(each.file, each.line) for each in lead if each.file and each.line]
    if not placed:
        return None
    file = placed[0][0]
    return str(file), max(int(line or 0) for name, line in placed if name == file)


def _windows(name: str, path: Path, lasts: Mapping[int, int]) -> Iterator[LogEnd]:
    """`lasts`: the last line to show, by incident. Lines shown as the log's end are left out."""
    kept: dict[int, list[bytes]] = {number: [] for number in lasts}
    total = 0
    for chunk, first in numbered(str(path)):
        total = first + len(chunk) - 1
        for number, last in lasts.items():
            low, high = max(last - MAX_LINES + 1, first), min(last, total)
            kept[number] += chunk[low - first : high - first + 1] if low <= high else []
    for number, last in lasts.items():
        begin = max(1, last - MAX_LINES + 1)
        if kept[number] and begin <= total - MAX_LINES:
            yield LogEnd(name, _clean(kept[number]), begin, number)


def numbered(path: str) -> Iterator[tuple[list[bytes], int]]:
    """Yield chunks of whole lines with the number of the first; also for a compressed log."""
    first, rest = 1, b""
    try:
        for data, *_ in read_chunks(path, "report"):
            lines = (rest + data).split(b"\n")
            rest = lines.pop()[-_CHUNK:]
            yield lines, first
            first += len(lines)
    except InputError:
        return
    if rest:
        yield [rest], first


def _clean(lines: list[bytes]) -> tuple[str, ...]:
    bounded = b"\n".join(line[: 4 * _CHARACTERS] for line in lines)
    text = Scrubber().scrub(bounded).decode("utf-8", "replace")
    shown = map(plain, text.split("\n"))
    return tuple(line[:_CHARACTERS] + "…" * (len(line) > _CHARACTERS) for line in shown)


def quotation(line: bytes) -> str:
    """Format a line as evidence: as it looked on a terminal, bounded and scrubbed."""
    return scrub_text(plain(line[:_MAX_QUOTATION].decode("utf-8", "replace")).strip())


def plain(line: str) -> str:
    """Return the line as a terminal shows it: no colours, nothing before a carriage return."""
    return _COLOUR.sub("", line.rstrip("\r").rpartition("\r")[2])
