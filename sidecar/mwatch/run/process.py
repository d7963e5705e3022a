# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One attempt of a local run: the wrapper around the training command, as a child process.

The wrapper has its own session, so that Ctrl-C reaches only mwatch, which shuts the wrapper down
cleanly. If mwatch is killed, wrapper and training continue. If the wrapper is killed, the training
continues as an orphan: mwatch still detects its end, but its output is no longer recorded. The
processes of a training are found by the volume named in their environment; one that was started
with a cleared environment is not found. `OutputBuffer` holds the trainer's output until a view
draws it; if the trainer prints faster than a terminal can show, the middle is dropped, with a note.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import IO, Protocol

from mwatch.errors import InputError
from mwatch.model.observation import ProcessExit
from mwatch_trainer import contract
from mwatch_trainer.control.client import ask
from mwatch_trainer.processes import proc

_PR_SET_CHILD_SUBREAPER = 36
_MAX_ENVIRON = 1 << 20
_KILL_SECONDS = 5.0


def adopt() -> None:
    """Make this process the parent of orphaned descendants: only a parent can read an exit code."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def pids_of(volume: Path) -> list[int]:
    """Find the living processes of the training that uses this volume."""
    try:
        every = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    return [pid for pid in every if pid != os.getpid() and belongs(pid, volume)]


def kill(volume: Path) -> None:
    """Kill all processes; stop them first, so that none can start another one meanwhile."""
    until = time.monotonic() + _KILL_SECONDS
    while (found := pids_of(volume)) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.02)


class Orphan:
    """A training command whose wrapper was killed."""

    def __init__(self, pid: int, volume: Path) -> None:
        self.pid = pid
        self._volume = volume

    def exit_code(self, unknown: int) -> int | None:
        """Return the exit code as in a shell; None while it runs; `unknown` if not our child."""
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None if belongs(self.pid, self._volume) else unknown
        if not ended:
            return None
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGTERM)


def _adopted_command(volume: Path) -> int | None:
    """Find the command of a wrapper that was killed before it wrote its pid: now our child."""
    found = (proc.read(pid) for pid in pids_of(volume))
    mine = (each.pid for each in found if each is not None and each.ppid == os.getpid())
    return next(mine, None)


def belongs(pid: int, volume: Path) -> bool:
    """Return whether a process is of the training that uses this volume; False for a zombie."""
    wanted = f"{contract.DIR_VARIABLE}={volume}".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return wanted in file.read(_MAX_ENVIRON).split(b"\0")
    except OSError:
        return False


_ASK_SECONDS = 2.0
_AFTER_GRACE_SECONDS = 10.0
"""Time for the wrapper to kill the command and to pass on its last output."""
_LOOK_SECONDS = 0.05
_MODE_VARIABLE = "MWATCH_MODE"
_MAX_LEFT = 8


class StartedProcess(Protocol):
    """`subprocess.Popen`, or a process that another `mwatch run` started."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float) -> int: ...


