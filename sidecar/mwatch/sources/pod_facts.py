# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the data files and file systems that the training in this pod depends on.

The data paths come from the command line, or from the argument block that the trainer prints. They
are checked rarely and in a thread, because they are on network file systems. A folder that is
mounted only in the training container is reported as unobservable, not as missing.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import structs

from mwatch.model.reading import Ok, Reading
from mwatch.model.snapshot.pod import DataFile, Mount, PodFacts
from mwatch.sources.background import BackgroundCall

PERIOD_SECONDS = 300.0
SOON_SECONDS = 30.0
"""Period while a folder does not exist yet: the first save creates it."""
LIMIT_SECONDS = 30.0
MAX_PREFIXES = 64
MAX_MOUNTS = 16
_DATA_FLAGS = (
    "--data-path", "--train-data-path", "--valid-data-path", "--test-data-path",
)  # fmt: skip
_QUOTED = re.compile(r"'([^']+)'")


class PodFactsSource:
    def __init__(
        self,
        prefixes: Sequence[str],
        save: str | None,
        tracker: Callable[[], str | None],
        *,
        mountinfo: str = "/proc/self/mountinfo",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prefixes`: of data files; `tracker`: the newest checkpoint named by the tracker file."""
        self._prefixes = tuple(prefixes)
        self._save = save
        self._tracker = tracker
        self._mountinfo = mountinfo
        self._clock = clock
        self._next_at = clock()
        self._call: BackgroundCall[PodFacts] = BackgroundCall(
            "mwatch-pod", self._check, limit_seconds=LIMIT_SECONDS, clock=clock
        )
        self._facts: PodFacts | None = None

    @property
    def facts(self) -> PodFacts | None:
        """Results of the last check, maybe minutes old; starts the next one when it is due."""
        answer = self._call.take()
        if isinstance(answer, Ok):
            self._facts = answer.value
            if any(each.free_bytes is None for each in self._facts.mounts):
                self._next_at = min(self._next_at, self._clock() + SOON_SECONDS)
        if self._clock() >= self._next_at and self._call.start():
            self._next_at = self._clock() + PERIOD_SECONDS
        if self._facts is None:
            return None
        return structs.replace(self._facts, tracker=self._tracker())

    def _check(self) -> Reading[PodFacts]:
        data = tuple(_data_file(each) for each in self._prefixes)
        folders = [self._save] if self._save else []
        folders += [os.path.dirname(each.prefix) for each in data if not each.is_unobservable]
        mounts = tuple(_mounts(dict.fromkeys(folders), self._mountinfo))
        return Ok(PodFacts(data, mounts))


def data_prefixes(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the paths in `--data-path A` or `--data-path 0.3 A 0.7 B`."""
    found: dict[str, None] = {}
    is_data = False
    for word in argv:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            is_data = flag in _DATA_FLAGS
            word = value if equals else ""
        if is_data and word and not _is_weight(word):
            found[word] = None
    return tuple(found)[:MAX_PREFIXES]


def printed_prefixes(extra: Mapping[str, object]) -> tuple[str, ...]:
    """Return the paths in an argument block: `['0.3', '/d/a', '0.7', '/d/b']`, maybe cut."""
    found: dict[str, None] = {}
    for flag in _DATA_FLAGS:
        text = extra.get(flag[2:].replace("-", "_"))
        if isinstance(text, str):
            words = _QUOTED.findall(text) if text.startswith("[") else [text]
            found.update((word, None) for word in words if not _is_weight(word))
    return tuple(found)[:MAX_PREFIXES]


def _is_weight(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _data_file(prefix: str) -> DataFile:
    if not os.path.isdir(os.path.dirname(prefix) or "."):
        return DataFile(prefix, None, None, is_unobservable=True)
    return DataFile(prefix, _size(prefix + ".bin"), _size(prefix + ".idx"))


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def _mounts(folders: Iterable[str], mountinfo: str) -> Iterable[Mount]:
    with open(mountinfo, encoding="utf-8", errors="replace") as file:
        known = [each for each in map(_mounted, file) if each is not None]
    for folder in list(folders)[:MAX_MOUNTS]:
        real = os.path.realpath(folder)
        above = [each for each in known if _is_within(real, each[0])]
        if not above:
            continue
        point, kind, is_read_only = max(above, key=lambda each: len(each[0]))
        free, size = disk_space(folder)
        yield Mount(folder, point, kind, is_read_only, free, size)


def _mounted(line: str) -> tuple[str, str, bool] | None:
    """Return mount point, type of file system, and whether it is read-only."""
    before, _, after = line.partition(" - ")
    left, right = before.split(), after.split()
    if len(left) < 6 or len(right) < 3:
        return None
    point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left[4])
    options = {*left[5].split(","), *right[2].split(",")}
    return point, right[0], "ro" in options


def _is_within(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(point + "/")


def disk_space(folder: str) -> tuple[int | None, int | None]:
    """Return the bytes that users other than root can still write, and the total."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None, None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
