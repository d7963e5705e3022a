# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`<save>/.mwatch/keep/`: the last good checkpoints, protected from the trainer's own cleaning.

Hard links cost no space until the trainer deletes the checkpoint, and at most two are kept. What
is deleted is only a folder of ours (it holds our marker); no link is ever followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import Iterator

from mwatch_trainer.timeline import FOLDER

KEEP = "keep"
KEPT = 2
MAX_FILES = 100_000
_MARKER = ".kept-by-mwatch"
_MAX_DEPTH = 4
_NAME = re.compile(r"iter_[0-9]{1,18}|ep[0-9]{1,9}-ba[0-9]{1,18}", re.ASCII)
_RANKS = re.compile(r"(ep[0-9]{1,9}-ba[0-9]{1,18})-rank(?:\{rank\}|[0-9]+)(\.[\w.]+)?", re.ASCII)


def protect(save: str, name: str) -> str | None:
    """Keeps the checkpoint `name`; why that was not possible, or None."""
    ranks = _RANKS.fullmatch(name)
    kept_as = ranks.group(1) if ranks else name
    if not _NAME.fullmatch(kept_as):
        return f"{name} is no checkpoint of one run"
    folder = os.path.join(save, FOLDER, KEEP)
    if os.path.lexists(os.path.join(folder, kept_as)):
        return None
    half = os.path.join(folder, f".{kept_as}.{os.getpid()}.half")
    try:
        os.makedirs(half)
        _mark(half)
        pairs = _ranks_of(save, kept_as) if ranks else _files_of(os.path.join(save, name))
        for source, inside in pairs:
            target = os.path.join(half, inside)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.link(source, target, follow_symlinks=False)
        os.rename(half, os.path.join(folder, kept_as))
    except (OSError, ValueError) as error:
        _take_away(half)
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return f"{name} could not be protected by hard links: {why}"
    _forget(folder, kept_as)
    return None


def _mark(folder: str) -> None:
    with open(os.path.join(folder, _MARKER), "x", encoding="ascii"):
        pass


def _files_of(checkpoint: str) -> list[tuple[str, str]]:
    if not stat.S_ISDIR(os.lstat(checkpoint).st_mode):
        raise ValueError("it is no folder")
    found = [(os.path.join(checkpoint, path), path) for path in _walk(checkpoint, "", 0)]
    if len(found) > MAX_FILES:
        raise ValueError("it has too many files")
    return found


def _walk(root: str, inside: str, depth: int) -> Iterator[str]:
    with os.scandir(os.path.join(root, inside)) as entries:
        for number, entry in enumerate(entries):
            path = os.path.join(inside, entry.name)
            if number > MAX_FILES:
                raise ValueError("it has too many files")
            if entry.is_dir(follow_symlinks=False):
                if depth < _MAX_DEPTH:
                    yield from _walk(root, path, depth + 1)
            elif entry.is_file(follow_symlinks=False):
                yield path


def _ranks_of(save: str, stem: str) -> list[tuple[str, str]]:
    with os.scandir(save) as entries:
        names = [each.name for each in entries if each.is_file(follow_symlinks=False)]
    own = [name for name in names if name.startswith(stem + "-rank")]
    if not own:
        raise ValueError("it is not there")
    return [(os.path.join(save, name), name) for name in own]


def _forget(folder: str, newest: str) -> None:
    """The oldest by the time they were kept, until there are few."""
    with contextlib.suppress(OSError):
        with os.scandir(folder) as entries:
            ours = [each for each in entries if _is_ours(each.path)]
        ours.sort(key=lambda each: (each.name == newest, os.lstat(each.path).st_mtime))
        for entry in ours[: max(0, len(ours) - KEPT)]:
            _take_away(entry.path)


def _is_ours(path: str) -> bool:
    try:
        is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
        return is_folder and stat.S_ISREG(os.lstat(os.path.join(path, _MARKER)).st_mode)
    except OSError:
        return False


def _take_away(folder: str) -> None:
    """Links and folders below one of ours; the files they led to stay where they also lie."""
    if not _is_ours(folder):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
        return
    with contextlib.suppress(OSError):
        for path, folders, files in os.walk(folder, topdown=False, followlinks=False):
            for name in files:
                if name != _MARKER or path != folder:
                    os.unlink(os.path.join(path, name))
            for name in folders:
                each = os.path.join(path, name)
                os.unlink(each) if os.path.islink(each) else os.rmdir(each)
        os.unlink(os.path.join(folder, _MARKER))
        os.rmdir(folder)
