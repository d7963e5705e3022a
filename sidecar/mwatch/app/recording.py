# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A recorded run: log files and checkpoint folders as one stream of observations.

Files are read lazily, piece by piece, so that memory does not grow with them. Clocks of several
pods are brought together by `mwatch.state`. What a checkpoint folder holds is known only as it
is today: it is told last.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

from mwatch.app import timeline
from mwatch.app.inputs import STDIN, read_chunks
from mwatch.app.log_files import LogFile, find
from mwatch.app.loose_lines import place
from mwatch.app.moments import Moments, Placed
from mwatch.app.succession import StreamPlan, plan
from mwatch.app.zones import zone_step
from mwatch.errors import InputError
from mwatch.model.observation import Observed, Stored, StoredCheckpoint
from mwatch.model.step_lines import PlacedLines
from mwatch.model.timeline import Rollback
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader, in_order
from mwatch.parse.run import in_pieces
from mwatch.state.clocks import estimate_offsets
from mwatch.state.merge import merge
from mwatch_trainer.checkpoint import Listing, list_checkpoints

_NEAR = 120.0
_LATER = 300.0
_REHEARSED = 50_000
"""Events of each stream that its clock is judged by: seconds of reading at the most."""

Progress = Callable[[int, int], None]
"""Called with bytes read and bytes in all (0: unknown), after each piece."""


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
        self.lines = 0
        self._grammar = grammar
        self._now = now
        self._moments: list[Moments] = []
        self._sizes = {file.path: _size(file) for each in streams for file in each.files}
        self._size = sum(self._sizes.values())
        self._done = 0

    @property
    def is_relative(self) -> bool:
        """No printed time was found: moments are seconds since the first line."""
        return any(moments.is_relative for moments in self._moments)

    @property
    def written_at(self) -> float | None:
        """When the newest file last changed; None where nothing can tell."""
        changed = [
            os.stat(file.path).st_mtime
            for each in self.streams
            for file in each.files
            if file.path != STDIN and os.path.isfile(file.path)
        ]
        return max(changed, default=None)

    def observed(self, progress: Progress | None = None) -> Iterator[Placed]:
        """All streams as one, in the order of one clock."""
        if len(self.streams) == 1:
            return self._pieces(self.streams[0], progress)
        offsets = self._offsets()
        streams = {each.name: self._stream(each, progress) for each in self.streams}
        without_steps = {each.name: each.end for each in self.streams if not each.has_steps}
        return place(merge(streams, offsets), without_steps)

    def _offsets(self) -> dict[str, float]:
        """By a first reading of the beginnings; what can be read only once is not moved."""
        if any(not self._sizes[file.path] for each in self.streams for file in each.files):
            return {}
        rehearsal = Recording(self.streams, (), (), self._grammar, self._now)
        streams = {each.name: rehearsal._stream(each, None) for each in self.streams}
        return estimate_offsets(streams, max_events=_REHEARSED)

    def _stream(self, stream: StreamPlan, progress: Progress | None) -> Iterator[Observed]:
        """One by one, so that they can be put among those of other streams."""
        for each in self._pieces(stream, progress):
            if isinstance(each, PlacedLines):
                yield from map(Observed, each.ats, repeat(each.stream), each.lines.events)
            else:
                yield each

    def _pieces(self, stream: StreamPlan, progress: Progress | None) -> Iterator[Placed]:
        is_alone = len(self.streams) == 1
        moments = Moments(
            stream.name,
            near=self._near(stream),
            anchor=stream.anchor,
            has_steps=is_alone or stream.has_steps,
        )
        self._moments.append(moments)
        for file in stream.files:
            reader = Reader(self._grammar, file.shown)
            for data in self._read(file):
                yield from moments.observe_pieces(in_pieces(reader.batches(data)))
                if progress:
                    progress(self._done, self._size)
            yield from moments.observe(in_order(reader.close()))
            self.lines += reader.lines
        yield from moments.rest()

    def _read(self, file: LogFile) -> Iterator[bytes]:
        """A file that breaks off is read as far as it goes; a named one that cannot be read at
        all is the person's mistake."""
        has_begun = False
        try:
            for chunk in read_chunks(file.path, "replay"):
                has_begun = True
                self._done += len(chunk.data)
                yield chunk.data
        except InputError as error:
            if not has_begun and file.is_named:
                raise
            self.notes.append(str(error))

    def _near(self, stream: StreamPlan) -> float:
        if stream.first is not None:
            return stream.first
        try:
            return os.stat(stream.files[0].path).st_mtime
        except OSError:
            return self._now

    def clock_ahead(self, last: float) -> float:
        """By how much true time is ahead of the log's: its zone, if the files still tell it."""
        written = self.written_at
        if written is None or self.is_relative:
            return 0.0
        return zone_step(written - last, _NEAR)

    def rollbacks(self, last: float) -> Iterator[Rollback]:
        """What mwatch itself wrote beside the checkpoints, by the clock of the log."""
        ahead = self.clock_ahead(last)
        for folder in self.checkpoint_folders:
            found = timeline.find(folder)
            if found.problem:
                self.notes.append(f"{folder}: {found.problem}")
            for each in found.timeline.rollbacks if found.timeline else ():
                marked = tuple((number, at - ahead) for number, at in each.marked)
                yield each._replace(at=each.at - ahead, marked=marked)

    def stored(self, last: float) -> Iterator[Observed]:
        """What the checkpoint folders hold now, told at `last`, the end of the recording."""
        ahead = self.clock_ahead(last)
        for folder in self.checkpoint_folders:
            try:
                listing = list_checkpoints(folder)
            except OSError as error:
                self.notes.append(f"{folder}: cannot be listed ({error.strerror})")
                continue
            yield Observed(last, folder, _to_stored(folder, listing, last, ahead))


def open_recording(
    names: Sequence[str], checkpoints: Sequence[str], grammar: Grammar, now: float
) -> Recording:
    """InputError for a name that is not there."""
    found = find(names)
    for folder in checkpoints:
        if not os.path.isdir(folder):
            raise InputError(f"{folder}: no such folder; name what the trainer saves to")
    folders = list(dict.fromkeys([*checkpoints, *found.checkpoint_folders]))
    for file in found.files:
        _must_open(file)
    streams = plan(found.files, grammar) if found.files else []
    return Recording(streams, folders, found.notes, grammar, now)


def _must_open(file: LogFile) -> None:
    """Before anything is read: a wrong name among many must not cost a long wait."""
    if file.is_named and file.path != STDIN and not stat.S_ISFIFO(_mode(file)):
        next(read_chunks(file.path, "replay"))


def _mode(file: LogFile) -> int:
    try:
        return os.stat(file.path).st_mode
    except (OSError, ValueError):
        return 0  # opening it says why


def _size(file: LogFile) -> int:
    if file.path == STDIN:
        return 0
    try:
        status = os.stat(file.path)
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _to_stored(folder: str, listing: Listing, last: float, ahead: float) -> Stored:
    """A file that was changed after the run ended was copied: when it was written is unknown."""
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
    return Stored(folder, tuple(found))
