# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Copies the evidence of one incident to where it outlives the pod, and makes room for it there.

`mwatch-run` does it in a process of its own (`main`): nice, with a time limit, and on storage that
hangs nobody waits for it but itself. Files are for their owner alone and appear whole, the manifest
last; what is there already is not copied again. No link is followed on the way, and nothing but
regular files is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from typing import Any, Sequence

from mwatch_trainer.evidence.incident_dirs import (
    INCIDENTS,
    MANIFEST,
    MAX_BYTES,
    is_incident_id,
    prune,
)

MAX_BUNDLE_BYTES = 128 << 20
MAX_FILES = 8192
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE_BYTES = 1 << 20


class NotCopied(ValueError):
    """The text says why."""


def copy(source: str, root: str, id: str, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """From the folder `source` to `<root>/ID`. Raises OSError and NotCopied."""
    if not is_incident_id(id):
        raise NotCopied(f"{id[:80]!r} is not the name of an incident")
    there = os.open(source, _FOLDER)
    try:
        names = _names(there)
        target = os.path.join(root, id)
        os.makedirs(root, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(target, 0o700)
        here = os.open(target, _FOLDER)
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
    """The manifest last: whoever sees it sees all."""
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
    """Its size. Raises NotCopied for what cannot be read, and OSError for the rest."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=there)
    except OSError as error:
        raise NotCopied(error.strerror or "cannot be read") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotCopied("no regular file")
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
    """As long as it was when it was looked at, and no longer."""
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
    """DIRECTORY ID ROOT SECONDS MAX-BYTES ANSWER-FD"""
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
