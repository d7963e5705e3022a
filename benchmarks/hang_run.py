# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Starts a job under somebody's eyes, stops one of its ranks, and waits until somebody says so.

The time is taken here, by one clock for all: from just before SIGSTOP is sent to the arrival of
the line. What is said before the stop is a false alarm, and fails the measurement.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.measure import ChildFailed
from mwatch_trainer.processes import proc

READY_ITERATION = 30
"""Healthy steps before the stop: all who learn from them have learnt."""
_START_SECONDS = 300.0
_NOTICE_SECONDS = 120.0
_GONE_SECONDS = 20.0
_STOPPED_RANK = 1
_MARK = "MWATCH_BENCHMARK_RUN"
_ITERATION = re.compile(rb"\] iteration +(\d+)/")
_CALCULATED = b"calculated: "
_SHOWN_LINES = 12


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who runs the job, and by which line it tells of a hang."""

    name: str
    command: Callable[[Path], Sequence[str]]
    """In a folder of its own."""
    env: Mapping[str, str]
    says_hang: Callable[[bytes], bool]
    looks_every_seconds: float
    first_look: Callable[[int], float]
    """When it began to look, by CLOCK_BOOTTIME, of the process with this pid."""


@dataclass(frozen=True, slots=True)
class Noticed:
    seconds: float
    said: str
    learnt: str
    """What the job printed of calculated timeouts."""


class _Output:
    """Both streams of a process, line by line, with the moment at which each line came."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._lines: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self.last: deque[bytes] = deque(maxlen=_SHOWN_LINES)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            self._lines.put((time.monotonic(), line))

    def until(self, deadline: float) -> Iterator[tuple[float, bytes]]:
        while (left := deadline - time.monotonic()) > 0:
            try:
                came, line = self._lines.get(timeout=left)
            except queue.Empty:
                return
            self.last.append(line)
            yield came, line

    def shown(self) -> str:
        return b"".join(self.last).decode("utf-8", "replace").strip()


def notice(watcher: Watcher, folder: Path, share: float) -> Noticed:
    """`share` of the watcher's period between two looks passes from a look to the stop.

    Where it looks seldom, this is most of the time: so a series of runs can cover the period
    evenly instead of leaving it to chance.
    """
    with _started(watcher, folder) as process:
        output = _Output(process)
        learnt = _wait_for_steps(watcher, output)
        _wait_for_moment(watcher, process.pid, share)
        stopped = _stop_a_rank(process.pid)
        for came, line in output.until(stopped + _NOTICE_SECONDS):
            if watcher.says_hang(line):
                if came < stopped:
                    raise ChildFailed(f"{watcher.name}: a false alarm: {line!r}")
                words = line.decode("utf-8", "replace").strip()
                return Noticed(came - stopped, words, learnt)
        raise ChildFailed(
            f"{watcher.name}: nothing said {_NOTICE_SECONDS:.0f} s after the stop:\n"
            f"{output.shown()}"
        )


def _wait_for_steps(watcher: Watcher, output: _Output) -> str:
    learnt = ""
    for _, line in output.until(time.monotonic() + _START_SECONDS):
        if watcher.says_hang(line):
            raise ChildFailed(f"{watcher.name}: a false alarm: {line!r}")
        if _CALCULATED in line:
            learnt = line.partition(_CALCULATED)[2].decode("utf-8", "replace").strip()
        found = _ITERATION.search(line)
        if found and int(found[1]) >= READY_ITERATION:
            return learnt
    raise ChildFailed(f"{watcher.name}: the job does not train:\n{output.shown()}")


def _wait_for_moment(watcher: Watcher, pid: int, share: float) -> None:
    period = watcher.looks_every_seconds
    since = (time.clock_gettime(time.CLOCK_BOOTTIME) - watcher.first_look(pid)) % period
    time.sleep((share * period - since) % period)


def _stop_a_rank(root: int) -> float:
    below = proc.descendants(root, proc.all_processes())
    ranks = proc.Ranks().of(below)
    own = [pid for pid, (rank, is_own) in ranks.items() if is_own and rank == _STOPPED_RANK]
    if len(own) != 1:
        raise ChildFailed(f"rank {_STOPPED_RANK} has {len(own)} processes")
    stopped = time.monotonic()
    os.kill(own[0], signal.SIGSTOP)
    return stopped


def started_at(process: proc.Process) -> float:
    """By CLOCK_BOOTTIME, which the kernel counts it by."""
    return process.started / os.sysconf("SC_CLK_TCK")


@contextmanager
def _started(watcher: Watcher, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    mark = uuid.uuid4().hex
    folder.mkdir()
    process = subprocess.Popen(
        watcher.command(folder),
        cwd=folder,
        # What is killed leaves its sockets behind.
        env={**os.environ, **watcher.env, "TMPDIR": str(folder), _MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        _end_all(mark)
        process.wait()


def _end_all(mark: str) -> None:
    """Whatever was started, in whichever group: all of it carries the mark."""
    wanted = f"{_MARK}={mark}".encode()
    deadline = time.monotonic() + _GONE_SECONDS
    while there := [pid for pid in proc.all_processes() if _carries(pid, wanted)]:
        if time.monotonic() > deadline:
            raise ChildFailed(f"processes do not end: {there}")
        for pid in there:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        return wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
