# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The probe: one daemon thread in each rank that writes once a second what the rank is doing.

It is a guest in the trainer's process. It never raises and never prints, imports nothing once it
runs, and does without whatever cannot be had: a full, vanished or read-only volume, a stack that
cannot be read. A forked child has no probe: it is no rank.

A record that is no longer written means that the process is stopped, or that something holds
the GIL, or that the volume makes the write wait; which one, the probe cannot tell.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import Callable

from mwatch_trainer import contract, probe_dump, probe_stack, rank_process
from mwatch_trainer.probe_dump import Requests
from mwatch_trainer.probe_file import RecordFile
from mwatch_trainer.probe_iteration import IterationReader
from mwatch_trainer.probe_phase import STOPPING, PhaseReader
from mwatch_trainer.probe_record import Record
from mwatch_trainer.probe_signal import DumpSignal
from mwatch_trainer.rank_process import Identity

PERIOD_SECONDS = 1.0
_LOOK_AFTER_THE_FILE = 5
"""In ticks: whether the file is still in its place, or can be made now."""
_FIRST_LOOK_SECONDS = 0.1
"""The program may hold the GIL from its first line on: the first record is there before it."""
_EXIT_WAIT_SECONDS = 0.5
_MAX_DUMPS_AT_ONCE = 2
_running: Probe | None = None  # the one of this process


def start(folder: str, is_sure: bool = True) -> None:
    """Of a process that is a rank; or, not `is_sure`, that is one as soon as it trains."""
    global _running
    if _running is not None:
        return
    _running = Probe(os.path.abspath(folder), is_sure)
    atexit.register(_running.end)
    os.register_at_fork(after_in_child=_running.leave_child)
    _running.begin()
    _running.has_looked.wait(_FIRST_LOOK_SECONDS)


class Probe:
    def __init__(self, folder: str, is_sure: bool) -> None:
        self._folder = folder
        self._pid = os.getpid()
        self._main = threading.main_thread().ident or 0
        self._started = _start_of_this_process()
        self._attempt = _number(os.environ.get(contract.ATTEMPT_VARIABLE, ""))
        self._phases = PhaseReader()
        self._iterations = IterationReader(self._main)
        self._ticks = 0
        self._identity: Identity | None = None
        """None: it is not known yet that this is a rank."""
        self._file: RecordFile | None = None
        self._signal: DumpSignal | None = None
        self._requests: Requests | None = None
        self.has_looked = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._dumps: list[threading.Thread] = []
        if is_sure:
            self._become_a_rank()
            # Only here, before the program: a thread that sets a variable can break a getenv.
            os.environ[rank_process.OWNER_VARIABLE] = rank_process.mark(os.environ, self._pid)

    def begin(self) -> None:
        self._thread = self._start(self._run)

    def tick(self) -> None:
        """One look, one record. Raises nothing."""
        try:
            self._ticks += 1
            stack = probe_stack.of_thread(self._main)
            phase = self._phases.read(stack)
            iteration = self._iterations.read(stack)
            if self._identity is None:
                if not self._phases.is_training and _place_in_the_group() is None:
                    return
                self._become_a_rank()
            if self._claim():
                self._write(phase, iteration, probe_stack.digest(stack), probe_stack.where(stack))
                self._answer(phase)
        except Exception:
            pass  # a guest: the next tick may do better

    def end(self) -> None:
        """At the end of the program: the last word, then no thread while Python takes down."""
        try:
            if os.getpid() != self._pid:
                return
            self._stop.set()
            if self._thread is not None:
                self._thread.join(_EXIT_WAIT_SECONDS)
            if self._file is not None:
                self._ticks += 1
                self._write(STOPPING, self._iterations.read([]), "", "the end of the program")
        except Exception:
            pass

    def leave_child(self) -> None:
        """A forked child is no rank: it keeps neither the file nor a thread."""
        try:
            self._thread = None
            if self._file is not None:
                self._file.close()
                self._file = None
        except Exception:
            pass

    def _run(self) -> None:
        try:
            while True:
                self.tick()
                self.has_looked.set()
                if self._stop.wait(PERIOD_SECONDS):
                    return
        except BaseException:  # the interpreter is being taken down
            pass

    def _become_a_rank(self) -> None:
        told = rank_process.identity(os.environ)  # the program may have set it by now
        if told.rank < 0:
            rank, world = _place_in_the_group() or (0, 1)
            told = Identity(rank, told.local_rank, world, told.restart_count)
        self._identity = told

    def _claim(self) -> bool:
        """Whether the record can be written: the file is there, and it is ours."""
        assert self._identity is not None
        if self._file is not None:
            if self._ticks % _LOOK_AFTER_THE_FILE or self._file.is_in_place():
                return True
            self._file.close()
            self._file = None
        file = RecordFile(self._folder, self._identity.rank)
        if not file.claim():
            return False
        self._file = file
        if self._signal is None:
            self._requests = Requests(self._folder)
            self._signal = DumpSignal(self._folder, self._identity.rank)
            self._signal.set_up()
        return True

    def _write(self, phase: str, iteration: int, digest: str, where: str) -> None:
        told, file, dump = self._identity, self._file, self._signal
        assert told is not None
        assert file is not None
        assert dump is not None
        file.write(
            Record(
                self._attempt, told.restart_count, self._pid, self._started, told.rank,
                told.local_rank, told.world_size, iteration, time.monotonic(), time.time(),
                self._ticks, dump.number, phase, digest, where,
            )
        )  # fmt: skip

    def _answer(self, phase: str) -> None:
        assert self._requests is not None
        asked = self._requests.new()
        if asked is None:
            return
        self._dumps = [thread for thread in self._dumps if thread.is_alive()]
        if len(self._dumps) < _MAX_DUMPS_AT_ONCE:
            self._dumps.append(self._start(self._dump, asked, phase))

    def _dump(self, asked: str, phase: str) -> None:
        """In a thread of its own: torch may keep it waiting, and the beats go on."""
        try:
            assert self._identity is not None
            rank = self._identity.rank
            folder = os.path.join(self._folder, contract.DUMPS_FOLDER, asked)
            probe_dump.write_all(folder, rank, probe_dump.header(rank, f"in {phase or '?'}"))
            if self._signal is not None:
                self._signal.keep_small()
        except BaseException:  # also the interpreter being taken down
            pass

    def _start(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name="mwatch-probe", daemon=True)
        thread.start()
        return thread


def _place_in_the_group() -> tuple[int, int] | None:
    """Rank and size of torch's default group; None before there is one."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    is_there = getattr(module, "is_initialized", None)
    if module is None or is_there is None or not is_there():
        return None
    return int(module.get_rank()), int(module.get_world_size())


def _start_of_this_process() -> int:
    try:
        with open("/proc/self/stat", "rb") as file:
            return int(file.read(4096).rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1


def _number(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 18 else -1
