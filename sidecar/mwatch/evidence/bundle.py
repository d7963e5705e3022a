# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The evidence of an incident, saved before anything is killed and off the volume that may die.

Asks the wrapper for a dump (stacks and flight recorder of every rank, their environment), then
copies that, the facts of the node, the probes' records, the attempt and the end of the log into a
folder of its own, with what the caller gives besides; then the folder is kept where it outlives the
pod. All within a time and a byte limit; what could not be had is written down with the reason.
Storage that hangs costs the time limit, and no more: the copying runs aside.

What belongs to the evidence of an incident, the small things first.

Each part yields contents, or what is missing and why. A part spends from one budget of bytes, so
that a job of many ranks cannot fill a volume; the stacks of all ranks come before the flight
recorder of any.

Parts of a bundle that only its caller can give: what NCCL says twice, what the sidecar sees.

They are made in a thread from the beginning on, while the ranks write their dumps: to ask twice,
some seconds apart, then costs nothing. Whoever is not ready in time is written down as missing.
"""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mwatch.evidence.offload import OffloadResult
from mwatch.runtime.files import VolumeReader, make_private_folder, write_private
from mwatch_trainer.contract import (
    ATTEMPT,
    DECISION,
    DUMPS_FOLDER,
    LOG,
    NODE_FOLDER,
    NODE_GPUS,
    NODE_PROCESSES,
    PROBE_FOLDER,
    PROBE_PREFIX,
)
from mwatch_trainer.evidence.incident_dirs import MANIFEST
from mwatch_trainer.probe.record_file import SIZE, unpack
from mwatch_trainer.scrub.scrubber import Scrubber

MAX_FILE_BYTES = 8 << 20
MAX_FILES = 4096
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
RECORDER_FOLDER = "recorder"
_OLDER_LOGS = tuple(f"{LOG}.{number}" for number in range(1, 4))
_LOOK_BYTES = 1024


class Content(NamedTuple):
    name: str
    data: bytes
    is_cut: bool = False
    is_binary: bool = False
    """Cannot be scrubbed in part: it is whole or not there."""


class Missing(NamedTuple):
    what: str
    why: str


@dataclass(slots=True)
class Budget:
    bytes: int
    log_bytes: int

    def take(self, amount: int) -> None:
        self.bytes = max(0, self.bytes - amount)


Found = Iterator[Content | Missing]
Part = Callable[[VolumeReader, str, Budget], Found]


def dump(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """Stacks and facts first, then the flight recorder."""
    try:
        names = volume.names(DUMPS_FOLDER, id)
    except OSError as error:
        yield Missing("stacks and flight recorder", f"there is no dump: {_why(error)}")
        return
    if len(names) > MAX_FILES:
        yield Missing("part of the dump", f"it has {len(names)} files")
    for name in sorted(names[:MAX_FILES], key=lambda name: (".flight." in name, name)):
        if not is_safe_name(name):
            yield Missing(ascii(name)[:100], "it has an odd name")
            continue
        yield from _file(volume, (DUMPS_FOLDER, id, name), name, budget)


def recorder(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """What torch has dumped of itself when a collective timed out."""
    try:
        names = volume.names(DUMPS_FOLDER, RECORDER_FOLDER)
    except OSError:
        return
    for name in filter(is_safe_name, names[:MAX_FILES]):
        path = (DUMPS_FOLDER, RECORDER_FOLDER, name)
        yield from _file(volume, path, f"{RECORDER_FOLDER}-{name}", budget)


def attempt(volume: VolumeReader, id: str, budget: Budget) -> Found:
    yield from _file(volume, (ATTEMPT,), ATTEMPT, budget)
    yield from _file(volume, (DECISION,), DECISION, budget, is_needed=False)


def node(volume: VolumeReader, id: str, budget: Budget) -> Found:
    for name in (NODE_PROCESSES, NODE_GPUS):
        yield from _file(volume, (NODE_FOLDER, name), f"{NODE_FOLDER}-{name}", budget)


def probes(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """The records of all ranks in one readable file."""
    try:
        names = [each for each in volume.names(PROBE_FOLDER) if each.startswith(PROBE_PREFIX)]
    except OSError as error:
        yield Missing("probe records", _why(error))
        return
    records = []
    for name in names[:MAX_FILES]:
        try:
            record = unpack(volume.head(PROBE_FOLDER, name, most=SIZE).data)
        except OSError as error:
            yield Missing(name, _why(error))
            continue
        if record is None:
            yield Missing(name, "its record was being written, or is of another release")
        else:
            records.append(record._asdict())
    data = json.dumps({"records": records}, indent=1).encode()
    budget.take(len(data))
    yield Content("probe.json", data)


def log(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """The last lines; of the files before where the newest has just begun."""
    most = min(budget.log_bytes, budget.bytes)
    data, is_cut = b"", False
    for name in (LOG, *_OLDER_LOGS):
        try:
            part = volume.tail(name, most=most - len(data))
        except OSError as error:
            if name == LOG:
                yield Missing(LOG, _why(error))
                return
            break  # there is no older one
        data, is_cut = part.data + data, part.is_cut
        if is_cut or len(data) >= most:
            break
    budget.take(len(data))
    yield Content(LOG, data, is_cut)


def _file(
    volume: VolumeReader, path: tuple[str, ...], name: str, budget: Budget, is_needed: bool = True
) -> Found:
    most = min(MAX_FILE_BYTES, budget.bytes)
    try:
        data, is_cut = volume.head(*path, most=most)
    except FileNotFoundError:
        if is_needed:
            yield Missing(name, "it is not there")
        return
    except OSError as error:
        yield Missing(name, _why(error))
        return
    is_binary = name.endswith(".pickle") or b"\0" in data[:_LOOK_BYTES]
    if is_cut and (is_binary or not most):
        yield Missing(name, "it is too large" if budget.bytes else "the byte budget is spent")
        return
    budget.take(len(data))
    yield Content(name, data, is_cut, is_binary)


def is_safe_name(name: str) -> bool:
    """Of a file in a bundle."""
    return _SAFE.fullmatch(name) is not None


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


PARTS: tuple[Part, ...] = (attempt, node, probes, log, dump, recorder)
"""The small ones first: they are had in any case."""


Extra = Callable[[], Iterable[Content | Missing]]
MAX_PARTS = 64
_WHAT = "what the watcher itself sees"


class ExtraParts:
    def __init__(self, extra: Extra) -> None:
        self._ready: queue.SimpleQueue[Content | Missing | None] = queue.SimpleQueue()
        work = threading.Thread(target=self._make, args=(extra,), daemon=True)
        work.name = "mwatch-evidence-extra"
        work.start()

    def found(self, budget: Budget, seconds: float) -> Iterator[Content | Missing]:
        """What is ready within that time."""
        until = time.monotonic() + seconds
        while True:
            try:
                each = self._ready.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                yield Missing(f"a part of {_WHAT}", "it was not ready in time")
                return
            if each is None:
                return
            yield _bounded(each, budget)

    def _make(self, extra: Extra) -> None:
        """A fault of ours there must not cost the rest of the bundle."""
        try:
            for _, each in zip(range(MAX_PARTS), extra(), strict=False):
                self._ready.put(each)
        except Exception as error:
            self._ready.put(Missing(f"a part of {_WHAT}", f"{type(error).__name__}: {error}"))
        finally:
            self._ready.put(None)


def _bounded(each: Content | Missing, budget: Budget) -> Content | Missing:
    if isinstance(each, Missing):
        return each
    if not is_safe_name(each.name):
        return Missing(ascii(each.name)[:100], "it has an odd name")
    most = min(MAX_FILE_BYTES, budget.bytes)
    if len(each.data) > most and (each.is_binary or not most):
        return Missing(each.name, "it is too large" if budget.bytes else "the byte budget is spent")
    budget.take(min(len(each.data), most))
    if len(each.data) <= most:
        return each
    return each._replace(data=each.data[:most], is_cut=True)


VERSION = 1
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

Ask = Callable[[Mapping[str, Any], float], Mapping[str, Any]]
"""A request to the wrapper's control socket, and how long its answer may take. Raises OSError or
ValueError where there is none."""
Keep = Callable[[Path, str, float], OffloadResult]
"""Brings the folder of a bundle, named so, off the pod within so many seconds."""


@dataclass(frozen=True, slots=True)
class EvidenceLimits:
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
    stored: OffloadResult | None = None
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
    limits: EvidenceLimits | None = None,
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
    how = _How(ask, reason, extra, keep, patterns, limits or EvidenceLimits(), clock, wall)
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
    limits: EvidenceLimits
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
        self._stored: OffloadResult | None = None
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
