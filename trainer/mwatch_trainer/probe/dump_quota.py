# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Room for dumps on the volume: a pod whose volume overruns is evicted, and training with it.

The oldest dumps go before a new one is taken. One that is too large when it is there loses its
largest flight recorders, and then whatever is largest; its stacks are small. What torch dumps of
itself, unasked, is bounded as well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

MAX_DUMPS = 8
DUMP_BYTES = 64 << 20
"""Of one dump. A rank writes no more than its share of it (`probe_dump`)."""
OLDER_BYTES = 64 << 20
RECORDER_BYTES = 64 << 20
RECORDER = "recorder"
"""The folder of torch's own dumps."""


class DumpRoom:
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def make(self, name: str) -> None:
        """For a dump of that name. What cannot be removed stays."""
        kept = [each for each in self._by_age() if each != name]
        sizes = {each: sum(_sizes(os.path.join(self._folder, each)).values()) for each in kept}
        while kept and (len(kept) >= MAX_DUMPS or sum(sizes[each] for each in kept) > OLDER_BYTES):
            shutil.rmtree(os.path.join(self._folder, kept.pop(0)), ignore_errors=True)
        self.trim_recorder()

    def trim(self, name: str) -> list[str]:
        """What was taken out of this dump because it was too large."""
        folder = os.path.join(self._folder, name)
        sizes = _sizes(folder)
        by_worth = sorted(sizes, key=lambda each: (each.endswith(".pickle"), sizes[each]))
        return _remove_from_the_end(folder, by_worth, sizes, DUMP_BYTES)

    def trim_recorder(self) -> None:
        """The oldest go: what torch writes last is of the newest trouble."""
        folder = os.path.join(self._folder, RECORDER)
        sizes = _sizes(folder)
        newest_first = sorted(sizes, key=lambda each: -_mtime(os.path.join(folder, each)))
        _remove_from_the_end(folder, newest_first, sizes, RECORDER_BYTES)

    def _by_age(self) -> list[str]:
        """Folders of dumps, the oldest first."""
        paths = {each: os.path.join(self._folder, each) for each in _listed(self._folder)}
        folders = [each for each in paths if os.path.isdir(paths[each]) and each != RECORDER]
        return sorted(folders, key=lambda each: _mtime(paths[each]))


def _remove_from_the_end(
    folder: str, names: list[str], sizes: dict[str, int], most: int
) -> list[str]:
    total = sum(sizes.values())
    gone: list[str] = []
    for name in reversed(names):
        if total <= most:
            break
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
            gone.append(name)
            total -= sizes[name]
    return gone


def _sizes(folder: str) -> dict[str, int]:
    """Of the files in it."""
    found: dict[str, int] = {}
    for name in _listed(folder):
        with contextlib.suppress(OSError):
            status = os.lstat(os.path.join(folder, name))
            if not stat.S_ISDIR(status.st_mode):
                found[name] = status.st_size
    return found


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
