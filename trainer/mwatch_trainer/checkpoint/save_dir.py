# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The save folder: checkpoints judged by the timeline, Megatron's tracker, protected checkpoints.

On a network file system, two machines may see different listings for a while: this module has this
machine's view.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from typing import NamedTuple

from mwatch_trainer import contract
from mwatch_trainer.checkpoint.files import CheckpointState, look_through
from mwatch_trainer.checkpoint.listing import (
    NON_PERSISTENT,
    TRACKER,
    ListedCheckpoint,
    list_checkpoints,
    read_tracker,
    verify,
)
from mwatch_trainer.checkpoint.timeline import FOLDER, GOOD, TimelineFile, standing

_FEW = 4  # checked first: checking all checkpoints of a long run can take minutes
_MANY = 200
_REMOTE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class Candidate(NamedTuple):
    iteration: int
    name: str
    state: CheckpointState
    standing: str
    written_at: float | None

    @property
    def is_sure(self) -> bool:
        return self.state is CheckpointState.COMPLETE and self.standing == GOOD

    @property
    def is_hoped(self) -> bool:
        return self.state is CheckpointState.UNVERIFIED and self.standing == GOOD


class SaveDirView(NamedTuple):
    candidates: tuple[Candidate, ...]  # newest first
    pointer: str | None  # the checkpoint that the tracker or Composer's link points to


def is_remote(path: str) -> bool:
    """Whether the path is in an object store, which cannot be listed here."""
    return _REMOTE.match(path) is not None


def look(folder: str, timeline: TimelineFile) -> SaveDirView:
    """List the checkpoints. Raises OSError if the folder exists and cannot be listed."""
    if not os.path.lexists(folder):
        return SaveDirView((), None)
    view = _look(folder, timeline, _FEW)
    if len(view.candidates) >= _FEW and not any(each.is_sure for each in view.candidates):
        view = _look(folder, timeline, _MANY)
    return _with_pointed(folder, timeline, view)


def look_for(folder: str, timeline: TimelineFile, iteration: int) -> SaveDirView:
    """List the checkpoints, including this iteration's if it exists. Raises OSError."""
    if not os.path.lexists(folder):
        return SaveDirView((), None)
    view = _look(folder, timeline, _FEW)
    return view if find(view, iteration) is not None else _look(folder, timeline, _MANY)


def pointed(view: SaveDirView) -> Candidate | None:
    return next((each for each in view.candidates if each.name == view.pointer), None)


def newest(view: SaveDirView) -> Candidate | None:
    """Return the checkpoint to resume from; an unverified one only if none is complete."""
    sure = [each for each in view.candidates if each.is_sure]
    hoped = [each for each in view.candidates if each.is_hoped]
    return next(iter(sure or hoped), None)


def find(view: SaveDirView, iteration: int) -> Candidate | None:
    """Return the iteration's checkpoint; if there are two (Composer's epochs), the complete one."""
    same = [each for each in view.candidates if each.iteration == iteration]
    whole = [each for each in same if each.state is not CheckpointState.INCOMPLETE]
    return next(iter(whole or same), None)


def why_unlisted(folder: str, name: str, may_be_unverified: bool) -> str | None:
    """Return None if this machine sees the checkpoint as complete, else the reason."""
    try:
        checkpoint = verify(folder, name)
    except OSError as error:
        return error.strerror or str(error)
    if checkpoint is None:
        return "it is not there"
    is_unverified = checkpoint.state is CheckpointState.UNVERIFIED
    if checkpoint.state is CheckpointState.COMPLETE or (is_unverified and may_be_unverified):
        return None
    return checkpoint.reason or checkpoint.state.value


def _look(folder: str, timeline: TimelineFile, most: int) -> SaveDirView:
    listing = list_checkpoints(folder, max_checkpoints=most)
    found = [_candidate(each, timeline) for each in listing.checkpoints]
    pointer = next((each.checkpoint for each in listing.pointers if each.checkpoint), None)
    tracker = read_tracker(folder)
    if pointer is None and tracker is not None and tracker.value and tracker.value.isdigit():
        pointer = f"iter_{int(tracker.value):07d}"
    kept = tuple(each for each in found if each is not None)
    return SaveDirView(kept, pointer)


def _with_pointed(folder: str, timeline: TimelineFile, view: SaveDirView) -> SaveDirView:
    """Add the checkpoint of the program's pointer, which may be old if a person has set it."""
    if view.pointer is None or pointed(view) is not None:
        return view
    checkpoint = verify(folder, view.pointer)
    found = None if checkpoint is None else _candidate(checkpoint, timeline)
    more = () if found is None else (found,)
    return view._replace(candidates=(*view.candidates, *more))


def _candidate(checkpoint: ListedCheckpoint, timeline: TimelineFile) -> Candidate | None:
    if checkpoint.iteration is None:
        return None
    written_at = checkpoint.newest_mtime
    worth = standing(timeline, checkpoint.iteration, written_at)
    return Candidate(checkpoint.iteration, checkpoint.name, checkpoint.state, worth, written_at)


BEFORE = "tracker-before.json"


def tracker_value(folder: str) -> str | None:
    """Return the tracker's value, `20` or `release`; None if Megatron could not use it."""
    pointer = read_tracker(folder)
    return None if pointer is None else pointer.value


