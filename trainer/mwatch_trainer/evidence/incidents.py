# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Incident folders: pruning them, and copying evidence from the volume beside the checkpoints.

The root has one folder per incident, limited in number and bytes. The oldest are removed first: a
name begins with its time. Folders with other names are not touched, and no link is followed.

Often the sidecar has only read access to the checkpoint storage, while the training container can
write to it. The wrapper, not the caller, chooses the target. The copy runs in a low-priority helper
process (`main`) with a time limit, so that hung storage blocks nothing else. In observe mode
nothing is copied.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
from collections import OrderedDict
from typing import Any, Callable, Sequence

from mwatch_trainer import contract
from mwatch_trainer.checkpoint.save_dir import is_remote
from mwatch_trainer.checkpoint.timeline import FOLDER
from mwatch_trainer.processes.children import Reaper, start_helper

INCIDENTS = "incidents"
MANIFEST = "manifest.json"
MAX_INCIDENTS = 64
MAX_BYTES = 1 << 30
"""Limit for a run's evidence beside the checkpoints: less than a small model's checkpoint."""
VOLUME_BYTES = 128 << 20  # limit on the volume that a pod's containers share
_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-a[0-9]{1,9}-[a-z-]{1,40}(?:-[0-9]{1,6})?", re.ASCII)


def is_incident_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def beside(save: str) -> str:
    return os.path.join(save, FOLDER, INCIDENTS)


def incident_names(root: str) -> list[str]:
    """Return the incidents, oldest first; none if the folder is missing. Raises OSError."""
    try:
        return sorted(filter(is_incident_id, os.listdir(root)))
    except FileNotFoundError:
        return []


def prune(
    root: str,
    *,
    keep: str | None = None,
    max_incidents: int = MAX_INCIDENTS,
    max_bytes: int = MAX_BYTES,
) -> list[str]:
    """Remove the oldest incidents beyond the limits, except `keep`; return the removed names."""
    names = [each for each in incident_names(root) if _is_folder(os.path.join(root, each))]
    sizes = {name: folder_bytes(os.path.join(root, name)) for name in names}
    total, count = sum(sizes.values()), len(names)
    gone = []
    for name in names:
        if count <= max_incidents and total <= max_bytes:
            break
        if name == keep:
            continue
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        gone.append(name)
        total, count = total - sizes[name], count - 1
    return gone


def folder_bytes(folder: str) -> int:
    total = 0
    for above, _, files in os.walk(folder):
        for file in files:
            try:
                total += os.lstat(os.path.join(above, file)).st_size
            except OSError:
                continue
    return total


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


MAX_BUNDLE_BYTES = 128 << 20
MAX_FILES = 8192
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE_BYTES = 1 << 20


class NotCopied(ValueError):
    pass


