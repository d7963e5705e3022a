# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Finds, adopts and ends runs that continue after their `mwatch run` was killed.

`watcher.json` in the folder of a run names the `mwatch run` that watches it and is locked by it, so
that two never watch the same run. A process is identified by its pid and its start time together,
and a wrapper also by its command line, so that a reused pid is not mistaken for it. What is needed
to restart an adopted run (its command, folder and environment) is read from the wrapper process and
never written to a file, because it may contain secrets.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mwatch.errors import InputError
from mwatch.run.folder import RunFolder
from mwatch.run.process import WrapperProcess, belongs, kill, pids_of
from mwatch_trainer import contract
from mwatch_trainer.processes import proc
from mwatch_trainer.wrapper.options import Options, parse

_FILE = "watcher.json"
_MAX_LISTED = 100
_MAX_TEXT = 1 << 20
_MODULE = b"mwatch_trainer"
_LOOK_SECONDS = 0.1
_LOCK_SECONDS = 1.0
"""How long to wait for the lock: a command that inspects the run holds it for a moment."""
_GRACE_SECONDS = 30.0
_MARGIN_SECONDS = 30.0
"""After the grace period: for the wrapper to kill the command, and for `mwatch run` to write its
report."""


@dataclass(frozen=True, slots=True)
class UnattendedRun:
    folder: RunFolder
    wrapper: int | None
    """Process id of mwatch-run; None: it has ended too, and only the command is left."""
    wrapper_started: int
    """Start time of that process, in clock ticks since boot."""
    command: int | None
    """Process id of the training command; None: it is about to start."""
    attempt: int | None
    since: float | None
    """When the attempt started."""
    mode: str

    @property
    def text(self) -> str:
        """A message that says since when the run continues, and in which process."""
        who = "its command" if self.wrapper is None else "mwatch-run"
        pid = self.command if self.wrapper is None else self.wrapper
        attempt = "" if self.attempt is None else f" attempt {self.attempt}"
        since = "" if self.since is None else f" since {datetime.fromtimestamp(self.since):%F %T}"
        return (
            f"run {self.folder.name} goes on without 'mwatch run', which was killed:{attempt} runs"
            f"{since} ({who} is process {pid})"
        )

    @property
    def commands(self) -> list[tuple[str, str]]:
        place = shlex.quote(os.path.relpath(self.folder.path))
        return [
            ("Watch it again", f"mwatch run --adopt {place}"),
            ("End it, with a last checkpoint if it can save one", f"mwatch stop {place}"),
        ]

    @property
    def fix(self) -> str:
        (_, adopt), (_, stop) = self.commands
        return f"watch it again: {adopt}; end it: {stop}"


def watcher_of(folder: RunFolder) -> tuple[int, int] | None:
    """Return pid and start time of the `mwatch run` on this machine that watches this run now."""
    known = contract.read_json(str(folder.path / _FILE)) or {}
    pid, started = known.get("pid"), known.get("started")
    is_here = known.get("host") == socket.gethostname()
    if not is_here or type(pid) is not int or not proc.is_alive(pid, started):
        return None
    return pid, int(started or 0)


@contextmanager
def watching(folder: RunFolder, grace_seconds: float, now: float) -> Iterator[None]:
    """Lock the run for this `mwatch run`; raise InputError if another one watches it."""
    own, path = proc.read(os.getpid()), folder.path / _FILE
    document = {
        "pid": os.getpid(), "started": None if own is None else own.started,
        "host": socket.gethostname(), "since": now, "grace_seconds": grace_seconds,
    }  # fmt: skip
    with suppress(OSError):  # a full disk: the run does not depend on this file
        path.touch(0o600)
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        until = time.monotonic() + _LOCK_SECONDS
        while not _takes(lock, fcntl.LOCK_EX):
            if time.monotonic() > until:
                text = f"another 'mwatch run' watches {folder.path}"
                raise InputError(f"{text}: wait until it has ended, or end it with 'mwatch stop'")
            time.sleep(_LOOK_SECONDS)
        with suppress(OSError):
            # Not by rename: the lock belongs to this inode.
            path.write_text(json.dumps(document), "utf-8")
        yield
    finally:
        os.close(lock)