def point_at(folder: str, iteration: int, attempt: int) -> str | None:
    """Point the tracker at `iteration`; return what was changed. Raises OSError.

    It is replaced atomically, and its old value is kept in `.mwatch/tracker-before.json`. Only the
    owner of the attempt changes it. Megatron uses the *largest* number that any of its ranks reads
    there, so every node must see the new value before it starts.
    """
    pointer = read_tracker(folder)
    was = None if pointer is None else pointer.value
    if was == str(iteration):
        return None
    _record_tracker(folder, pointer is not None, was, str(iteration), attempt)
    temporary = os.path.join(folder, FOLDER, f"tracker.{os.getpid()}.tmp")
    path, data = os.path.join(folder, TRACKER), str(iteration).encode()
    contract.replace_file(path, data, is_synced=True, temporary=temporary)
    before = "there was none" if pointer is None else f"was {was or 'unreadable'}"
    return f"pointed {TRACKER} at {iteration} ({before}, kept in {FOLDER}/{BEFORE})"


def set_aside(folder: str, attempt: int) -> str | None:
    """Move the tracker aside, so that Megatron loads nothing; return what was changed."""
    path = os.path.join(folder, TRACKER)
    if not os.path.lexists(path):
        return None
    aside = os.path.join(folder, FOLDER, f"tracker-aside-{attempt}.txt")
    os.makedirs(os.path.dirname(aside), exist_ok=True)
    os.replace(path, aside)
    return f"moved {TRACKER} to {os.path.relpath(aside, folder)}"


def set_non_persistent_aside(folder: str, attempt: int) -> str | None:
    """Move the tracker of newer non-persistent checkpoints aside: Megatron would prefer those."""
    path = os.path.join(folder, NON_PERSISTENT, TRACKER)
    if not os.path.lexists(path):
        return None
    aside = f"{path}.mwatch-{attempt}"
    os.replace(path, aside)
    return f"moved {NON_PERSISTENT}/{TRACKER} to {os.path.basename(aside)}"


def _record_tracker(folder: str, was_there: bool, was: str | None, now: str, attempt: int) -> None:
    beside = os.path.join(folder, FOLDER)
    os.makedirs(beside, exist_ok=True)
    record = {"attempt": attempt, "was_there": was_there, "value": was, "now": now}
    contract.write_json(os.path.join(beside, BEFORE), record)


KEEP = "keep"
KEPT = 2
_MARKER = ".kept-by-mwatch"
_NAME = re.compile(r"iter_[0-9]{1,18}|ep[0-9]{1,9}-ba[0-9]{1,18}", re.ASCII)
_RANKS = re.compile(r"(ep[0-9]{1,9}-ba[0-9]{1,18})-rank(?:\{rank\}|[0-9]+)(\.[\w.]+)?", re.ASCII)


def protect(save: str, name: str) -> str | None:
    """Protect a checkpoint from the trainer's own cleanup; return the error message, or None.

    It is hard-linked into `<save>/.mwatch/keep/`, which takes no space until the trainer deletes
    it; at most two are kept. Only folders with our marker are deleted, and no link is followed.
    """
    ranks = _RANKS.fullmatch(name)
    kept_as = ranks.group(1) if ranks else name
    if not _NAME.fullmatch(kept_as):
        return f"{name} is not a checkpoint of one run"
    folder = os.path.join(save, FOLDER, KEEP)
    if os.path.lexists(os.path.join(folder, kept_as)):
        return None
    half = os.path.join(folder, f".{kept_as}.{os.getpid()}.half")
    try:
        os.makedirs(half)
        with open(os.path.join(half, _MARKER), "x", encoding="ascii"):
            pass
        pairs = _ranks_of(save, kept_as) if ranks else _files_of(os.path.join(save, name))
        for source, inside in pairs:
            target = os.path.join(half, inside)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.link(source, target, follow_symlinks=False)
        os.rename(half, os.path.join(folder, kept_as))
    except (OSError, ValueError) as error:
        _remove(half)
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"{name} could not be protected by hard links: {why}"
    _prune(folder, kept_as)
    return None


def _files_of(checkpoint: str) -> list[tuple[str, str]]:
    if not stat.S_ISDIR(os.lstat(checkpoint).st_mode):
        raise ValueError("it is not a folder")
    contents = look_through(checkpoint)
    if contents.is_cut:
        raise ValueError("it has too many files")
    for path, problem in contents.problems.items():
        if problem.startswith("cannot be"):  # links and special files are skipped
            raise ValueError(f"{path} {problem}")
    paths = ((os.path.join(checkpoint, path), path) for path in contents.files)
    return [each for each in paths if not os.path.islink(each[0])]


def _ranks_of(save: str, stem: str) -> list[tuple[str, str]]:
    with os.scandir(save) as entries:
        names = [each.name for each in entries if each.is_file(follow_symlinks=False)]
    own = [name for name in names if name.startswith(stem + "-rank")]
    if not own:
        raise ValueError("it is not there")
    return [(os.path.join(save, name), name) for name in own]


def _prune(folder: str, newest: str) -> None:
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            ours = [each for each in entries if _is_ours(each.path)]
        ours.sort(key=lambda each: (each.name == newest, os.lstat(each.path).st_mtime))
        for entry in ours[: max(0, len(ours) - KEPT)]:
            _remove(entry.path)


def _is_ours(path: str) -> bool:
    try:
        is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
        return is_folder and stat.S_ISREG(os.lstat(os.path.join(path, _MARKER)).st_mode)
    except OSError:
        return False


def _remove(folder: str) -> None:
    """Remove one of mwatch's folders; other hard links to its files remain."""
    if not _is_ours(folder):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        return
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != _MARKER:
                os.unlink(entry.path)
        os.unlink(os.path.join(folder, _MARKER))  # last: unmarked folders are not ours
        os.rmdir(folder)
