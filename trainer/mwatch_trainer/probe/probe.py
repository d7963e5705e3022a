# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The probe: a daemon thread in each rank that records once a second what the rank is doing.

It never raises or prints, and imports nothing once it runs. It tolerates a full, removed or
read-only volume and a stack that cannot be read. A forked child has no probe.

A record that is no longer updated means that the process is stopped, that something holds the GIL,
or that the volume blocks the write; the probe cannot determine which.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from types import CodeType, FrameType
from typing import Any, Callable

from mwatch_trainer import contract
from mwatch_trainer.probe import dump as probe_dump
from mwatch_trainer.probe import rank_identity
from mwatch_trainer.probe import stack as probe_stack
from mwatch_trainer.probe.dump import DumpSignal, Requests
from mwatch_trainer.probe.rank_identity import Identity
from mwatch_trainer.probe.record_file import ProbeRecord, RecordFile
from mwatch_trainer.probe.stack import STOPPING, PhaseReader, Stack

UNKNOWN = -1
_MAX = 1 << 60
_MEGATRON_ARGS = ("megatron.training.global_vars", "megatron.global_vars")
_MEGATRON_LOOP = ("megatron/training.py", "training/training.py")
_MEGATRON_FUNCTIONS = ("train", "pretrain")
_AFTER_THE_STEP = frozenset(
    (
        "training_log", "evaluate_and_print_results", "evaluate_and_print_results_rl",
        "post_training_step_callbacks", "checkpoint_and_decide_exit",
    )
)  # fmt: skip
_COMPOSER = "composer.trainer.trainer"
_COMPOSER_FILE = "composer/trainer/trainer.py"


class IterationReader:
    """Reads the number of finished iterations without running any of the trainer's code.

    Only modules already loaded and plain attributes of plain objects are read.

    Megatron (core_v0.4 to 0.20) sets `args.curr_iteration` at the start of an iteration to the
    number of finished ones and does not change it while it logs, evaluates and saves after the
    step, when one more is finished. After a resume it is missing or 0 until the first step, and
    `args.iteration` is where the loop starts. Before the loop both are ignored, because
    `args.iteration` may come from a checkpoint.
    """

    def __init__(self, main: int) -> None:  # ident of the thread that trains
        self._main = main
        self._last = UNKNOWN
        self._megatron_has_looped = False
        self._composer: Callable[[], Any] = lambda: None

    def read(self, stack: Stack) -> int:
        found = _mwatch_gpt_iteration()
        if found == UNKNOWN:
            found = self._of_megatron(stack)
        if found == UNKNOWN and _COMPOSER in sys.modules:
            found = self._of_composer(stack)
        # Between two iterations the sources may disagree by one: never step back by one.
        if found not in (UNKNOWN, self._last - 1):
            self._last = found
        return self._last

    def _of_megatron(self, stack: Stack) -> int:
        """Return the count in and after the loop; before it the numbers mean something else."""
        started = max(_megatron_arg("curr_iteration"), _megatron_arg("iteration"))
        if started == UNKNOWN:
            return UNKNOWN
        inner = ""
        for place in stack:
            code = place[0]
            if code.co_name in _MEGATRON_FUNCTIONS and code.co_filename.endswith(_MEGATRON_LOOP):
                break
            inner = code.co_name
        else:
            return UNKNOWN
        if code.co_name == "train":
            self._megatron_has_looped = True
            # Older releases save after a step from the loop itself. In newer ones, a save directly
            # from the loop has other reasons.
            is_old = "checkpoint_and_decide_exit" not in place[2]
            is_after = inner in _AFTER_THE_STEP or (is_old and inner == "save_checkpoint_and_time")
        elif self._megatron_has_looped:
            is_after = True  # after the loop, the last iteration is finished
        else:
            return UNKNOWN
        return started + is_after

    def _of_composer(self, stack: Stack) -> int:
        trainer = self._composer()
        if trainer is None:
            if not any(_is_composer_fit(code) for code, _, _ in stack):
                return UNKNOWN
            trainer = _trainer_of_fit(self._main)
            if trainer is None:
                return UNKNOWN
            self._composer = weakref.ref(trainer)
        timestamp = _plain(_plain(trainer, "state"), "timestamp")
        return _count(_plain(_plain(timestamp, "_batch"), "_value"))


def _mwatch_gpt_iteration() -> int:
    """Return `mwatch_gpt`'s iteration; unknown until it has loaded its checkpoint, as it is 0."""
    progress = sys.modules.get("mwatch_gpt.progress")
    if progress is None or _plain(progress, "phase") in ("starting", "loading"):
        return UNKNOWN
    return _count(_plain(progress, "iteration"))


def _megatron_arg(name: str) -> int:
    for module in _MEGATRON_ARGS:
        arguments = _plain(sys.modules.get(module), "_GLOBAL_ARGS")
        if arguments is not None:
            return _count(_plain(arguments, name))
    return UNKNOWN


def _is_composer_fit(code: CodeType) -> bool:
    return code.co_name == "fit" and code.co_filename.endswith(_COMPOSER_FILE)


