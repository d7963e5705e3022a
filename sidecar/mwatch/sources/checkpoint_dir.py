# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lists the checkpoints of the save folder and which are complete, and reads its timeline file.

`mwatch_trainer.checkpoint.listing` verifies a checkpoint. Here each one is verified once and then
recognised by the timestamps of its folder and of the files written last. An incomplete one is
verified again at growing intervals, until it has not changed for a while, so that a tree of
terabytes is not walked forever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import astuple

from mwatch.model.observation import Observed, StoredCheckpoint, StoredCheckpoints
from mwatch.model.reading import Ok, Reading
from mwatch.model.snapshot.snapshot import Storage
from mwatch.model.timeline import BegunAttempt, Quarantine, Rollback, Timeline, bounded
from mwatch.sources.background import BackgroundSource, Observations
from mwatch.sources.pod_facts import disk_space
from mwatch_trainer.checkpoint import timeline as file
from mwatch_trainer.checkpoint.files import CheckpointState
from mwatch_trainer.checkpoint.listing import (
    MAX_CHECKPOINTS,
    TRACKER,
    CheckpointName,
    ListedCheckpoint,
    list_names,
    read_tracker,
    verify,
)

PERIOD_SECONDS = 10.0
LIMIT_SECONDS = 30.0
"""The first poll of 200 checkpoints of thousands of files each takes seconds."""
_FIRST_AGAIN_SECONDS = 5.0
_MOST_AGAIN_SECONDS = 600.0
_LATE_FILES = ("metadata.json", ".metadata", "common.pt")
"""Files that are written late, or replaced by each save."""

Mark = tuple[object, ...]


class _Known(NamedTuple):
    mark: Mark
    tracker: Mark | None
    """Stamp of the trainer's tracker file when it first named this checkpoint: a second save of the
    same iteration rewrites the file."""
    checkpoint: ListedCheckpoint | None
    again_at: float | None
    """When an incomplete checkpoint is verified again; None: never."""
    pause: float


class CheckpointDir(BackgroundSource):
    def __init__(
        self,
        folder: str,
        stream: str,
        *,
        period_seconds: float = PERIOD_SECONDS,
        limit_seconds: float = LIMIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        judge: Callable[[str, str], ListedCheckpoint | None] = verify,
    ) -> None:
        super().__init__(
            "mwatch-checkpoints",
            self._poll,
            period=lambda: period_seconds,
            limit_seconds=limit_seconds,
            clock=clock,
        )
        self._folder = folder
        self._stream = stream
        self._wall = wall
        self._judge = judge
        self._known: dict[str, _Known] = {}
        self.storage: Storage | None = None
        self.sizes: dict[int, int] = {}
        self.tracker: str | None = None
        """The newest checkpoint according to the trainer's tracker file."""

    def _poll(self) -> Reading[Observations]:
        at = self._wall()
        names = list_names(self._folder)[:MAX_CHECKPOINTS]
        tracker = read_tracker(self._folder)
        pointer = None if tracker is None else _stamp(os.path.join(self._folder, TRACKER))
        named = None if tracker is None else tracker.value
        found = [
            self._checkpoint(each, pointer if str(each.iteration) == named else None)
            for each in names
        ]
        self._known = {each.name: self._known[each.name] for each in names}
        free, size = disk_space(self._folder)
        self.storage = None if free is None or size is None else Storage(free, size)
        self.tracker = named
        stored = tuple(
            StoredCheckpoint(
                each.iteration, each.state.value, each.reason, each.bytes, each.newest_mtime
            )
            for each in found
            if each is not None and each.iteration is not None
        )
        self.sizes = {each.iteration: each.size_bytes or 0 for each in stored}
        return Ok((Observed(at, self._stream, StoredCheckpoints(self._folder, stored)),))

    def _checkpoint(self, name: CheckpointName, tracker: Mark | None) -> ListedCheckpoint | None:
        mark = _mark(self._folder, name)
        known = self._known.get(name.name)
        now = self._clock()
        if known is not None and known.tracker is None:
            known = known._replace(tracker=tracker)
            self._known[name.name] = known
        is_same = known is not None and known.mark == mark and tracker in (None, known.tracker)
        if known is not None and is_same and (known.again_at is None or now < known.again_at):
            return known.checkpoint
        found = self._judge(self._folder, name.name)
        pause = _FIRST_AGAIN_SECONDS if known is None or not is_same else 2 * known.pause
        is_whole = found is not None and found.state is CheckpointState.COMPLETE
        again_at = None if is_whole or pause > _MOST_AGAIN_SECONDS else now + pause
        self._known[name.name] = _Known(mark, tracker, found, again_at, pause)
        return found


def _mark(folder: str, name: CheckpointName) -> Mark:
    """Return stamps that are cheap to read and change when something relevant is written."""
    if name.files:
        return tuple(_stamp(os.path.join(folder, file)) for file in name.files)
    inside = os.path.join(folder, name.name)
    return _stamp(inside), *(_stamp(os.path.join(inside, file)) for file in _LATE_FILES)


def _stamp(path: str) -> Mark | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


class SavedTimeline(NamedTuple):
    timeline: Timeline | None
    problem: str | None = None
    is_broken: bool = False
    """The file is unreadable; it may have marked the newest checkpoint as abandoned."""


def find(folder: str) -> SavedTimeline:
    name = f"{file.FOLDER}/{file.FILE}"
    try:
        read = file.read(folder)
    except file.BrokenTimeline as error:
        return SavedTimeline(
            None, f"{name} {error}: which checkpoints were abandoned is unknown", True
        )
    if read is None:
        return SavedTimeline(None)
    newer = f"{name} was written by a newer mwatch: not all of it is understood"
    return SavedTimeline(to_model(read), newer if read.version > file.VERSION else None)


def to_model(read: file.TimelineFile) -> Timeline:
    timeline = Timeline(attempt=read.attempt)
    timeline.rollbacks.extend(bounded([Rollback(*each) for each in read.rollbacks]))
    timeline.attempts.extend(BegunAttempt(*each) for each in read.attempts)
    timeline.quarantine = None if read.quarantine is None else Quarantine(*read.quarantine)
    return timeline


def to_text(timeline: Timeline) -> str:
    quarantine = timeline.quarantine
    return file.to_text(
        file.TimelineFile(
            timeline.attempt,
            tuple(file.TimelineAttempt(*each) for each in timeline.attempts),
            tuple(file.TimelineRollback(*astuple(each)) for each in timeline.rollbacks),
            None if quarantine is None else file.TimelineQuarantine(*astuple(quarantine)),
        )
    )
