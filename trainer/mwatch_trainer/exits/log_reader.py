# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Extracts from the trainer's output what is needed to explain its exit.

Parses the output of Megatron and its derivatives, Composer, torchtitan and NeMo, and what torchrun
and other launchers print about their workers. Megatron prints its iterations on the last rank and
its end on rank 0, so one pod may see only one of the two.
"""

from __future__ import annotations

import re
import time
from typing import Callable, NamedTuple

from mwatch_trainer.exits.launchers import read_reports
from mwatch_trainer.exits.signal_table import number_of

MAX_ERRORS = 64
MAX_OPEN = 64
_MAX_TEXT = 300
_MAX_LINES = 1000
_MAX_PREFIX = 128
_SAME_MOMENT_SECONDS = 5.0
_SIGNS_OF_LIFE = 2

_PREFIX = re.compile(
    r"\s*(?:\[\w*\d+\]:|\[[\w.-]+:\d+\]:|\d{1,5}:(?=\s)|[\w.-]+-\d+:(?=\s)"
    r"|\([^()]{1,60}pid=\d+\)) ?"
)
_TRACEBACK = "Traceback (most recent call last)"
_END = re.compile(
    r"([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|StopIteration))(?::\s*(.*))?$"
)
_AT_A_CHECKPOINT = re.compile(
    r"\bin (?:_?load_\w*checkpoint\w*|_?save_checkpoint\w*|load_state_dict|_restore_state)\b"
    r"|maybe_finalize_async_save|dist_checkpointing|distributed/checkpoint/|/checkpointing\.py"
)

ROOT_OF_USER = frozenset(
    {
        "KeyError", "TypeError", "ValueError", "AttributeError", "NameError", "UnboundLocalError",
        "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError",
        "AssertionError", "NotImplementedError", "IndexError", "LookupError", "ZeroDivisionError",
        "RecursionError", "UnicodeDecodeError", "UnicodeEncodeError", "FileNotFoundError",
        "IsADirectoryError", "NotADirectoryError", "PermissionError",
    }
)  # fmt: skip
"""Errors that a restart cannot fix, because it has the same code, data and paths."""
_CONSEQUENCES = re.compile(
    r"ChildFailedError|SignalException|ncclRemoteError|DistBackendError|DistNetworkError"
    r"|DistStoreError|DistError|NCCL|[Gg]loo|[Rr]endezvous|TCPStore|ConnectionError"
    r"|Connection (?:reset|closed|refused)|Broken pipe|ConnectionResetError|BrokenPipeError"
    r"|is killed by signal: Terminated"
)  # printed by other ranks when one rank fails, and by the launcher
_NUMBERS = re.compile(
    r"found (?:NaN|Inf)|Unexpected result|unexpected large grads|hashes not matching"
)
_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC"
)
_STORAGE = re.compile(
    r"\[Errno (?:28|30|122)\]|No space left on device|Disk quota exceeded|Read-only file system"
)  # ENOSPC, EROFS, EDQUOT
_LAYOUT = re.compile(r"class input value .* do not match|not divisible by|Duplicate GPU detected")


class PrintedError(NamedTuple):
    rank: int | None  # from the prefix of torch's traceback
    kind: str
    text: str
    at_checkpoint: bool  # raised while reading or writing a checkpoint

    @property
    def is_memory(self) -> bool:
        return _MEMORY.search(self.kind + self.text) is not None

    @property
    def is_consequence(self) -> bool:
        whole = f"{self.kind}: {self.text}"
        return _CONSEQUENCES.search(whole) is not None and _LAYOUT.search(whole) is None

    @property
    def is_permanent(self) -> bool:
        """Whether a restart from this or another checkpoint fails the same way."""
        if _LAYOUT.search(self.text) or _STORAGE.search(self.text):
            return True
        is_of_user = self.kind.rpartition(".")[2] in ROOT_OF_USER
        return is_of_user and not self.at_checkpoint and _NUMBERS.search(self.text) is None

    def description(self) -> str:
        who = "" if self.rank is None else f"rank {self.rank}: "
        return f"{who}{self.kind}{': ' if self.text else ''}{self.text}"[:_MAX_TEXT]


class _Noted:
    def __init__(self, error: PrintedError, at: float) -> None:
        self.error, self.at = error, at
        self.signs_of_life = 0


class _Open:
    def __init__(self) -> None:
        self.lines = 0
        self.at_checkpoint = False


class Errors:
    """Errors in the output: the last line of each traceback.

    Tracebacks of several ranks are interleaved and separated by the prefix of their lines. A
    traceback that training survives (two more iterations were printed) is dropped. Iterations are
    printed to stdout and tracebacks to stderr, so the order of lines read at the same moment is
    unknown: only an iteration read some seconds later shows that training continued.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._noted: list[_Noted] = []
        self._now = 0.0
        self._is_ignored = False

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    @property
    def found(self) -> list[PrintedError]:
        return [each.error for each in self._noted]

    def feed(self, line: str, now: float) -> None:
        """Read one line. `now`: when it was read, in seconds of any clock."""
        self._now = now
        name, text = unprefixed(line)
        opened = self._open.get(name)
        if _TRACEBACK in text:
            self._begin(name)
        elif opened is not None:
            self._continue(name, opened, text)
        elif text.startswith("Exception ignored in"):
            self._is_ignored = True
        elif "Duplicate GPU detected" in text:
            self._note(PrintedError(_rank(name), "NCCL error", text.strip()[:_MAX_TEXT], False))
        elif _MEMORY.search(text) and "decreased" not in text:
            # With "decreased" it is a warning: Composer continues with a smaller batch.
            self._note(PrintedError(_rank(name), "CUDA out of memory", "", False))

    def survived(self, now: float) -> None:
        for each in self._noted:
            each.signs_of_life += now - each.at >= _SAME_MOMENT_SECONDS
        self._noted = [each for each in self._noted if each.signs_of_life < _SIGNS_OF_LIFE]

    def root(self, rank: int | None) -> PrintedError | None:
        """Return the root cause, preferring errors of `rank`, the rank that the launcher named."""
        causes = [each for each in self.found if not each.is_consequence]
        memory = [each for each in causes if each.is_memory]
        own = [each for each in causes if rank is not None and each.rank == rank]
        return next(iter(memory or own or causes or self.found), None)

    def _begin(self, name: str) -> None:
        if self._is_ignored:
            self._is_ignored = False
        elif len(self._open) < MAX_OPEN:
            # torch prints other ranks' tracebacks inside its own: treat it as one traceback.
            self._open.setdefault(name, _Open())

    def _continue(self, name: str, opened: _Open, text: str) -> None:
        opened.lines += 1
        found = _END.match(text.rstrip())
        if found is not None:
            del self._open[name]
            rest = (found.group(2) or "")[:_MAX_TEXT]
            self._note(PrintedError(_rank(name), found.group(1), rest, opened.at_checkpoint))
        elif _AT_A_CHECKPOINT.search(text):
            opened.at_checkpoint = True
        elif opened.lines > _MAX_LINES:
            del self._open[name]

    def _note(self, error: PrintedError) -> None:
        if len(self._noted) < MAX_ERRORS:
            self._noted.append(_Noted(error, self._now))


