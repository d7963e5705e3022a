# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One attempt of a local run: the wrapper around the training command, as a process of ours.

It has a session of its own, so that Ctrl-C reaches only us and we end it in order. If we are
killed it goes on, and so does the training. If the wrapper itself is killed the training goes on
too: its end is then seen here, and its output is no longer kept.

The processes of a training that has lost its wrapper: still ours to see, and to end.

They are told by the volume that their environment names, which every process of a training
inherits. One that was started with a cleared environment is not found.

What the trainer prints, for a view that draws around it: read at once, shown when there is time.

Bounded: who prints faster than a terminal can show loses the middle, and is told so. The log
file has it all.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from mwatch.errors import InputError
from mwatch.model.observation import ProcessExit
from mwatch_trainer import contract
from mwatch_trainer.control.client import ask

_PR_SET_CHILD_SUBREAPER = 36
_MAX_ENVIRON = 1 << 20
_KILL_SECONDS = 5.0


def adopt() -> None:
    """From now on orphans come to us: how they end can be known then, and only then."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def of(volume: Path) -> list[int]:
    """All that live, by pid."""
    return [pid for pid in _pids() if pid != os.getpid() and _belongs(pid, volume)]


def kill(volume: Path) -> None:
    """Stopped first, so that none can start another one meanwhile."""
    until = time.monotonic() + _KILL_SECONDS
    while (found := of(volume)) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        time.sleep(0.02)


class Orphan:
    """A training command whose wrapper is gone."""

    def __init__(self, pid: int, volume: Path) -> None:
        self.pid = pid
        self._volume = volume

    def exit_code(self, unknown: int) -> int | None:
        """None while it runs, as a shell tells it after that; `unknown` where nobody could see."""
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None if _belongs(self.pid, self._volume) else unknown
        if not ended:
            return None
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def terminate(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGTERM)


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _belongs(pid: int, volume: Path) -> bool:
    """A zombie has no environment any more."""
    wanted = f"{contract.DIR_VARIABLE}={volume}".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return wanted in file.read(_MAX_ENVIRON).split(b"\0")
    except OSError:
        return False


_ASK_SECONDS = 2.0
_AFTER_GRACE_SECONDS = 10.0

"""Within it a wrapper that was told to kill has killed, and has passed on the last words."""
_LOOK_SECONDS = 0.05
_MODE_VARIABLE = "MWATCH_MODE"


class WrapperProcess:
    def __init__(self, process: subprocess.Popen[bytes], volume: Path) -> None:
        self._process = process
        self._volume = volume
        self._code: int | None = None
        self._orphan: Orphan | None = None
        self._is_stopping = False
        self._is_lost = False
        """It is gone, and has not written how the command ended."""

    @property
    def output(self) -> IO[bytes] | None:
        """What the trainer prints, where it was to be captured."""
        return self._process.stdout

    @property
    def exit_code(self) -> int | None:
        """None while the command runs; a signal is told as a shell does."""
        if self._code is None:
            self._code = self._look()
        return self._code

    @property
    def has_orphan(self) -> bool:
        """The command goes on without its wrapper."""
        return self._orphan is not None and self._code is None

    @property
    def unseen_exit(self) -> ProcessExit | None:
        """How the command ended, where the wrapper has not written that."""
        code = self.exit_code
        if code is None or not self._is_lost:
            return None
        name = {each.value: each.name for each in signal.Signals}.get(code - 128)
        return ProcessExit(None if name else code, name, None)

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
            pid = known.get("pid") if is_own else None
            self._orphan = Orphan(pid, self._volume) if isinstance(pid, int) else None
        return own if self._orphan is None else self._orphan.exit_code(own)

    def stop(self, reason: str, grace_seconds: float) -> None:
        """The command and all its processes end: by themselves within the grace, or killed."""
        self._is_stopping = True
        try:
            if self._process.poll() is not None:
                self._stop_orphan(grace_seconds)
                return
            if not self._has_agreed(reason, grace_seconds):
                self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds + _AFTER_GRACE_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """Nothing of it is left; does nothing where it has ended by itself."""
        if self.exit_code is not None and not self._is_stopping:
            return
        self._is_stopping = True
        if self._process.poll() is None:
            self._has_agreed("to be killed", 0.0)
            try:
                self._process.wait(_KILL_SECONDS)  # it ends the whole tree
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_KILL_SECONDS)
        kill(self._volume)

    def clear(self) -> list[int]:
        """Ends what it left behind, too; returns what cannot be ended."""
        self._is_stopping = True
        self.kill()
        return of(self._volume)

    def _stop_orphan(self, grace_seconds: float) -> None:
        if self._orphan is None:
            return
        self._orphan.terminate()
        until = time.monotonic() + grace_seconds
        while self.exit_code is None and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)

    def _has_agreed(self, reason: str, grace_seconds: float) -> bool:
        """False also where it is just starting, or just ending."""
        request = {"op": "stop", "grace_seconds": grace_seconds, "save": grace_seconds > 0,
                   "reason": reason}  # fmt: skip
        return bool(ask(str(self._volume), request, _ASK_SECONDS).get("ok"))

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def start(
    argv: Sequence[str], volume: Path, *, is_act: bool, options: Sequence[str], capture: bool
) -> WrapperProcess:
    """`capture`: the trainer's output is for us to show; else it goes where ours goes."""
    adopt()
    mode = contract.ACT if is_act else contract.OBSERVE
    flags = ["--act"] if is_act else []
    command = [sys.executable, "-P", "-m", "mwatch_trainer", *flags, "--dir", str(volume), *options]
    try:
        process = subprocess.Popen(
            [*command, "--", *argv],
            env={**os.environ, _MODE_VARIABLE: mode},  # whatever it says: we do what we say
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.STDOUT if capture else None,
            start_new_session=True,
            close_fds=False,  # ours are closed by exec; `--config <(...)` is for the command
        )
    except OSError as error:
        raise InputError(f"{sys.executable}: cannot be started ({error.strerror})") from error
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
        self._thread = threading.Thread(target=self._read, name="printed", daemon=True)
        self._thread.start()

    def take(self) -> bytes:
        with self._lock:
            data, lost = b"".join(self._chunks), self._lost
            self._chunks.clear()
            self._held = self._lost = 0
        gap = b"... %d bytes not shown; they are in the log ...\n" % lost if lost else b""
        return gap + data

    def rest(self) -> bytes:
        """The command has ended; what holds its output open is not waited for long."""
        self._thread.join(1.0)
        return self.take()

    def _read(self) -> None:
        with self._stream:
            fd = self._stream.fileno()
            with suppress(OSError):  # more of a comfort: the share of pipe memory may be used up
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