class WrapperProcess:
    def __init__(self, process: StartedProcess, volume: Path) -> None:
        self._process = process
        self._volume = volume
        self._code: int | None = None
        self._orphan: Orphan | None = None
        self._is_stopping = False
        self._is_lost = False
        """The wrapper ended without writing how the command ended."""
        self.is_unstarted = False
        """The wrapper was killed, and no command that it started was found."""

    @property
    def output(self) -> IO[bytes] | None:
        """The trainer's output, if captured."""
        return self._process.stdout

    @property
    def exit_code(self) -> int | None:
        """None while the command runs; 128 plus the number for a signal."""
        if self._code is None:
            self._code = self._look()
        return self._code

    @property
    def has_orphan(self) -> bool:
        """Whether the command runs without its wrapper."""
        return self._orphan is not None and self._code is None

    @property
    def unreported_exit(self) -> ProcessExit | None:
        """How the command ended, if the wrapper did not record it."""
        code = self.exit_code
        if code is None or not self._is_lost:
            return None
        name = {each.value: each.name for each in signal.Signals}.get(code - 128)
        return ProcessExit(None if name else code, name, None)

    @property
    def left(self) -> list[str]:
        """Processes (pid and command) that still run after the command ended by itself, as far as
        the wrapper listed them."""
        if self.exit_code is None or self._is_lost or self._is_stopping:
            return []
        known = contract.read_json(str(self._volume / contract.ATTEMPT)) or {}
        ended = known.get("exit") if known.get("wrapper_pid") == self._process.pid else None
        found = ended.get("left") if isinstance(ended, dict) else None
        each = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        return [
            f"{one['pid']} ({one.get('command')})"
            for one in each[:_MAX_LEFT]
            if type(one.get("pid")) is int and proc.is_alive(one["pid"], one.get("started"))
        ]

    def _look(self) -> int | None:
        code = self._process.poll()
        if code is None:
            return None
        own = code if code >= 0 else 128 - code
        if not self._is_lost:
            known = contract.read_json(str(self._volume / contract.ATTEMPT)) or {}
            is_own = known.get("wrapper_pid") == self._process.pid
            if is_own and known.get("exit"):
                return own
            self._is_lost = True
            pid = known.get("pid") if is_own else _adopted_command(self._volume)
            self._orphan = Orphan(pid, self._volume) if isinstance(pid, int) else None
            self.is_unstarted = not is_own and self._orphan is None
        return own if self._orphan is None else self._orphan.exit_code(own)

    def wait(self, seconds: float) -> None:
        """Wait `seconds`, or less if the wrapper ends."""
        try:
            ended = os.pidfd_open(self._process.pid)
        except OSError:  # it ended and was reaped, or the kernel is too old
            time.sleep(seconds)
            return
        try:
            waiting = select.poll()
            waiting.register(ended, select.POLLIN)
            waiting.poll(seconds * 1000)
        finally:
            os.close(ended)

    def stop(self, reason: str, grace_seconds: float) -> None:
        """End the command and all its processes; kill what is left after the grace time."""
        self._is_stopping = True
        try:
            if self._process.poll() is not None:
                self._stop_orphan(grace_seconds)
                return
            if not self._ask_to_stop(reason, grace_seconds):
                self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds + _AFTER_GRACE_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill every process of the attempt, unless the command has ended by itself."""
        if self.exit_code is not None and not self._is_stopping:
            return
        self._is_stopping = True
        if self._process.poll() is None:
            self._ask_to_stop("to be killed", 0.0)
            try:
                self._process.wait(_KILL_SECONDS)  # the wrapper ends the whole tree
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_KILL_SECONDS)
        kill(self._volume)

    def stop_without_disk(self, grace_seconds: float) -> None:
        """As `stop`, but without the socket and files of the wrapper: their disk hangs."""
        self._is_stopping = True
        self._signal(signal.SIGTERM)
        self.wait(grace_seconds + _AFTER_GRACE_SECONDS)
        kill(self._volume)
        self._signal(signal.SIGKILL)

    def clear(self) -> list[int]:
        """Kill what the attempt left behind; return the pids that are still alive."""
        self._is_stopping = True
        self.kill()
        return pids_of(self._volume)

    def _stop_orphan(self, grace_seconds: float) -> None:
        if self._orphan is None:
            return
        self._orphan.terminate()
        until = time.monotonic() + grace_seconds
        while self.exit_code is None and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)

    def _ask_to_stop(self, reason: str, grace_seconds: float) -> bool:
        """Return False if the wrapper does not answer: it is just starting or ending."""
        request = {"op": "stop", "grace_seconds": grace_seconds, "save": grace_seconds > 0,
                   "reason": reason}  # fmt: skip
        return bool(ask(str(self._volume), request, _ASK_SECONDS).get("ok"))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class TrainerOutput(Enum):
    """Where the trainer's output goes, besides its log."""

    DIRECT = "direct"
    """To our own stdout and stderr, byte for byte."""
    VIEW = "view"
    """Through a pipe to the view."""
    LOG_ONLY = "log only"


_STREAMS = {
    TrainerOutput.DIRECT: (None, None),
    TrainerOutput.VIEW: (subprocess.PIPE, subprocess.STDOUT),
    TrainerOutput.LOG_ONLY: (subprocess.DEVNULL, subprocess.DEVNULL),
}


def start(
    argv: Sequence[str],
    volume: Path,
    *,
    is_act: bool,
    options: Sequence[str],
    output: TrainerOutput = TrainerOutput.DIRECT,
    environ: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> WrapperProcess:
    """Start the wrapper. `environ` and `folder`: by default those of this process."""
    adopt()
    mode = contract.ACT if is_act else contract.OBSERVE
    flags = ["--act"] if is_act else []
    flags = ["--watched", *flags, "--dir", str(volume)]
    command = [sys.executable, "-P", "-m", "mwatch_trainer", *flags, *options]
    stdout, stderr = _STREAMS[output]
    try:
        process = subprocess.Popen(
            [*command, "--", *argv],
            env={**(environ or os.environ), _MODE_VARIABLE: mode},  # overrides the user's
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            close_fds=False,  # ours close on exec; the command may need `--config <(...)`
        )
    except OSError as error:
        raise InputError(f"cannot start {sys.executable}: {error.strerror}") from error
    return WrapperProcess(process, volume)


_CHUNK = 1 << 18
_MAX_BYTES = 1 << 20


class OutputBuffer:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._lost = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    def take(self) -> bytes:
        with self._lock:
            data, lost = b"".join(self._chunks), self._lost
            self._chunks.clear()
            self._held = self._lost = 0
        gap = b"... %d bytes not shown; they are in the log ...\n" % lost if lost else b""
        return gap + data

    def rest(self) -> bytes:
        """Return the rest after the command ended; wait at most 1 s for the end of the stream."""
        self._thread.join(1.0)
        return self.take()

    def _read(self) -> None:
        with self._stream:
            fd = self._stream.fileno()
            with suppress(OSError):  # optional: the user's pipe memory limit may be reached
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _CHUNK)
            while data := os.read(fd, _CHUNK):
                self._keep(data)

    def _keep(self, data: bytes) -> None:
        with self._lock:
            self._chunks.append(data)
            self._held += len(data)
            while self._held > _MAX_BYTES:
                dropped = len(self._chunks.popleft())
                self._held -= dropped
                self._lost += dropped