def _takes(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _is_watched(folder: RunFolder) -> bool:
    """Return whether a run is watched. The lock decides where `watcher.json` cannot: the watcher is
    in another container, or the disk is full."""
    if watcher_of(folder) is not None:
        return True
    try:
        lock = os.open(folder.path / _FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _takes(lock, fcntl.LOCK_SH)
    finally:
        os.close(lock)


def find(folder: RunFolder) -> UnattendedRun | None:
    """Return the run of this folder if it continues without `mwatch run`; None if it ended or is
    watched."""
    if not folder.volume.is_dir() or _is_watched(folder):
        return None
    known = contract.read_json(str(folder.volume / contract.ATTEMPT)) or {}
    if known and known.get("host") != socket.gethostname():
        return None
    pid, started = known.get("wrapper_pid"), known.get("wrapper_started")
    if type(pid) is int and type(started) is int and _is_wrapper(pid, started, folder.volume):
        is_over = known.get("exit") is not None and known.get("final") is True
        return None if is_over else _unattended(folder, pid, started, known)
    command = known.get("pid")
    if type(command) is int and known.get("exit") is None and belongs(command, folder.volume):
        return _unattended(folder, None, 0, known)
    return None


def find_just_started(folder: RunFolder) -> UnattendedRun | None:
    """As `find`, or a wrapper that has not written its first file yet: reads all of /proc."""
    found = find(folder)
    if found is not None or _is_watched(folder):
        return found
    for each in proc.all_processes().values():
        if each.state not in "ZX" and _is_wrapper(each.pid, each.started, folder.volume):
            return _unattended(folder, each.pid, each.started, {})
    return None


def unattended_runs(parent: Path) -> list[UnattendedRun]:
    """Return the unattended runs in a folder; only the newest `_MAX_LISTED` are checked."""
    try:
        found = [(each.stat().st_mtime, each) for each in parent.iterdir() if each.is_dir()]
    except OSError:
        return []
    newest = [RunFolder(each.resolve()) for _, each in sorted(found, reverse=True)[:_MAX_LISTED]]
    return [run for each in newest if (run := find(each)) is not None]


def _unattended(
    folder: RunFolder, pid: int | None, started: int, known: Mapping[str, Any]
) -> UnattendedRun:
    since, command, attempt = (known.get(name) for name in ("started_at", "pid", "attempt"))
    return UnattendedRun(
        folder, pid, started,
        command if type(command) is int else None,
        attempt if type(attempt) is int else None,
        since if type(since) is float else None,
        contract.ACT if known.get("mode") == contract.ACT else contract.OBSERVE,
    )  # fmt: skip


def _is_wrapper(pid: int, started: int, volume: Path) -> bool:
    words = _words(pid, "cmdline")
    is_ours = _MODULE in words and os.fsencode(volume) in words
    return is_ours and proc.is_alive(pid, started)


def _words(pid: int, name: str) -> list[bytes]:
    return (contract.read_bytes(f"/proc/{pid}/{name}", _MAX_TEXT) or b"").split(b"\0")[:-1]


@dataclass(frozen=True, slots=True)
class WrapperCall:
    """How a living wrapper was called: all that is needed to start another one like it."""

    options: Options
    arguments: tuple[str, ...]
    """Its own options, without --act, --watched and --dir."""
    folder: str
    environ: Mapping[str, str]


def call_of(run: UnattendedRun) -> WrapperCall:
    """Return how the wrapper was called; raise InputError if its process cannot be read, or its
    command line is not that of a wrapper."""
    if run.wrapper is None:
        text = f"{run.text}; without mwatch-run it cannot be watched"
        raise InputError(f"{text}; end it: {run.commands[1][1]}")
    try:
        where = os.readlink(f"/proc/{run.wrapper}/cwd")
    except OSError as error:
        problem = f"process {run.wrapper} cannot be read: {error.strerror}"
        raise InputError(f"{problem}; run this command as its user") from None
    words = [os.fsdecode(each) for each in _words(run.wrapper, "cmdline")]
    pairs = (os.fsdecode(each).partition("=") for each in _words(run.wrapper, "environ"))
    environ = {name: value for name, _, value in pairs}
    given = words[words.index(_MODULE.decode()) + 1 :]
    try:
        options = parse(given, environ, "")
    except SystemExit:
        text = f"the command line of process {run.wrapper} is not that of mwatch-run"
        raise InputError(f"{text}; end the run: {run.commands[1][1]}") from None
    return WrapperCall(options, tuple(_own_arguments(given)), where, environ)


def _own_arguments(given: Sequence[str]) -> Iterator[str]:
    words = iter(given[: given.index("--")])
    for word in words:
        if word == "--dir":
            next(words, None)
        elif word not in ("--act", "--watched"):
            yield word


class _AdoptedProcess:
    """The part of `subprocess.Popen` that is used here, for a process that is not our child."""

    stdout = None

    def __init__(self, pid: int, started: int, volume: Path) -> None:
        self.pid = pid
        self._started = started
        self._volume = volume
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and not proc.is_alive(self.pid, self._started):
            known = contract.read_json(str(self._volume / contract.ATTEMPT)) or {}
            ended = known.get("exit") if known.get("wrapper_pid") == self.pid else None
            code = ended.get("returned") if isinstance(ended, dict) else None
            self.returncode = code if type(code) is int else -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired("mwatch-run", timeout)
            time.sleep(_LOOK_SECONDS)
        return code


def adopt_wrapper(run: UnattendedRun) -> WrapperProcess:
    """Take over a wrapper that another `mwatch run` started."""
    assert run.wrapper is not None
    process = _AdoptedProcess(run.wrapper, run.wrapper_started, run.folder.volume)
    return WrapperProcess(process, run.folder.volume)


def end(folder: RunFolder, reason: str, progress: Callable[[str], None]) -> tuple[str, bool]:
    """End a run, watched or not; return a message, and whether no process of it is left."""
    watcher = watcher_of(folder)
    if watcher is not None:
        return _end_watched(folder, watcher, progress)
    run = find_just_started(folder)
    if run is None and not pids_of(folder.volume):
        return f"{folder.name}: nothing of it runs", True
    progress(f"run {folder.name} is being ended" if run is None else f"{run.text}: ending it")
    if run is not None and run.wrapper is not None:
        grace = call_of(run).options.grace_seconds
        adopt_wrapper(run).stop(reason, _GRACE_SECONDS if grace is None else grace)
    elif run is not None and run.command is not None:
        _terminate(run.command, folder.volume)
    kill(folder.volume)
    left = pids_of(folder.volume)
    if left:
        return f"{folder.name}: these processes do not end: {', '.join(map(str, left[:8]))}", False
    return f"{folder.name}: ended", True


def _end_watched(
    folder: RunFolder, watcher: tuple[int, int], progress: Callable[[str], None]
) -> tuple[str, bool]:
    pid, started = watcher
    known = contract.read_json(str(folder.path / _FILE)) or {}
    grace = known.get("grace_seconds")
    seconds = grace if isinstance(grace, (int, float)) else _GRACE_SECONDS
    progress(f"run {folder.name} is watched by process {pid}: asking it to end the run")
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    if _is_gone(pid, started, seconds + 2 * _MARGIN_SECONDS):
        return f"{folder.name}: ended", True
    return f"{folder.name}: process {pid} still ends it; look again in a minute", False


def _terminate(pid: int, volume: Path) -> None:
    process = proc.read(pid)
    if process is not None and belongs(pid, volume) and proc.send(process, signal.SIGTERM):
        _is_gone(pid, process.started, _GRACE_SECONDS)


def _is_gone(pid: int, started: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while proc.is_alive(pid, started):
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