def unprefixed(line: str) -> tuple[str, str]:
    prefix = _PREFIX.match(line[:_MAX_PREFIX])
    return (prefix.group(0).strip(), line[prefix.end() :]) if prefix else ("", line)


def _rank(prefix: str) -> int | None:
    found = re.fullmatch(r"\[rank(\d{1,7})\]:", prefix)
    return int(found.group(1)) if found else None


MAX_LINE = 1 << 13
_WORDS = (
    b"iteration", b"Traceback", b"xit", b"batch=", b"sample=", b"token=", b"datetime: ", b"signal",
    b"step:", b"could not", b"nvalid", b"nable to", b"Error", b"Cause", b" save .", b"ignored",
    b"out of memory", b"error: ", b"timelimit", b"terminated", b"Duplicate",
)  # fmt: skip
"""Lines without any of these are skipped; the search takes 1 to 2 microseconds."""
_ITERATION = re.compile(r"\biteration[ =:]+(\d{1,12})\s*/\s*(\d{1,12})\s*\|")
_NEMO = re.compile(r"\bTraining epoch \d+, iteration (\d{1,12})/(\d{1,12})\b")
_BATCH = re.compile(r"\[(batch|sample|token)=(\d{1,15})/(\d{1,15})\]")
_TITAN = re.compile(r"\bstep:\s{0,20}(\d{1,12})\s{1,20}loss:")
_COLOUR = re.compile(r"\x1b\[[\d;]{0,20}[A-Za-z]")
_MARKER = re.compile(r"\[([^\]]{1,120})\] datetime: ")
_ELASTIC = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5})")
_BLOCK = re.compile(r"^\s*(rank|exitcode)\s*: (-?\d{1,7})\b")
_SIGNALLED = re.compile(
    r"Process \d+ got signal: (?:Signals\.)?(\w+)|Received (?:Signals\.)?(\w+) death signal"
)
_SAVE = re.compile(r"^\s*save \.{3,} (\S.*?)\s*$")
_USAGE = re.compile(
    r"\berror: (?:unrecognized arguments|argument |the following arguments are required|ambiguous)"
)
_EMPTY_EXIT = re.compile(
    r"could not load the checkpoint|ERROR: Invalid metadata file"
    r"|A metadata file exists but unable to load|Unable to load (?:rng|optimizer)"
    r"|Invalid checkpoint version"
)
_MISSING_EXIT = "'--exit-on-missing-checkpoint'"
INTERVAL, DURATION, SIGNAL, TERMINATED = "interval", "duration", "signal", "terminated"


