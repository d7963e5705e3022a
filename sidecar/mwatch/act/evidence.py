# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The evidence of an incident, saved before anything is killed and off the volume that may die.

Asks the wrapper for a dump (stacks and flight recorder of every rank, their environment), then
copies that, the facts of the node, the probes' records, the attempt and the end of the log into a
folder of its own, with what the caller gives besides; then the folder is kept where it outlives the
pod. All within a time and a byte limit; what could not be had is written down with the reason.
Storage that hangs costs the time limit, and no more: the copying runs aside.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.act.evidence_extra import Extra, ExtraParts
from mwatch.act.evidence_parts import PARTS, Budget, Content, Missing
from mwatch.act.off_pod import Stored
from mwatch.act.private_file import make_private_folder, write_private
from mwatch.act.volume_reader import VolumeReader
from mwatch_trainer.incident_folders import MANIFEST
from mwatch_trainer.scrub import Scrubber

__all__ = ["MANIFEST", "Bundle", "Content", "Limits", "Missing", "Stored", "collect"]

VERSION = 1
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

Ask = Callable[[Mapping[str, Any], float], Mapping[str, Any]]
"""A request to the wrapper's control socket, and how long its answer may take. Raises OSError or
ValueError where there is none."""
Keep = Callable[[Path, str, float], Stored]
"""Brings the folder of a bundle, named so, off the pod within so many seconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float = 20.0
    """In all. Every second of it is a second in which the whole job stands still."""
    dump_seconds: float = 5.0
    """For the ranks to write their stacks; then they are asked by a signal."""
    keep_seconds: float = 5.0
    """Of all of it, left to bring the bundle off the pod."""
    bytes: int = 64 << 20
    log_bytes: int = 1 << 20


class SavedFile(NamedTuple):
    name: str
    bytes: int
    is_cut: bool


class Bundle(NamedTuple):
    folder: Path
    files: tuple[SavedFile, ...]
    missing: tuple[Missing, ...]
    seconds: float
    stored: Stored | None = None
    """Off the pod; None: nobody was to bring it there, or the time was over."""


def collect(
    volume: str,
    folder: Path,
    id: str,
    *,
    ask: Ask,
    reason: str = "",
    extra: Extra | None = None,
    keep: Keep | None = None,
    patterns: Sequence[str] = (),
    limits: Limits | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Bundle:
    """Saves into `folder` what `volume` ($MWATCH_DIR) has; `id` names the dump. `extra` gives more,
    in a thread of its own, while the ranks write. `patterns` are the user's own secrets. Never
    raises for what the world does: an empty bundle that says why is better than none. ValueError
    for an id or a pattern that is none."""
    if not _ID.fullmatch(id):
        raise ValueError(f"{id!r} cannot be the name of a dump")
    Scrubber(patterns)  # one that cannot be used is the user's error, told at once
    how = _How(ask, reason, extra, keep, patterns, limits or Limits(), clock, wall)
    work = _Work(volume, folder, id, how)
    thread = threading.Thread(target=work.run, name="mwatch-evidence", daemon=True)
    thread.start()
    thread.join(how.limits.seconds)
    return work.bundle(is_late=thread.is_alive())


class _How(NamedTuple):
    ask: Ask
    reason: str
    extra: Extra | None
    keep: Keep | None
    patterns: Sequence[str]
    limits: Limits
    clock: Callable[[], float]
    wall: Callable[[], float]


class _Work:
    def __init__(self, volume: str, folder: Path, id: str, how: _How) -> None:
        self._volume = VolumeReader(volume)
        self._folder = folder
        self._id = id
        self._how = how
        self._at = how.wall()
        self._began = how.clock()
        self._lock = threading.Lock()
        self._files: list[SavedFile] = []
        self._missing: list[Missing] = []
        self._stored: Stored | None = None
        self._is_collected = False
        self._is_given_up = False

    def run(self) -> None:
        try:
            make_private_folder(self._folder)
        except OSError as error:
            self._miss("everything", f"the folder cannot be made: {error}")
            return
        extra = None if self._how.extra is None else ExtraParts(self._how.extra)
        self._dump()
        budget = Budget(self._how.limits.bytes, self._how.limits.log_bytes)
        for part in PARTS:
            self._save_all(part(self._volume, self._id, budget))
        if extra is not None:
            self._save_all(extra.found(budget, self._seconds_to_collect()))
        self._write_manifest()
        self._is_collected = True
        if self._how.keep is not None and not self._is_over():
            stored = self._how.keep(self._folder, self._id, self._seconds_left())
            with self._lock:
                self._stored = stored
            self._write_manifest()

    def bundle(self, *, is_late: bool) -> Bundle:
        with self._lock:
            self._is_given_up = is_late
            missing = list(self._missing)
            if is_late:
                limit = self._how.limits.seconds
                words = f"not saved within {limit:.0f} s: the storage is slow or hangs"
                what = "a copy off the pod" if self._is_collected else "the rest"
                missing.append(Missing(what, words))
            seconds = self._how.clock() - self._began
            files = tuple(self._files)
            return Bundle(self._folder, files, tuple(missing), seconds, self._stored)

    def _save_all(self, found: Iterable[Content | Missing]) -> None:
        for content in self._contents(iter(found)):
            if self._is_given_up or not self._seconds_to_collect():
                self._miss("the rest", "the time was over")
                return
            self._save(content)

    def _dump(self) -> None:
        """The wrapper answers when the ranks have written, or when their time is over."""
        seconds = self._how.limits.dump_seconds
        request = {"op": "dump", "id": self._id, "seconds": seconds}
        try:
            answer = self._how.ask(request, min(2 * seconds + 2, self._seconds_left()))
        except (OSError, ValueError) as error:
            self._miss("dump", f"the wrapper did not answer: {error or type(error).__name__}")
            return
        if answer.get("ok") is not True:
            self._miss("dump", f"none was taken: {str(answer.get('error'))[:200]}")

    def _contents(self, found: Iterator[Content | Missing]) -> Iterator[Content]:
        for each in found:
            if isinstance(each, Missing):
                self._miss(*each)
            else:
                yield each

    def _save(self, content: Content) -> None:
        data = self._scrub(content.data)
        if content.is_binary and data != content.data:
            self._miss(content.name, "it holds something that looks like a secret")
            return
        try:
            write_private(self._folder / content.name, data)
        except OSError as error:
            self._miss(content.name, f"cannot be written: {error.strerror or error}")
            return
        with self._lock:
            self._files.append(SavedFile(content.name, len(data), content.is_cut))

    def _write_manifest(self) -> None:
        with self._lock:
            body = {
                "version": VERSION,
                "id": self._id,
                "at": self._at,
                "reason": self._how.reason,
                "seconds": round(self._how.clock() - self._began, 3),
                "kept": None if self._stored is None else self._stored._asdict(),
                "files": [each._asdict() for each in self._files],
                "missing": [each._asdict() for each in self._missing],
            }
        text = json.dumps(body, indent=1) + "\n"
        try:
            write_private(self._folder / MANIFEST, self._scrub(text.encode()))
        except OSError as error:
            self._miss(MANIFEST, f"cannot be written: {error.strerror or error}")

    def _scrub(self, data: bytes) -> bytes:
        """By a scrubber of its own: a private key does not go on in the next file."""
        return Scrubber(self._how.patterns).scrub(data)

    def _miss(self, what: str, why: str) -> None:
        with self._lock:
            self._missing.append(Missing(what, why))

    def _seconds_left(self) -> float:
        return max(0.0, self._how.limits.seconds - (self._how.clock() - self._began))

    def _seconds_to_collect(self) -> float:
        """What is collected must still be brought off the pod."""
        kept = 0.0 if self._how.keep is None else self._how.limits.keep_seconds
        return max(0.0, self._seconds_left() - kept)

    def _is_over(self) -> bool:
        return self._is_given_up or not self._seconds_left()
