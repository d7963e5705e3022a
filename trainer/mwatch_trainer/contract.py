# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Files and variables shared by the training container and the sidecar.

The wrapper and the probe write to `$MWATCH_DIR`, the sidecar reads from it; only `decision.json`
goes the other way. Every JSON file has a `version` and is replaced as a whole. Readers limit the
size they accept and ignore unknown keys.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Mapping

VERSION = 1
MAX_JSON_BYTES = 1 << 20

DIR_VARIABLE = "MWATCH_DIR"
ATTEMPT_VARIABLE = "MWATCH_ATTEMPT"
"""Set by the wrapper for the trainer, so that the probe's records carry the attempt number."""

ATTEMPT = "attempt.json"
DECISION = "decision.json"
LOG = "trainer.log"
CONTROL = "control"
PROBE_FOLDER = "probe"
PROBE_PREFIX = "rank-"
DUMPS_FOLDER = "dumps"
DUMP_REQUEST = "request.json"
NODE_FOLDER = "node"
NODE_PROCESSES = "processes.json"
NODE_GPUS = "gpus.json"
UNWATCHED = "unwatched"
"""A file with the reason why the command runs without the wrapper; its second line is the pod's
restart policy."""
RUNNING = "running"
"""A named pipe that a command running without the wrapper keeps open until it exits."""

TRAINS_ON = "the command has ended, and its training goes on"
"""Prefix of the exit reason when the command ended but its training continues."""

OBSERVE = "observe"
ACT = "act"
MODES = (OBSERVE, ACT)


_REPLACEMENT = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def replace_file(
    path: str,
    data: bytes,
    *,
    is_synced: bool = False,
    mode: int | None = None,
    temporary: str | None = None,
) -> None:
    """Replace `path` atomically. Raises OSError.

    `is_synced`: fsync, so that readers on other machines see it and it survives a crash. `mode`:
    permissions regardless of the umask. `temporary`: name of the unfinished file, needed if two
    threads write the same path.
    """
    temporary = temporary or f"{path}.{os.getpid()}.tmp"
    try:
        # O_NOFOLLOW: do not write through a link. 0o644: not writable by others even with umask 0.
        with os.fdopen(os.open(temporary, _REPLACEMENT, 0o644), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def make_folder(path: str) -> None:
    """Create the folder unless it exists, readable by other users regardless of the trainer's
    umask: the sidecar may be another user. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
        os.chmod(path, 0o755)


def write_json(path: str, document: Mapping[str, Any]) -> None:
    """Replace `path` atomically and synced. Raises OSError."""
    text = json.dumps({"version": VERSION, **document}, indent=1) + "\n"
    replace_file(path, text.encode(), is_synced=True)


def leave_unwatched(directory: str, why: str) -> None:
    """Record for the sidecar why the command that this process execs runs without the wrapper."""
    with contextlib.suppress(OSError):
        policy = os.environ.get("MWATCH_RESTART_POLICY", "")
        replace_file(os.path.join(directory, UNWATCHED), f"{why}\n{policy}\n".encode(), mode=0o644)
        pipe = os.path.join(directory, RUNNING)
        if not os.path.exists(pipe):
            os.mkfifo(pipe)
            os.chmod(pipe, 0o666)
        os.set_inheritable(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), True)


def read_bytes(path: str, limit: int = MAX_JSON_BYTES) -> bytes | None:
    """Return at most the first `limit` bytes; None if the file cannot be read.

    If the path is a named pipe, reading does not block: it counts as an empty file.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            return file.read(limit)
    except OSError:
        return None


def read_json(path: str) -> dict[str, Any] | None:
    """Return the JSON object in `path`; None if it is missing, invalid or too large."""
    data = read_bytes(path, MAX_JSON_BYTES + 1)
    if data is None or len(data) > MAX_JSON_BYTES:
        return None
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
