# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Dumps of a rank: the stacks of all its threads, and torch's flight recorder.

When it finds a request file, the probe writes the dumps itself, stacks first, because torch may
block on its own locks. Nothing is imported: if torch is not loaded, there is no recording. A
process that holds the GIL writes its stacks on a signal instead (`DumpSignal`). Sizes are limited,
and files appear complete.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import time
from typing import Any, Callable

from mwatch_trainer import contract
from mwatch_trainer.probe import stack

DUMP_BYTES = 64 << 20  # limit for one dump, shared by the ranks of a node
MAX_STACKS_BYTES = 1 << 20
MAX_FLIGHT_BYTES = 8 << 20  # limit for one rank
_LOCAL_RANKS = "LOCAL_WORLD_SIZE"
_MAX_THREADS = 256
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", re.ASCII)
_RECORDERS = (("nccl", "_dump_nccl_trace"), ("gloo", "_dump_fr_trace"))
"""NCCL has its own recorder; gloo and all other backends share the second one."""
_HAS_ENTRIES = b"record_id"
UNFINISHED = "unfinished"
"""A file with this suffix exists beside a rank's stacks until its dump is complete."""


class Requests:
    """Detects a new request file, at the cost of one `stat` per check."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, contract.DUMPS_FOLDER, contract.DUMP_REQUEST)
        self._seen: tuple[int, int] | None = None
        self._last = ""
        self.new()  # ignore a request older than this process

    def new(self) -> str | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return None
        self._seen = seen
        requested = (contract.read_json(self._path) or {}).get("id")
        if not isinstance(requested, str) or not _ID.fullmatch(requested):
            return None
        if requested == self._last:
            return None
        self._last = requested
        return requested


def write_all(folder: str, rank: int, header: str) -> None:
    contract.make_folder(folder)
    unfinished = os.path.join(folder, f"rank-{rank}.{UNFINISHED}")
    _write(unfinished, b"")
    try:
        _write(os.path.join(folder, f"rank-{rank}.stacks.txt"), stacks(header).encode("utf-8"))
        for name, data in flight_recorders():
            _write(os.path.join(folder, f"rank-{rank}.{name}.pickle"), data)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


def stacks(header: str) -> str:
    main = threading.main_thread().ident
    known = getattr(threading, "_active", {})  # `threading.enumerate` takes a lock, maybe held
    names = {ident: thread.name for ident, thread in list(known.items())}
    threads: dict[int, stack.Stack] = {}
    if stack.can_be_read():
        for ident, frame in list(sys._current_frames().items())[:_MAX_THREADS]:
            threads[ident] = stack.walk(frame)
            del frame
    lines = [header]
    for ident in sorted(threads, key=lambda each: (each != main, each)):
        what = "main thread" if ident == main else "thread"
        lines.append(f"\n{what} 0x{ident:016x} [{names.get(ident, '?')}] (most recent call first):")
        lines.extend(
            f'  File "{code.co_filename}", line {line} in {code.co_name}'
            for code, line, _ in threads[ident]
        )
    return "\n".join(lines)[:MAX_STACKS_BYTES] + "\n"


def flight_recorders() -> list[tuple[str, bytes]]:
    """Return `flight` (NCCL if it has recorded anything, else gloo) and `flight-gloo`."""
    module = sys.modules.get("torch._C._distributed_c10d")
    if module is None:
        return []
    dumps: list[tuple[str, bytes]] = []
    left = _share()
    for backend, name in _RECORDERS:
        data = _call(getattr(module, name, None))
        if data is not None and len(data) <= left:
            dumps.append((backend, data))
            left -= len(data)
    filled = [dump for dump in dumps if _HAS_ENTRIES in dump[1]] or dumps[-1:]
    return [
        ("flight" if number == 0 else f"flight-{backend}", data)
        for number, (backend, data) in enumerate(filled)
    ]


def _share() -> int:
    ranks = os.environ.get(_LOCAL_RANKS, "")
    count = int(ranks) if ranks.isdigit() and len(ranks) < 5 else 1
    return min(MAX_FLIGHT_BYTES, DUMP_BYTES // max(count, 1))


def _call(dump: Callable[..., Any] | None) -> bytes | None:
    """Dump all collectives, without stacks, because resolving those takes many seconds.

    Up to torch 2.4 the function takes no arguments.
    """

    if dump is None:
        return None
    for arguments in ((True, False, False), ()):
        try:
            data = dump(*arguments)
        except TypeError:
            continue
        except Exception:
            return None
        return data if isinstance(data, bytes) else None
    return None


def _write(path: str, data: bytes) -> None:
    contract.replace_file(path, data, mode=0o644)  # the reader may be another user


def header(rank: int, what: str) -> str:
    return f"# rank {rank}, pid {os.getpid()}, {time.strftime('%Y-%m-%dT%H:%M:%S%z')}, {what}"


def stacks_name(rank: int) -> str:
    return f"rank-{rank}.signal.txt"


class DumpSignal:
    """A signal on which faulthandler writes this process's stacks, even while the GIL is held.

    A sender must check that the process still catches the signal (`SigCgt` in `/proc/PID/status`):
    after an exec, or while the interpreter shuts down, the signal would kill it.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._path = os.path.join(folder, contract.DUMPS_FOLDER, stacks_name(rank))
        self._file: Any = None
        self.number = 0

    def set_up(self) -> None:
        """Register the handler; `number` stays 0 if no signal is free. Raises OSError."""
        number = free_signal()
        if not number:
            return
        contract.make_folder(os.path.dirname(self._path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o644)
        os.fchmod(fd, 0o644)
        self._file = os.fdopen(fd, "wb", buffering=0)
        faulthandler.register(number, file=self._file, all_threads=True, chain=False)
        self.number = number

    def truncate(self) -> None:
        if self._file is not None and os.fstat(self._file.fileno()).st_size > MAX_STACKS_BYTES:
            os.ftruncate(self._file.fileno(), 0)


def free_signal() -> int:
    """Return an unused real-time signal; searched from the highest, as programs use the lowest."""
    taken = _taken_signals()
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if not taken >> (number - 1) & 1 and signal.getsignal(number) == signal.SIG_DFL:
            return number
    return 0


def _taken_signals() -> int:
    """Return a bit mask of the signals caught, ignored or blocked; all bits set if unknown."""
    taken = 0
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(("SigBlk:", "SigIgn:", "SigCgt:")):
                    taken |= int(line.split()[1], 16)
    except (OSError, ValueError):
        return -1
    return taken