class FailedWorker(NamedTuple):
    rank: int | None
    code: int


class ExitLogReader:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.iteration: int | None = None
        self.total: int | None = None
        self.interval = 1  # iterations between two printed lines, as observed so far
        self.unit = "iteration"
        self.has_begun = False  # rank 0 printed that training starts; it also prints its end
        self.is_done = False
        self.goodbye: str | None = None
        self.worker: FailedWorker | None = None
        self.signal: int | None = None  # signal that the launcher received
        self.empty_exit: str | None = None
        """The line that Megatron printed before exiting with 0 without having trained."""
        self.is_missing_checkpoint = False
        self.usage: str | None = None
        self.save: str | None = None
        """The checkpoint folder from the printed arguments, in case a launch script hides it."""
        self.errors = Errors()
        self._in_root_cause = False
        self._root_rank: int | None = None

    def feed(self, line: bytes) -> None:
        """Read one or more lines of stdout or stderr. Never raises."""
        try:
            if b"\n" in line:
                for each in line.split(b"\n"):
                    self._feed(each)
            else:
                self._feed(line)
        except Exception:
            return  # only this line is lost

    def _feed(self, line: bytes) -> None:
        if not self.errors.is_open and not self._in_root_cause:
            for word in _WORDS:
                if word in line:
                    break
            else:
                return
        text = line[:MAX_LINE].decode("utf-8", "replace").rstrip("\r")
        if "\x1b" in text:
            text = _COLOUR.sub("", text)
        if not self._progress(text):
            self.errors.feed(text, self._clock())
            self._marker(text)
            self._launcher(text)
            self._end(text)

    def _progress(self, text: str) -> bool:
        nemo = _NEMO.search(text)
        found = nemo or _ITERATION.search(text)
        if found:
            # NeMo counts from 0, and its total is the last iteration number that it prints.
            more = 1 if nemo else 0
            self._advance(int(found.group(1)) + more, int(found.group(2)) + more)
            return True
        batch = _BATCH.search(text)
        if batch and "Eval" not in text[: batch.start()]:
            self.unit = batch.group(1)
            self._advance(int(batch.group(2)), int(batch.group(3)))
            return True
        titan = _TITAN.search(text)
        if titan:
            self._advance(int(titan.group(1)), None)
        return titan is not None

    def _advance(self, iteration: int, total: int | None) -> None:
        before = self.iteration
        if before is not None and iteration > before:
            self.interval = max(self.interval, iteration - before)
        if before is None or iteration != before:
            self.errors.survived(self._clock())
        self.iteration, self.total = iteration, total

    def _marker(self, text: str) -> None:
        found = _MARKER.search(text)
        if not found:
            return
        name = found.group(1)
        if name == "before the start of training step":
            # Also printed by workers that torchrun restarted without reporting the restart.
            self.has_begun, self.is_done, self.goodbye = True, False, None
            self.worker = self.signal = self.empty_exit = None
        elif name == "after training is done":
            self.is_done = True
        elif name.startswith("exiting program after receiving"):
            self.goodbye = SIGNAL
        elif name.startswith("exiting program after"):
            self.goodbye = DURATION
        elif name.startswith("exiting program at iteration"):
            self.goodbye = INTERVAL

    def _launcher(self, text: str) -> None:
        if "Root Cause (first observed failure)" in text:
            self._in_root_cause, self._root_rank = True, None
            return
        if self._in_root_cause:
            field = _BLOCK.match(unprefixed(text)[1])
            if field and field.group(1) == "rank":
                self._root_rank = int(field.group(2))
            elif field:
                self.worker = FailedWorker(self._root_rank, int(field.group(2)))
                self._in_root_cause = False
            return
        elastic = _ELASTIC.search(text)
        if elastic:
            self.worker = FailedWorker(None, int(elastic.group(1)))
        if self.worker is None:
            first = next(read_reports(text), None)
            self.worker = first and FailedWorker(first.rank, first.code)

    def _end(self, text: str) -> None:
        signalled = _SIGNALLED.search(text)
        if signalled:
            self.signal = number_of(signalled.group(1) or signalled.group(2))
        elif _EMPTY_EXIT.search(text):
            self.empty_exit, self.goodbye, self.is_done = text.strip()[:200], None, False
        elif _MISSING_EXIT in text:
            self.is_missing_checkpoint = True
        elif "training terminated. Returning" in text or "timelimit reached" in text:
            self.goodbye = TERMINATED
        elif _USAGE.search(text):
            self.usage = text.strip()[:200]
        else:
            folder = _SAVE.match(unprefixed(text)[1])
            if folder and folder.group(1) != "None":
                self.save = folder.group(1)
