# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Collects the evidence of one incident into a folder, before anything is killed.

First the wrapper is asked for a dump (stacks, flight recorder and environment of every rank). Then
the dump, the state of the node, the probe records, the attempt, the end of the log and the caller's
parts are copied, small ones first; finally the folder is copied off the pod. Every step has a time
and a byte limit, and missing parts are listed with the reason. Copying runs in a thread, so that
hanging storage costs no more than the time limit.
"""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
from mwatch_trainer.evidence.incidents import MANIFEST
from mwatch_trainer.probe.record_file import SIZE, unpack
from mwatch_trainer.scrub.scrubber import Scrubber

MAX_FILE_BYTES = 8 << 20
MAX_FILES = 4096
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
RECORDER_FOLDER = "recorder"
_OLDER_LOGS = tuple(f"{LOG}.{number}" for number in range(1, 4))
_HEAD_BYTES = 1024
_ODD_NAME = "it has an unsafe name"


class Content(NamedTuple):
    name: str
    data: bytes
    is_cut: bool = False
    is_binary: bool = False
    """Saved completely or not at all, because a truncated file cannot be scrubbed."""


class Missing(NamedTuple):
    what: str
    why: str


@dataclass(slots=True)
class Budget:
    """Bytes left for all parts, so that a job of many ranks cannot fill a volume."""

    bytes: int
    log_bytes: int

    def take(self, amount: int) -> None:
        self.bytes = max(0, self.bytes - amount)


Found = Iterator[Content | Missing]
Part = Callable[[VolumeReader, str, Budget], Found]


def dump(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """Yield the stacks of all ranks before the flight recorder of any."""
    try:
        names = volume.names(DUMPS_FOLDER, id)
    except OSError as error:
        yield Missing("stacks and flight recorder", f"there is no dump: {_why(error)}")
        return
    if len(names) > MAX_FILES:
        yield Missing("part of the dump", f"it has {len(names)} files")
    for name in sorted(names[:MAX_FILES], key=lambda name: (".flight." in name, name)):
        if not is_safe_name(name):
            yield Missing(ascii(name)[:100], _ODD_NAME)
            continue
        yield from _file(volume, (DUMPS_FOLDER, id, name), name, budget)


def recorder(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """Yield the dumps that torch itself wrote when a collective timed out."""
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
            yield Missing(name, "the record is incomplete or from another release")
        else:
            records.append(record._asdict())
    data = json.dumps({"records": records}, indent=1).encode()
    budget.take(len(data))
    yield Content("probe.json", data)


def log(volume: VolumeReader, id: str, budget: Budget) -> Found:
    """Yield the last lines, including rotated files if the newest is short."""
    most = min(budget.log_bytes, budget.bytes)
    data, is_cut = b"", False
    for name in (LOG, *_OLDER_LOGS):
        try:
            part = volume.tail(name, most=most - len(data))
        except OSError as error:
            if name == LOG:
                yield Missing(LOG, _why(error))
                return
            break  # there is no older file
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
            yield Missing(name, "there is no such file")
        return
    except OSError as error:
        yield Missing(name, _why(error))
        return
    is_binary = name.endswith(".pickle") or b"\0" in data[:_HEAD_BYTES]
    yield _bounded(Content(name, data, is_cut, is_binary), budget)


def _bounded(each: Content, budget: Budget) -> Content | Missing:
    most = min(MAX_FILE_BYTES, budget.bytes)
    is_cut = each.is_cut or len(each.data) > most
    if is_cut and (each.is_binary or not most):
        return Missing(each.name, "it is too large" if budget.bytes else "the byte budget is spent")
    data = each.data[:most]
    budget.take(len(data))
    return each._replace(data=data, is_cut=is_cut)


def is_safe_name(name: str) -> bool:
    return _SAFE.fullmatch(name) is not None


def _why(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


PARTS: tuple[Part, ...] = (attempt, node, probes, log, dump, recorder)
"""Small parts first, so that there is always room for them."""

Extra = Callable[[], Iterable[Content | Missing]]
MAX_PARTS = 64
_WHAT = "the state of mwatch"


class ExtraParts:
    """Builds the caller's parts in a thread, while the ranks write their dumps."""

    def __init__(self, extra: Extra) -> None:
        self._ready: queue.SimpleQueue[Content | Missing | None] = queue.SimpleQueue()
        work = threading.Thread(target=self._make, args=(extra,), daemon=True)
        work.name = "mwatch-evidence-extra"
        work.start()

    def found(self, budget: Budget, seconds: float) -> Iterator[Content | Missing]:
        until = time.monotonic() + seconds
        while True:
            try:
                each = self._ready.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                yield Missing(f"a part of {_WHAT}", "it was not ready in time")
                return
            if each is None:
                return
            if isinstance(each, Missing):
                yield each
            elif is_safe_name(each.name):
                yield _bounded(each, budget)
            else:
                yield Missing(ascii(each.name)[:100], _ODD_NAME)

    def _make(self, extra: Extra) -> None:
        """An internal error must not cost the rest of the bundle."""
        try:
            for _, each in zip(range(MAX_PARTS), extra(), strict=False):
                self._ready.put(each)
        except Exception as error:
            self._ready.put(Missing(f"a part of {_WHAT}", f"{type(error).__name__}: {error}"))
        finally:
            self._ready.put(None)


VERSION = 1
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