def copy(source: str, root: str, id: str, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Copy the folder `source` to `<root>/ID` and prune `root`. Raises OSError and NotCopied.

    Files are accessible only to their owner and appear complete, the manifest last; existing ones
    are not copied again. Links are not followed, and only regular files are read.
    """
    if not is_incident_id(id):
        raise NotCopied(f"{id[:80]!r} is not the name of an incident")
    there = os.open(source, _OPEN_FOLDER)
    try:
        names = _names(there)
        target = os.path.join(root, id)
        os.makedirs(root, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(target, 0o700)
        here = os.open(target, _OPEN_FOLDER)
        try:
            copied, size, left_out = _copy_all(there, here, names)
        finally:
            os.close(here)
    finally:
        os.close(there)
    pruned = prune(root, keep=id, max_bytes=max_bytes)
    return {
        "folder": target, "files": copied, "bytes": size, "left_out": left_out[:32],
        "pruned": pruned,
    }  # fmt: skip


def _names(folder: int) -> list[str]:
    """List the files, the manifest last: a reader that sees it sees all files."""
    found = [each for each in os.listdir(folder) if not each.startswith(".")]
    return sorted(found, key=lambda name: (name == MANIFEST, name))


def _copy_all(there: int, here: int, names: Sequence[str]) -> tuple[int, int, list[str]]:
    copied = size = 0
    left_out = list(names[MAX_FILES:])
    for name in names[:MAX_FILES]:
        try:
            size += _copied(there, here, name, MAX_BUNDLE_BYTES - size)
            copied += 1
        except NotCopied as error:
            left_out.append(f"{name}: {error}")
    return copied, size, left_out


def _copied(there: int, here: int, name: str, most: int) -> int:
    """Copy a file; return its size. Raises NotCopied if it is unreadable, else OSError."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=there)
    except OSError as error:
        raise NotCopied(error.strerror or "cannot be read") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotCopied("not a regular file")
        if status.st_size > most:
            raise NotCopied("too large")
        if not _is_there(here, name, status):
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                _copy_file(file, here, name, status)
        return status.st_size
    finally:
        os.close(descriptor)


def _is_there(folder: int, name: str, status: os.stat_result) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    is_same = (found.st_size, found.st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    return is_same and stat.S_ISREG(found.st_mode)


def _copy_file(file: Any, folder: int, name: str, status: os.stat_result) -> None:
    """Copy at most the size in `status`: the file may grow."""
    half = f".{name[:200]}.{os.getpid()}.half"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(half, dir_fd=folder)
    descriptor = os.open(half, _NEW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as out:
            left = status.st_size
            while left > 0:
                piece = file.read(min(left, _PIECE_BYTES))
                if not piece:
                    break
                out.write(piece)
                left -= len(piece)
            out.flush()
            os.fsync(out.fileno())
            os.utime(out.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
        os.rename(half, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(half, dir_fd=folder)
        raise


def main(arguments: Sequence[str]) -> None:
    """Run one copy with a time limit: DIRECTORY ID ROOT SECONDS MAX-BYTES ANSWER-FD."""
    directory, id, root = arguments[:3]
    answer_fd = int(arguments[5])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(arguments[3]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(19)
    try:
        source = os.path.join(directory, INCIDENTS, id)
        answer = {"ok": True, **copy(source, root, id, int(arguments[4]))}
    except NotCopied as error:
        answer = {"ok": False, "error": str(error)}
    except OSError as error:
        answer = {"ok": False, "error": f"{error.filename or root}: {error.strerror}"}
    with contextlib.suppress(OSError):
        os.write(answer_fd, json.dumps(answer).encode() + b"\n")


COPY_SECONDS = 60.0
_MAX_REMEMBERED = 16
_MAX_ANSWER = 1 << 16
_CUT_SHORT = "the copy ended before it was complete: try again"


class _Copy:
    def __init__(self) -> None:
        self.done = threading.Event()
        self.answer: dict[str, Any] = {"ok": False, "error": _CUT_SHORT}


class EvidenceOffload:
    """Copies one incident at a time in a helper process; a repeated request returns its result."""

    def __init__(
        self, directory: str, mode: str, reaper: Reaper, save: Callable[[], str | None]
    ) -> None:
        """`save`: where the current attempt saves; None: unknown."""
        self._directory, self._mode = directory, mode
        self._reaper, self._save = reaper, save
        self._lock = threading.Lock()
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def copy(self, id: str, seconds: float) -> dict[str, Any]:
        """Copy; return the result, or "copying" after `seconds`. Raises NotCopied and OSError."""
        if not is_incident_id(id):
            raise NotCopied(f"{id[:80]!r} is not the name of an incident")
        root = self._root()
        with self._lock:
            copy = self._copies.get(id)
            if copy is None or copy.done.is_set():
                if any(not each.done.is_set() for each in self._copies.values()):
                    raise NotCopied("another copy is under way")
                copy = self._start(id, root)
        if not copy.done.wait(seconds):
            return {"state": "copying", "folder": os.path.join(root, id)}
        if copy.answer.get("ok") is not True:
            raise NotCopied(str(copy.answer.get("error"))[:500])
        return {**copy.answer, "state": "kept"}

    def _root(self) -> str:
        save = self._save()
        if self._mode != contract.ACT:
            raise NotCopied("observe mode does not write to the checkpoint folder")
        if not save:
            raise NotCopied("the checkpoint folder of this job is unknown")
        if is_remote(save):
            raise NotCopied("this job saves to an object store")
        return beside(save)

    def _start(self, id: str, root: str) -> _Copy:
        read_end, write_end = os.pipe()
        arguments = [self._directory, id, root, f"{COPY_SECONDS:g}", str(MAX_BYTES), str(write_end)]
        try:
            self._process = start_helper("evidence.incidents", arguments, [write_end])
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._reaper.watch(self._process)
        copy = _Copy()
        self._copies[id] = copy
        while len(self._copies) > _MAX_REMEMBERED:
            self._copies.popitem(last=False)
        threading.Thread(target=_await_answer, args=(copy, read_end), daemon=True).start()
        return copy


def _await_answer(copy: _Copy, read_end: int) -> None:
    """Wait until the process answers or is gone; hung storage blocks both it and this thread."""

    with contextlib.suppress(OSError, ValueError), os.fdopen(read_end, "rb") as pipe:
        answer = json.loads(pipe.read(_MAX_ANSWER))
        if isinstance(answer, dict):
            copy.answer = answer
    copy.done.set()