def _trainer_of_fit(main: int) -> Any | None:
    """Return `self` of the running `Trainer.fit`, the only local variable that the probe reads.

    Up to Python 3.12 this leaves a copy of the function's variables in its frame. That keeps only
    `fit`'s arguments alive, which live until it returns anyway; it is read once.
    """
    frame: FrameType | None = sys._current_frames().pop(main, None)
    depth = 0
    while frame is not None and depth < 256:
        if _is_composer_fit(frame.f_code):
            # A debugger writes such a copy back to the variables: do not create one then.
            return frame.f_locals.get("self") if frame.f_trace is None else None
        frame, depth = frame.f_back, depth + 1
    return None


def _plain(thing: Any, name: str) -> Any:
    """Return the stored attribute without running a property or `__getattr__`."""
    try:
        return object.__getattribute__(thing, "__dict__").get(name)
    except Exception:
        return None


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _MAX else UNKNOWN


PERIOD_SECONDS = 1.0
_CHECK_FILE_TICKS = 5
_FIRST_RECORD_SECONDS = 0.1
"""Time to wait for the first record before the program starts, as it may hold the GIL from its
first line on."""
_EXIT_WAIT_SECONDS = 0.5
_MAX_DUMPS_AT_ONCE = 2
_running: Probe | None = None  # this process's probe


def start(folder: str, is_sure: bool = True) -> None:
    """Start the probe; unless `is_sure`, it becomes active as soon as the process trains."""
    global _running
    if _running is not None:
        return
    _running = Probe(os.path.abspath(folder), is_sure)
    atexit.register(_running.end)
    os.register_at_fork(after_in_child=_running.leave_child)
    _running.begin()
    _running.has_ticked.wait(_FIRST_RECORD_SECONDS)


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
        self._identity: Identity | None = None  # None: not known to be a rank yet
        self._file: RecordFile | None = None
        self._signal: DumpSignal | None = None
        self._requests: Requests | None = None
        self.has_ticked = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._dumps: list[threading.Thread] = []
        if is_sure:
            self._become_a_rank()
            # Set only here, before the program runs: setting it in a thread could break getenv.
            os.environ[rank_identity.OWNER_VARIABLE] = rank_identity.mark(os.environ, self._pid)

    def begin(self) -> None:
        self._thread = self._start(self._run)

    def tick(self) -> None:
        """Read the state and write one record. Never raises."""
        try:
            self._ticks += 1
            stack = probe_stack.of_thread(self._main)
            phase = self._phases.read(stack)
            iteration = self._iterations.read(stack)
            if self._identity is None:
                if not self._phases.is_training and _rank_in_group() is None:
                    return
                self._become_a_rank()
            if self._claim():
                self._write(phase, iteration, probe_stack.digest(stack), probe_stack.where(stack))
                self._answer(phase)
        except Exception:
            pass  # the next tick may succeed

    def end(self) -> None:
        """Write the last record and end the thread before the interpreter shuts down."""
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
        """Close the file in a forked child, which is not a rank."""
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
                self.has_ticked.set()
                if self._stop.wait(PERIOD_SECONDS):
                    return
        except BaseException:  # also raised when the interpreter shuts down
            pass

    def _become_a_rank(self) -> None:
        identity = rank_identity.identity(os.environ)  # the program may have set the rank by now
        if identity.rank < 0:
            rank, world = _rank_in_group() or (0, 1)
            identity = Identity(rank, identity.local_rank, world, identity.restart_count)
        self._identity = identity

    def _claim(self) -> bool:
        """Open the record file; return whether this process may write it."""
        assert self._identity is not None
        if self._file is not None:
            if self._ticks % _CHECK_FILE_TICKS or self._file.is_in_place():
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
        identity, file, dump = self._identity, self._file, self._signal
        assert identity is not None
        assert file is not None
        assert dump is not None
        file.write(
            ProbeRecord(
                self._attempt, identity.restart_count, self._pid, self._started, identity.rank,
                identity.local_rank, identity.world_size, iteration, time.monotonic(), time.time(),
                self._ticks, dump.number, phase, digest, where,
            )
        )  # fmt: skip

    def _answer(self, phase: str) -> None:
        assert self._requests is not None
        requested = self._requests.new()
        if requested is None:
            return
        self._dumps = [thread for thread in self._dumps if thread.is_alive()]
        if len(self._dumps) < _MAX_DUMPS_AT_ONCE:
            self._dumps.append(self._start(self._dump, requested, phase))

    def _dump(self, id: str, phase: str) -> None:
        """Write the dump in its own thread: torch may block, and records must continue."""
        try:
            assert self._identity is not None
            rank = self._identity.rank
            folder = os.path.join(self._folder, contract.DUMPS_FOLDER, id)
            probe_dump.write_all(folder, rank, probe_dump.header(rank, f"in {phase or '?'}"))
            if self._signal is not None:
                self._signal.truncate()
        except BaseException:  # also the interpreter's shutdown
            pass

    def _start(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name="mwatch-probe", daemon=True)
        thread.start()
        return thread


def _rank_in_group() -> tuple[int, int] | None:
    """Return rank and size of torch's default process group; None before it exists."""
    module = sys.modules.get("torch.distributed.distributed_c10d")
    is_initialized = getattr(module, "is_initialized", None)
    if module is None or is_initialized is None or not is_initialized():
        return None
    return int(module.get_rank()), int(module.get_world_size())


def _start_of_this_process() -> int:
    stat = contract.read_bytes("/proc/self/stat", 4096) or b""
    try:
        return int(stat.rpartition(b")")[2].split()[19])
    except (ValueError, IndexError):
        return -1


def _number(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 18 else -1