Ask = Callable[[Mapping[str, Any], float], Mapping[str, Any]]
"""Sends a request to the wrapper's control socket, with a time limit in seconds. OSError or
ValueError if there is no answer."""
Keep = Callable[[Path, str, float], "OffloadResult"]
"""Copies the folder of a bundle off the pod, under a name and within so many seconds."""


class OffloadResult(NamedTuple):
    folder: str | None
    """Path of the copy, which outlives the pod; None if it was not copied."""
    why: str = ""
    """Why it was not copied, or that copying is still in progress."""


@dataclass(frozen=True, slots=True)
class EvidenceLimits:
    seconds: float = 20.0
    """Total time limit, during which the whole job stands still."""
    dump_seconds: float = 5.0
    """Time for the ranks to write their stacks; after it, a signal makes them do so."""
    keep_seconds: float = 5.0
    """The part of `seconds` that is reserved to copy the bundle off the pod."""
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
    """The copy off the pod; None if none was requested or there was no time left."""


def collect(
    volume: str,
    folder: Path,
    id: str,
    *,
    ask: Ask,
    reason: str = "",
    extra: Extra | None = None,
    keep: Keep | None = None,
    limits: EvidenceLimits | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Bundle:
    """Save the evidence on `volume` ($MWATCH_DIR) into `folder`; `id` names the dump. `extra`
    yields more parts, in a thread. External failures are listed in the bundle and never raised.
    ValueError for an invalid id."""
    if not _ID.fullmatch(id):
        raise ValueError(f"{id!r} cannot be the name of a dump")
    limits = limits or EvidenceLimits()
    work = _Work(VolumeReader(volume), folder, id, ask, reason, extra, keep, limits, clock, wall())
    thread = threading.Thread(target=work.run, name="mwatch-evidence", daemon=True)
    thread.start()
    thread.join(limits.seconds)
    return work.bundle(is_late=thread.is_alive())


@dataclass
class _Work:
    _volume: VolumeReader
    _folder: Path
    _id: str
    _ask: Ask
    _reason: str
    _extra: Extra | None
    _keep: Keep | None
    _limits: EvidenceLimits
    _clock: Callable[[], float]
    _at: float

    def __post_init__(self) -> None:
        self._began = self._clock()
        self._lock = threading.Lock()
        self._files: list[SavedFile] = []
        self._missing: list[Missing] = []
        self._stored: OffloadResult | None = None
        self._is_collected = self._is_given_up = False

    def run(self) -> None:
        try:
            make_private_folder(self._folder)
        except OSError as error:
            self._miss("everything", f"cannot create the folder: {error}")
            return
        extra = None if self._extra is None else ExtraParts(self._extra)
        self._dump()
        budget = Budget(self._limits.bytes, self._limits.log_bytes)
        for part in PARTS:
            self._save_all(part(self._volume, self._id, budget))
        if extra is not None:
            self._save_all(extra.found(budget, self._seconds_to_collect()))
        self._write_manifest()
        self._is_collected = True
        if self._keep is not None and not self._is_over():
            stored = self._keep(self._folder, self._id, self._seconds_left())
            with self._lock:
                self._stored = stored
            self._write_manifest()

    def bundle(self, *, is_late: bool) -> Bundle:
        with self._lock:
            self._is_given_up = is_late
            missing = list(self._missing)
            if is_late:
                limit = self._limits.seconds
                why = f"not saved within {limit:.0f} s: the storage is slow or hangs"
                what = "a copy off the pod" if self._is_collected else "the rest"
                missing.append(Missing(what, why))
            seconds, files = self._clock() - self._began, tuple(self._files)
            return Bundle(self._folder, files, tuple(missing), seconds, self._stored)

    def _save_all(self, found: Iterable[Content | Missing]) -> None:
        for each in found:
            if isinstance(each, Missing):
                self._miss(*each)
            elif self._is_given_up or not self._seconds_to_collect():
                self._miss("the rest", "the time was over")
                return
            else:
                self._save(each)

    def _dump(self) -> None:
        """Request a dump; the wrapper answers once the ranks have written it or timed out."""
        seconds = self._limits.dump_seconds
        request = {"op": "dump", "id": self._id, "seconds": seconds}
        try:
            answer = self._ask(request, min(2 * seconds + 2, self._seconds_left()))
        except (OSError, ValueError) as error:
            self._miss("dump", f"the wrapper did not answer: {error or type(error).__name__}")
            return
        if answer.get("ok") is not True:
            self._miss("dump", f"none was taken: {str(answer.get('error'))[:200]}")

    def _save(self, content: Content) -> None:
        data = self._scrub(content.data)
        if content.is_binary and data != content.data:
            self._miss(content.name, "it seems to hold a secret")
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
                "reason": self._reason,
                "seconds": round(self._clock() - self._began, 3),
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
        """Use a new scrubber for each file: a private key does not continue in the next file."""
        return Scrubber().scrub(data)

    def _miss(self, what: str, why: str) -> None:
        with self._lock:
            self._missing.append(Missing(what, why))

    def _seconds_left(self) -> float:
        return max(0.0, self._limits.seconds - (self._clock() - self._began))

    def _seconds_to_collect(self) -> float:
        """Return the time left, minus the time reserved for the copy off the pod."""
        kept = 0.0 if self._keep is None else self._limits.keep_seconds
        return max(0.0, self._seconds_left() - kept)

    def _is_over(self) -> bool:
        return self._is_given_up or not self._seconds_left()
