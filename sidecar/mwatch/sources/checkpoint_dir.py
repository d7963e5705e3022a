# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The save folder: which checkpoints are there, and which are whole.

The judging is `mwatch_trainer.checkpoint.listing`'s. Here each checkpoint is looked through once
and then known by the times of its folder and of the files that are written last; one that is not
whole is
looked at again, ever more rarely, and no longer once it has not changed for a while: a tree of
terabytes is not walked for ever. A file that is replaced without any of these changing is not
noticed. The look runs aside: a file system that hangs is a failure after a while, not a hang.

The timeline file of a save folder, as the core knows it.

The shape of the file is `mwatch_trainer.checkpoint.timeline`'s, which the wrapper shares. A file
that is broken is told apart from one that is not there: it may have named the newest checkpoint as
abandoned.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from mwatch.model.observation import Observed, StoredCheckpoint, StoredCheckpoints
from mwatch.model.reading import Absent, Ok, Reading
from mwatch.model.snapshot.snapshot import Storage
from mwatch.model.timeline import BegunAttempt, Quarantine, Rollback, Timeline, bounded
from mwatch.sources.base.worker import Worker
from mwatch_trainer.checkpoint import timeline as file
from mwatch_trainer.checkpoint.listing import (
    MAX_CHECKPOINTS,
    TRACKER,
    CheckpointName,
    ListedCheckpoint,
    list_names,
    read_tracker,
    verify,
)
from mwatch_trainer.checkpoint.verdict import CheckpointState

PERIOD_SECONDS = 10.0
LIMIT_SECONDS = 30.0
"""A first look at 200 checkpoints of thousands of files each takes seconds on a good day."""
_FIRST_AGAIN_SECONDS = 5.0
_MOST_AGAIN_SECONDS = 600.0
_TELLING = ("metadata.json", ".metadata", "common.pt")
"""Written late, or replaced by each save."""

Mark = tuple[object, ...]


class _Known(NamedTuple):
    mark: Mark
    tracker: Mark | None
    """The trainer's pointer as it was when it first named this one: a second save of the same
    iteration writes it anew."""
    checkpoint: ListedCheckpoint | None
    again_at: float | None
    """When one that is not whole is looked at again; None: never."""
    pause: float


class CheckpointDir:
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
        self._folder = folder
        self._stream = stream
        self._period = period_seconds
        self._clock = clock
        self._wall = wall
        self._judge = judge
        self._known: dict[str, _Known] = {}
        self._next_at = clock()
        self._last: Reading[tuple[Observed, ...]] = Absent("not looked at yet")
        self.storage: Storage | None = None
        """The file system below the folder, as of the last look."""
        self.sizes: dict[int, int] = {}
        """Bytes of each checkpoint that is there, by iteration."""
        self.tracker: str | None = None
        """The trainer's own word on which is the newest."""
        self._worker: Worker[tuple[Observed, ...]] = Worker(
            "mwatch-checkpoints", self._look, limit_seconds=limit_seconds, clock=clock
        )

    def read(self) -> Reading[tuple[Observed, ...]]:
        """Never waits: tells what the last look found, once, and begins the next when it is due."""
        answer = self._worker.take()
        if answer is not None:
            self._last = answer
        if not self._worker.is_busy and self._clock() >= self._next_at:
            self._start()
        if answer is None and isinstance(self._last, Ok):
            return Ok(())
        return self._last

    def look_soon(self) -> None:
        """From any thread: somebody is about to choose a checkpoint, and the next look is due."""
        self._next_at = self._clock()

    def look_now(self, seconds: float) -> Reading[tuple[Observed, ...]]:
        """A fresh look, before something is decided by it; waits for at most `seconds`.

        A look that was already out may have begun before a save ended, and is not enough.
        """
        until = self._clock() + seconds
        if not self._worker.wait(seconds):
            return self.read()
        self._start()
        self._worker.wait(max(0.0, until - self._clock()))
        return self.read()

    def _start(self) -> None:
        self._next_at = self._clock() + self._period
        self._worker.start()

    def _look(self) -> Reading[tuple[Observed, ...]]:
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
        self.storage = _storage(self._folder)
        self.tracker = named
        self.sizes = {
            each.iteration: each.bytes
            for each in found
            if each is not None and each.iteration is not None
        }
        stored = tuple(
            StoredCheckpoint(
                each.iteration, each.state.value, each.reason, each.bytes, each.newest_mtime
            )
            for each in found
            if each is not None and each.iteration is not None
        )
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
    """Cheap to take, and different once something was written that matters."""
    if name.files:
        return tuple(_stamp(os.path.join(folder, file)) for file in name.files)
    inside = os.path.join(folder, name.name)
    return _stamp(inside), *(_stamp(os.path.join(inside, file)) for file in _TELLING)


def _storage(folder: str) -> Storage | None:
    """Free for whoever is not root: what a save can use."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return Storage(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def _stamp(path: str) -> Mark | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


class SavedTimeline(NamedTuple):
    timeline: Timeline | None
    """None: there is none, or it is broken."""
    problem: str | None = None
    """What a person should know about the file."""
    is_broken: bool = False


def find(folder: str) -> SavedTimeline:
    name = f"{file.FOLDER}/{file.FILE}"
    try:
        read = file.read(folder)
    except file.BrokenTimeline as error:
        return SavedTimeline(
            None, f"{name} {error}: which checkpoints were abandoned is not known", True
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
    """What the file is to hold."""
    quarantine = timeline.quarantine
    return file.to_text(
        file.TimelineFile(
            timeline.attempt,
            tuple(file.TimelineAttempt(*each) for each in timeline.attempts),
            tuple(file.TimelineRollback(*each) for each in timeline.rollbacks),
            None if quarantine is None else file.TimelineQuarantine(*quarantine),
        )
    )
