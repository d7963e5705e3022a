# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read a recorded run, log files and checkpoint folders, as one stream of observations.

Files are read lazily in pieces, so memory does not grow with their size; `mwatch.state` aligns the
clocks of several pods. A checkpoint folder is known only in its present state, so its content comes
last.

Files are first sorted into streams: the parts of a rotated log, and the attempts of one role. Two
pods of one attempt write at the same time; two attempts write one after the other. So two files
follow each other if their times do not overlap and both contain what only one rank prints
(iteration lines, or rank 0's markers). Only both ends of a file are read for this. All files are
assumed to belong to one job.
"""

from __future__ import annotations

import os
import re
import stat
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat, takewhile
from typing import Any

from msgspec.structs import replace

from mwatch.errors import InputError
from mwatch.model.event import Event
from mwatch.model.observation import Observed, StoredCheckpoint, StoredCheckpoints
from mwatch.model.step import PlacedLines, Step
from mwatch.model.timeline import Rollback
from mwatch.parse.fast_path.run import in_pieces
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader, in_order
from mwatch.replay.comparison import comparison_from
from mwatch.replay.event_times import EventTimestamper, Placed, place
from mwatch.replay.file_spans import STEPS, examine
from mwatch.replay.freshness import NO_CLOCK, TAIL, Age, TailClock, age_of, tail_clock
from mwatch.replay.log_files import PACKED, LogFile, find
from mwatch.replay.timestamps import zone_step
from mwatch.runtime.ahead import run_ahead
from mwatch.runtime.files import CHUNK, STDIN, read_chunks
from mwatch.sources import checkpoint_dir
from mwatch.state.merge import estimate_offsets, merge
from mwatch_trainer.checkpoint.listing import FolderListing, list_checkpoints

_CLOCKS_DIFFER_SECONDS = 2 * 86400.0
"""Seconds by which a log's clock, including its time zone, may be ahead of this machine's."""
_OVERLAP_SECONDS = 2.0
"""Seconds by which successive files may overlap: timestamps are rounded, and clocks differ."""
_ROTATED = re.compile(r"(?P<base>.+\.(?:log|txt|out|err))[._-](?P<turn>\d[\w.-]*|old|bak|prev\w*)")


@dataclass(slots=True)
class StreamPlan:
    """Files to be played one after the other."""

    name: str
    files: list[LogFile]
    first: float | None
    last: float | None
    roles: set[str] = field(default_factory=set)
    anchor: float | None = None
    """Start time if these files print no times but others do."""
    end: float | None = None
    """When the other streams fell silent; None: at the end of the recording."""

    @property
    def has_steps(self) -> bool:
        return STEPS in self.roles


def plan(files: Sequence[LogFile], grammar: Grammar) -> list[StreamPlan]:
    """Sort files into streams; a single file is not read, because there is nothing to order."""
    if len(files) == 1:
        return [StreamPlan(_short(files[0].shown), list(files), None, None)]
    units = [_unit(group, grammar) for group in _rotations(files)]
    ends = sorted(unit.last for unit in units if unit.last is not None)
    streams = _chain(units)
    _shorten_names(streams)
    _anchor(streams)
    for stream in streams:
        if stream.last is not None:
            place = bisect_left(ends, stream.last)
            others = [*ends[:place], *ends[place + 1 :]]
            stream.end = next((end for end in others if end >= stream.last), None)
    return streams


def _shorten_names(streams: Sequence[StreamPlan]) -> None:
    for shorten in (_short, _short_with_folder):
        names = Counter(shorten(stream.name) for stream in streams)
        for stream in streams:
            if names[shorten(stream.name)] == 1:
                stream.name = shorten(stream.name)


def _rotations(files: Sequence[LogFile]) -> Iterator[list[LogFile]]:
    """Group the parts of each rotated log, oldest first."""
    paths = {file.path for file in files}
    groups: dict[str, list[LogFile]] = {}
    for file in files:
        found = _ROTATED.fullmatch(file.path)
        base = found["base"] if found and found["base"] in paths else file.path
        groups.setdefault(base, []).append(file)
    for base, group in groups.items():
        yield sorted(group, key=lambda file: _age(file.path, base))


def _age(path: str, base: str) -> tuple[int, float, str]:
    """Sort key, oldest first: date suffixes rise with time, numbers fall, no suffix is newest."""
    if path == base:
        return (1, 0, "")
    turn = PACKED.sub("", path[len(base) + 1 :])
    return (0, -float(turn), "") if re.fullmatch(r"\d{1,5}", turn) else (0, 0, turn)


def _unit(group: list[LogFile], grammar: Grammar) -> StreamPlan:
    spans = [examine(file, grammar) for file in group]
    firsts = [span.first for span in spans if span.first is not None]
    lasts = [span.last for span in spans if span.last is not None]
    roles = {role for span in spans for role in span.roles}
    name = group[-1].shown
    return StreamPlan(name, group, min(firsts, default=None), max(lasts, default=None), roles)


def _chain(units: Iterable[StreamPlan]) -> list[StreamPlan]:
    streams: list[StreamPlan] = []
    for unit in sorted(units, key=_order):
        before = max(
            (stream for stream in streams if _follows(unit, stream)),
            key=lambda stream: _likeness(stream, unit),
            default=None,
        )
        if before is None:
            streams.append(unit)
            continue
        before.files += unit.files
        before.roles |= unit.roles
        before.last = unit.last if unit.last is not None else before.last
    return streams


def _order(unit: StreamPlan) -> tuple[bool, float, list[tuple[int, str]]]:
    """Sort key: by time, else by name with numbers in numeric order."""
    parts = re.findall(r"(\d{1,18})|(\D+)", unit.files[0].shown)
    natural = [(int(number or 0), text) for number, text in parts]
    return (unit.first is None, unit.first or 0.0, natural)


def _follows(unit: StreamPlan, stream: StreamPlan) -> bool:
    if not unit.roles & stream.roles:
        return False
    if unit.first is None or stream.last is None:
        return unit.first is None and stream.first is None and STEPS in unit.roles & stream.roles
    return unit.first >= stream.last - _OVERLAP_SECONDS


def _likeness(stream: StreamPlan, unit: StreamPlan) -> tuple[int, int, float]:
    """Sort key: attempts of one pod have similar names."""
    short = _common(_short(stream.name), _short(unit.name))
    return (short, _common(stream.name, unit.name), stream.last or 0.0)


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _anchor(streams: Sequence[StreamPlan]) -> None:
    """Set the start time of streams without times.

    A stream with iterations starts with the others; any other goes to the end, because such a file
    is usually the last output of a failing process.
    """
    firsts = [stream.first for stream in streams if stream.first is not None]
    lasts = [stream.last for stream in streams if stream.last is not None]
    for stream in streams:
        if stream.first is None and firsts:
            stream.anchor = min(firsts) if stream.has_steps else max(lasts)


def _short(shown: str) -> str:
    """Return the file name without an extension such as .log."""
    shown = PACKED.sub("", shown)
    root, extension = os.path.splitext(os.path.basename(shown))
    is_log = extension in (".log", ".txt", ".out", ".err")
    return root if is_log and root else os.path.basename(shown) or shown


def _short_with_folder(shown: str) -> str:
    folder = os.path.dirname(shown)
    return f"{_short(shown)} ({folder})" if folder else shown


_TRAINER = re.compile(
    rb"\b(?:(?:train|eval)(?:er|ing)?|epoch|checkpoint|nccl|cuda|torch\w*|deepspeed|lightning|rank\d+"
    rb"|global_rank|hccl|npu|OMP_NUM_THREADS|distributed|ray|raylet"
    rb"|(?:waiting for|all) (?:ranks|workers|nodes|master))\b",
    re.I,
)
FRESH_SECONDS = 60.0
"""Seconds since its last change within which a file may have just been copied."""
_NEAR = 120.0
_LATER = 300.0
_LONG_QUIET = 600.0  # seconds without a step, longer than any usual step
_LARGE = 8 << 20
"""Total size in bytes from which reading in a second process pays off."""
_REHEARSED = 50_000
"""Events per stream used to estimate its clock offset; reading them takes seconds at most."""

Progress = Callable[[int, int], None]
"""Called after each piece with the bytes read and the total (0: unknown)."""


class Recording:
    def __init__(
        self,
        streams: Sequence[StreamPlan],
        checkpoint_folders: Sequence[str],
        notes: Sequence[str],
        grammar: Grammar,
        now: float,
    ) -> None:
        self.streams = streams
        self.checkpoint_folders = checkpoint_folders
        self.notes = list(notes)
        self.line_counts: dict[str, int] = {}
        self._grammar = grammar
        self._now = now
        self._moments: list[EventTimestamper] = []
        self._sizes = {file.path: _size(file) for each in streams for file in each.files}
        self._size = sum(self._sizes.values())
        self._done = 0
        self._tails: dict[str, bytes] = {}
        """The end of each file, by path."""
        self._is_shifted = False

    @property
    def lines(self) -> int:
        return sum(self.line_counts.values())

    @property
    def is_relative(self) -> bool:
        """No timestamp was found: times are seconds since the first line."""
        return any(moments.is_relative for moments in self._moments)

    @property
    def tails(self) -> dict[str, bytes]:
        """The last `TAIL` bytes of each file, by its name in evidence."""
        return {name: self._tails[path] for name, path in self.paths.items() if path in self._tails}

    @property
    def paths(self) -> dict[str, str]:
        """The path of each file, by its name in evidence."""
        files = (file for each in self.streams for file in each.files)
        return {file.shown: file.path for file in files}

    @property
    def is_about_training(self) -> bool:
        """Whether the end of a file has terms of training in a format that is not recognised."""
        return any(_TRAINER.search(tail) for tail in self._tails.values())

    @property
    def written_at(self) -> float | None:
        """When the newest file last changed; None: unknown."""
        changed = [
            os.stat(file.path).st_mtime
            for each in self.streams
            for file in each.files
            if file.path != STDIN and os.path.isfile(file.path)
        ]
        return max(changed, default=None)

    def observed(self, progress: Progress | None = None) -> Iterator[Placed]:
        """Merge all streams in time order on one clock."""
        if len(self.streams) == 1:
            return self._pieces(self.streams[0], progress)
        offsets = self._offsets()
        self._is_shifted = any(offsets.values())
        streams = {each.name: self._stream(each, progress) for each in self.streams}
        without_steps = {each.name: each.end for each in self.streams if not each.has_steps}
        return place(merge(streams, offsets), without_steps)

    def _offsets(self) -> dict[str, float]:
        """Estimate clock offsets from the beginnings of the streams.

        Pipes can be read only once, so with a pipe nothing is shifted.
        """
        if any(not self._sizes[file.path] for each in self.streams for file in each.files):
            return {}
        rehearsal = Recording(self.streams, (), (), self._grammar, self._now)
        streams = {each.name: rehearsal._stream(each, None) for each in self.streams}
        return estimate_offsets(streams, max_events=_REHEARSED)

    def _stream(self, stream: StreamPlan, progress: Progress | None) -> Iterator[Observed]:
        """Yield events one by one, to be merged with those of other streams."""
        for each in self._pieces(stream, progress):
            if isinstance(each, PlacedLines):
                yield from map(Observed, each.ats, repeat(each.stream), each.lines.events)
            else:
                yield each

    def _pieces(self, stream: StreamPlan, progress: Progress | None) -> Iterator[Placed]:
        """Yield placed pieces; a single large stream is read and placed by another process."""
        updates = self._updates(stream)
        is_large = len(self.streams) == 1 and self._size > _LARGE
        for known, placed in run_ahead(updates) if is_large else updates:
            vars(self).update(known)
            if progress:
                progress(self._done, self._size)
            yield from placed

    def _updates(self, stream: StreamPlan) -> Iterator[tuple[dict[str, Any], list[Placed]]]:
        """Yield the observations of each piece of a file, with the reader's state after it."""
        for placed in self._placed(stream):
            yield {"_done": self._done}, placed
        names = ("_done", "_tails", "_moments", "line_counts", "notes")
        yield {name: getattr(self, name) for name in names}, []

    def _placed(self, stream: StreamPlan) -> Iterator[list[Placed]]:
        is_alone = len(self.streams) == 1
        moments = EventTimestamper(
            stream.name,
            near=self._near(stream),
            latest=self._now + _CLOCKS_DIFFER_SECONDS,
            anchor=stream.anchor,
            has_steps=is_alone or stream.has_steps,
        )
        self._moments.append(moments)
        for file in stream.files:
            reader = Reader(self._grammar, file.shown)
            batches: list[Sequence[Event]] = []
            for data in self._read(file):
                yield moments.observe_pieces(in_pieces(batches))
                batches = list(reader.batches(data))
            last = moments.with_blocks(in_pieces(batches), in_order(reader.close()))
            yield moments.observe_pieces(last)
            self.line_counts[file.shown] = reader.lines
        yield [*moments.rest()]

    def _read(self, file: LogFile) -> Iterator[bytes]:
        """Read a damaged file up to the damage; a named file that cannot be read is an error."""
        has_begun = False
        try:
            for data in self._without_comparison(file):
                has_begun = True
                self._done += len(data)
                self._tails[file.path] = (self._tails.get(file.path, b"") + data)[-TAIL:]
                yield data
        except InputError as error:
            if not has_begun and file.is_named:
                raise
            self.notes.append(str(error))

    def _without_comparison(self, file: LogFile) -> Iterator[bytes]:
        """Yield the content of a file, up to another run that was pasted for comparison."""
        chunks = (chunk.data for chunk in read_chunks(file.path, "replay"))
        held: list[bytes] = []  # pasted text is small, but a pipe delivers it in pieces
        try:
            for data in chunks:
                held.append(data)
                if sum(map(len, held)) > CHUNK:
                    break
            else:
                held = [self._first_run(file, b"".join(held))]
        except InputError:
            yield from held  # a damaged file, up to the damage
            raise
        yield from held
        yield from chunks

    def _first_run(self, file: LogFile, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        begin = comparison_from([line.decode("utf-8", "replace") for line in lines])
        if begin is None:
            return data
        self.notes.append(f"{file.shown}: another run, from line {begin + 1} on, is left out")
        return b"".join(lines[:begin])

    def _near(self, stream: StreamPlan) -> float:
        if stream.first is not None:
            return stream.first
        try:
            return os.stat(stream.files[0].path).st_mtime
        except OSError:
            return self._now

    def end_clock(self, last: float) -> TailClock:
        """Return the last time that the log prints; `last`: time of the last event."""
        if self.is_relative:
            return NO_CLOCK
        clocks = [tail_clock(tail, self._now) for tail in self._tails.values()]
        zones = {clock.ahead for clock in clocks if clock.last is not None}
        ahead = zones.pop() if len(zones) == 1 else None
        if self._is_shifted or zones or any(each.shift for each in self._moments):
            return TailClock(last, ahead)  # the clocks of the pods differ
        return TailClock(max((last, *(each.last or last for each in clocks))), ahead)

    def quiet_until(self, last: float, step: Step | None) -> float | None:
        """Return the time until which the log proves a silence: the last time it prints.

        Step lines without a timestamp do not show how long a step takes, so only a long silence
        after them counts.
        """
        end = self.end_clock(last).last
        tail = self.tails.get(step.file) if step else None
        if end is None or step is None or tail is None:
            return end
        behind = self.line_counts.get(step.file, 0) - step.line
        lines = tail.splitlines(keepends=True)
        before = tail_clock(b"".join(lines[: len(lines) - behind]), self._now).last
        is_untimed = before is not None and step.at < before
        return last if is_untimed and before and end - before < _LONG_QUIET else end

    def clock_ahead(self, last: float) -> float:
        """Return the seconds by which true time is ahead of the log's, from its lines or files."""
        if self.is_relative:
            return 0.0
        clock = self.end_clock(last)
        written = self.written_at
        if clock.ahead is None and written is not None and self._now - written > FRESH_SECONDS:
            return zone_step(written - last, _NEAR)
        age = self.age(clock)
        return 0.0 if age is None else age.ahead

    def age(self, clock: TailClock, fresh: float = FRESH_SECONDS) -> Age | None:
        offset = time.localtime(self._now).tm_gmtoff
        return age_of(clock, self._now, local_offset=offset, fresh=fresh)

    def rollbacks(self, last: float) -> Iterator[Rollback]:
        """Yield rollbacks that mwatch recorded beside the checkpoints, on the log's clock."""
        ahead = self.clock_ahead(last)
        for folder in self.checkpoint_folders:
            found = checkpoint_dir.find(folder)
            if found.problem:
                self.notes.append(f"{folder}: {found.problem}")
            for each in found.timeline.rollbacks if found.timeline else ():
                marked = tuple((number, at - ahead) for number, at in each.marked)
                yield replace(each, at=each.at - ahead, marked=marked)

    def stored(self, last: float) -> Iterator[Observed]:
        """Yield the present content of the checkpoint folders, observed at the end of the log."""
        ahead = self.clock_ahead(last)
        for folder in self.checkpoint_folders:
            try:
                listing = list_checkpoints(folder)
            except OSError as error:
                self.notes.append(f"cannot list {folder}: {error.strerror}")
                continue
            yield Observed(last, folder, _to_stored(folder, listing, last, ahead))


def open_recording(
    names: Sequence[str], checkpoints: Sequence[str], grammar: Grammar, now: float
) -> Recording:
    """Open the logs; raise InputError at once, before a long read, if a name cannot be read."""
    found = find(names)
    for folder in checkpoints:
        if not os.path.isdir(folder):
            raise InputError(f"no such folder: {folder}; name the folder that the trainer saves to")
    folders = list(dict.fromkeys([*checkpoints, *found.checkpoint_folders]))
    for file in found.files:
        if file.is_named and file.path != STDIN and not stat.S_ISFIFO(_mode(file)):
            next(read_chunks(file.path, "replay"))
    streams = plan(found.files, grammar) if found.files else []
    return Recording(streams, folders, found.notes, grammar, now)


def _mode(file: LogFile) -> int:
    try:
        return os.stat(file.path).st_mode
    except (OSError, ValueError):
        return 0  # opening the file reports why


def _size(file: LogFile) -> int:
    return os.path.getsize(file.path) if stat.S_ISREG(_mode(file)) else 0


def _to_stored(folder: str, listing: FolderListing, last: float, ahead: float) -> StoredCheckpoints:
    """Convert a listing; a file changed after the run ended was copied, so its time is unknown."""
    found = []
    for each in listing.checkpoints:
        if each.iteration is None:
            continue
        written = None if each.newest_mtime is None else each.newest_mtime - ahead
        if written is not None and written > last + _LATER:
            written = None
        found.append(
            StoredCheckpoint(each.iteration, each.state.value, each.reason, each.bytes, written)
        )
    return StoredCheckpoints(folder, tuple(found))
