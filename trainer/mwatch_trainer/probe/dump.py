# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank tells when it is asked: the stacks of all its threads, and torch's flight recorder.

The stacks are on disk before torch is called: that may wait for locks of its own. Nothing is
imported; a torch that is not there yet has nothing recorded. Sizes are bounded, files appear
whole. A rank that holds the GIL cannot answer this way: for that one there is `probe_signal`.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from typing import Any, Callable

from mwatch_trainer import contract
from mwatch_trainer.probe import stack
from mwatch_trainer.probe.dump_quota import DUMP_BYTES

MAX_STACKS_BYTES = 1 << 20
MAX_FLIGHT_BYTES = 8 << 20
"""Of one rank, or less: the ranks of a node share the room of one dump."""
_LOCAL_RANKS = "LOCAL_WORLD_SIZE"
_MAX_THREADS = 256
_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", re.ASCII)
_RECORDERS = (("nccl", "_dump_nccl_trace"), ("gloo", "_dump_fr_trace"))
"""NCCL has a recorder of its own; the other one has gloo and whatever else records."""
_HAS_ENTRIES = b"record_id"
UNFINISHED = "unfinished"
"""A file of this kind lies beside the stacks of a rank until all of its answer is there."""


class Requests:
    """Tells a new request from one that was there before; costs one `stat` a look."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, contract.DUMPS_FOLDER, contract.DUMP_REQUEST)
        self._seen: tuple[int, int] | None = None
        self._last = ""
        self.new()  # asked before this process was there: not of it

    def new(self) -> str | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        seen = (status.st_ino, status.st_mtime_ns)
        if seen == self._seen:
            return None
        self._seen = seen
        asked = (contract.read_json(self._path) or {}).get("id")
        if not isinstance(asked, str) or not _ID.fullmatch(asked) or asked == self._last:
            return None
        self._last = asked
        return asked


def write_all(folder: str, rank: int, header: str) -> None:
    """Into `folder`, which is made where it is missing. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
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
    """All threads of this process, the innermost place first, as faulthandler writes them."""
    main = threading.main_thread().ident
    known = getattr(threading, "_active", {})  # `enumerate` takes a lock that may be held
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
    """`flight`: of NCCL where it has recorded anything, else of gloo; `flight-gloo`: the other."""
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
    """All collectives, without their stacks: resolving those takes many seconds, and where each
    rank stands now is in its own stacks. Up to torch 2.4 it takes no arguments."""
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
