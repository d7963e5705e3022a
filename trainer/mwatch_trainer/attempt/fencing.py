# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Taking the attempt number: the fencing token on the checkpoint volume.

Each number is a file `.mwatch/claims/attempt-N.json` that is made exclusively (a hard link, or
`O_EXCL` where the file system has no links), so one wrapper owns it, whatever clocks and caches
say. The file holds the whole timeline as its owner leaves it; `timeline.json` is its copy for
readers, written after. So the newest claim is the truth where the two differ.

A wrapper that comes late finds a higher number and writes nothing.

Whether a newer attempt has begun on the same checkpoint folder.

Looked at every two seconds, so that the child of an older attempt is stopped before its next
save. What cannot be read says nothing: a file system that is away for a moment stops no training.

Looks every two seconds whether a newer attempt has begun. From a thread: folders can hang.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from typing import Callable

from mwatch_trainer import contract
from mwatch_trainer.checkpoint import timeline
from mwatch_trainer.checkpoint import timeline as timelines
from mwatch_trainer.checkpoint.files import read_bounded
from mwatch_trainer.checkpoint.timeline import TimelineFile
from mwatch_trainer.control_requests import FENCE, ControlRequest, RequestQueue

FOLDER = "claims"
KEPT = 16
_NAME = re.compile(r"attempt-([0-9]{1,15})\.json", re.ASCII)
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}


class Taken(Exception):
    """Another wrapper has this number, or a higher one; the text says which."""


def folder_of(save: str) -> str:
    return os.path.join(save, timelines.FOLDER, FOLDER)


def highest(save: str) -> int:
    """Of the claims; 0 where there is none. Raises OSError for what cannot be listed."""
    return max(_numbers(save), default=0)


def current(save: str) -> tuple[TimelineFile, int]:
    """The timeline, and the highest number that was ever taken. Raises Broken, OSError."""
    number = highest(save)
    claimed = _claimed(save, number) if number else None
    try:
        timeline = timelines.read(save) or TimelineFile()
    except timelines.BrokenTimeline:
        if claimed is None:
            raise
        timeline = claimed
    if claimed is not None and claimed.attempt > timeline.attempt:
        timeline = claimed
    return timeline, max(number, timeline.attempt)


def take(save: str, number: int, seen: int, text: Callable[[TimelineFile], str]) -> TimelineFile:
    """Owns `number` from now on; `seen` is the highest that the choice was made on.

    `text` writes the new timeline from the present one. Raises Taken, Broken, OSError.
    """
    timeline, top = current(save)
    if top > seen or top >= number:
        raise Taken(f"attempt {top} has begun since")
    content = text(timeline).encode()
    os.makedirs(folder_of(save), exist_ok=True)
    _make(save, number, content)
    top = highest(save)
    if top > number:
        raise Taken(f"attempt {top} has begun at the same time")
    _publish(save, content)
    _forget(save, number)
    return timelines.parse(content)


def _make(save: str, number: int, content: bytes) -> None:
    path = os.path.join(folder_of(save), f"attempt-{number}.json")
    temporary = f"{path}.{os.getpid()}.tmp"
    _write(temporary, content, os.O_TRUNC)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise Taken(f"attempt {number} has begun elsewhere") from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            _write(path, content, os.O_EXCL)
        except FileExistsError:
            raise Taken(f"attempt {number} has begun elsewhere") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _publish(save: str, content: bytes) -> None:
    contract.replace_file(timelines.path_of(save), content, is_synced=True)


def _write(path: str, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _claimed(save: str, number: int) -> TimelineFile | None:
    """None for one that was not written to its end."""
    path = os.path.join(folder_of(save), f"attempt-{number}.json")
    try:
        return timelines.parse(read_bounded(path, timelines.MAX_BYTES))
    except (OSError, timelines.BrokenTimeline):
        return None


def _numbers(save: str) -> tuple[int, ...]:
    try:
        names = os.listdir(folder_of(save))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    found = (_NAME.fullmatch(name) for name in names)
    return tuple(int(each.group(1)) for each in found if each)


def _forget(save: str, number: int) -> None:
    """Old claims; the newest are kept for a wrapper that wakes up."""
    with contextlib.suppress(OSError):
        for old in sorted(_numbers(save))[:-KEPT]:
            if old < number:
                os.unlink(os.path.join(folder_of(save), f"attempt-{old}.json"))


class Fence:
    def __init__(self, save: str | None, number: int) -> None:
        self._save = save
        self._number = number

    def is_stale(self) -> str | None:
        """A text: a newer attempt has begun, stop the child now. Cheap, never raises."""
        if self._save is None:
            return None
        try:
            newest = highest(self._save)
        except OSError:
            newest = 0
        document = contract.read_json(timeline.path_of(self._save)) or {}
        reported = document.get("attempt")
        if isinstance(reported, int) and not isinstance(reported, bool):
            newest = max(newest, reported)
        if newest <= self._number:
            return None
        return f"attempt {newest} has begun in {self._save}, and this is attempt {self._number}"


_EVERY_SECONDS = 2.0


class FenceWatch:
    def __init__(self, fence: Fence, requests: RequestQueue) -> None:
        self._fence, self._requests = fence, requests
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name="mwatch-fence", daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(_EVERY_SECONDS):
            why = self._fence.is_stale()
            if why is not None and not self._is_over.is_set():
                self._requests.put(ControlRequest(FENCE, why, 0.0))
                return
