# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What lies in the save folder, newest first, and what the timeline says of it.

A network file system shows two machines different listings for a while: what is seen here is
this machine's view.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from mwatch_trainer.checkpoint import Checkpoint, State, list_checkpoints, read_tracker, verify
from mwatch_trainer.timeline import GOOD, Timeline, standing

_FEW = 4
"""Looked at first: to verify all of a long run's checkpoints can take minutes."""
_MANY = 200
_REMOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class Candidate(NamedTuple):
    iteration: int
    name: str
    state: State
    standing: str
    written_at: float | None

    @property
    def is_sure(self) -> bool:
        return self.state is State.COMPLETE and self.standing == GOOD

    @property
    def is_hoped(self) -> bool:
        return self.state is State.UNVERIFIED and self.standing == GOOD


class View(NamedTuple):
    candidates: tuple[Candidate, ...]
    """The newest first."""
    pointer: str | None
    """What the tracker, or Composer's link, leads to: the name of a checkpoint."""
    has_pointer: bool


def is_remote(path: str) -> bool:
    """An object store: it is no folder that can be listed here."""
    return _REMOTE.match(path) is not None


def look(folder: str, timeline: Timeline) -> View:
    """Raises OSError where the folder is there and cannot be listed."""
    if not os.path.lexists(folder):
        return View((), None, False)
    view = _look(folder, timeline, _FEW)
    if len(view.candidates) >= _FEW and not any(each.is_sure for each in view.candidates):
        view = _look(folder, timeline, _MANY)
    return _with_pointed(folder, timeline, view)


def look_for(folder: str, timeline: Timeline, iteration: int) -> View:
    """With this one in it, if it is there. Raises OSError."""
    if not os.path.lexists(folder):
        return View((), None, False)
    view = _look(folder, timeline, _FEW)
    return view if find(view, iteration) is not None else _look(folder, timeline, _MANY)


def pointed(view: View) -> Candidate | None:
    """What the program would load by itself, if it is there."""
    return next((each for each in view.candidates if each.name == view.pointer), None)


def newest(view: View) -> Candidate | None:
    """To resume from: one that is only hoped to be whole where no other is known to be."""
    sure = [each for each in view.candidates if each.is_sure]
    hoped = [each for each in view.candidates if each.is_hoped]
    return next(iter(sure or hoped), None)


def find(view: View, iteration: int) -> Candidate | None:
    """Of two that have this number (Composer's epochs), the one that is whole."""
    same = [each for each in view.candidates if each.iteration == iteration]
    whole = [each for each in same if each.state is not State.INCOMPLETE]
    return next(iter(whole or same), None)


def why_unseen(folder: str, name: str, may_be_unverified: bool) -> str | None:
    """None where this machine sees the checkpoint whole."""
    try:
        checkpoint = verify(folder, name)
    except OSError as error:
        return error.strerror or str(error)
    if checkpoint is None:
        return "it is not there"
    wanted = {State.COMPLETE, State.UNVERIFIED} if may_be_unverified else {State.COMPLETE}
    return None if checkpoint.state in wanted else checkpoint.reason or checkpoint.state.value


def _look(folder: str, timeline: Timeline, most: int) -> View:
    listing = list_checkpoints(folder, max_checkpoints=most)
    found = [_candidate(each, timeline) for each in listing.checkpoints]
    pointer = next((each.checkpoint for each in listing.pointers if each.checkpoint), None)
    tracker = read_tracker(folder)
    if pointer is None and tracker is not None and tracker.value and tracker.value.isdigit():
        pointer = f"iter_{int(tracker.value):07d}"
    kept = tuple(each for each in found if each is not None)
    return View(kept, pointer, bool(listing.pointers))


def _with_pointed(folder: str, timeline: Timeline, view: View) -> View:
    """The program's own pointer may lead far back: a person may have set it there."""
    if view.pointer is None or pointed(view) is not None:
        return view
    checkpoint = verify(folder, view.pointer)
    found = None if checkpoint is None else _candidate(checkpoint, timeline)
    more = () if found is None else (found,)
    return view._replace(candidates=(*view.candidates, *more))


def _candidate(checkpoint: Checkpoint, timeline: Timeline) -> Candidate | None:
    if checkpoint.iteration is None:
        return None
    written_at = checkpoint.newest_mtime
    worth = standing(timeline, checkpoint.iteration, written_at)
    return Candidate(checkpoint.iteration, checkpoint.name, checkpoint.state, worth, written_at)
