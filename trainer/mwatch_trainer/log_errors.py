# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The errors in a trainer's output: what each traceback ends with, and what that is worth.

Tracebacks of several ranks run into each other, told apart by the prefix of their lines. A
traceback that training survives (two more iterations were printed) is forgotten. Iterations come
on stdout and tracebacks on stderr, so lines that are read at the same moment have no order: only
an iteration that is read some seconds later shows that training went on. What this cannot know:
an error that was never printed, and one printed by another pod.
"""

from __future__ import annotations

import re
from typing import NamedTuple

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
"""A restart meets the same code, the same data and the same paths."""
_CONSEQUENCES = re.compile(
    r"ChildFailedError|SignalException|ncclRemoteError|DistBackendError|DistNetworkError"
    r"|DistStoreError|DistError|NCCL|[Gg]loo|[Rr]endezvous|TCPStore|ConnectionError"
    r"|Connection (?:reset|closed|refused)|Broken pipe|ConnectionResetError|BrokenPipeError"
    r"|is killed by signal: Terminated"
)
"""What other ranks say of the one that failed, and what the launcher says of all."""
_NUMBERS = re.compile(
    r"found (?:NaN|Inf)|Unexpected result|unexpected large grads|hashes not matching"
)
_MEMORY = re.compile(
    r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC"
)
_LAYOUT = re.compile(r"class input value .* do not match|not divisible by|Duplicate GPU detected")


class Error(NamedTuple):
    rank: int | None
    """From the prefix of torch's traceback, else None."""
    kind: str
    text: str
    at_checkpoint: bool
    """It came out of reading or writing a checkpoint."""

    @property
    def is_memory(self) -> bool:
        return _MEMORY.search(self.kind + self.text) is not None

    @property
    def is_consequence(self) -> bool:
        whole = f"{self.kind}: {self.text}"
        return _CONSEQUENCES.search(whole) is not None and _LAYOUT.search(whole) is None

    @property
    def is_interrupt(self) -> bool:
        return self.kind == "KeyboardInterrupt"

    @property
    def is_permanent(self) -> bool:
        """A restart from the same checkpoint, or from another, meets it again."""
        if _LAYOUT.search(self.text):
            return True
        is_of_user = self.kind.rpartition(".")[2] in ROOT_OF_USER
        return is_of_user and not self.at_checkpoint and _NUMBERS.search(self.text) is None

    def said(self) -> str:
        who = "" if self.rank is None else f"rank {self.rank}: "
        return f"{who}{self.kind}{': ' if self.text else ''}{self.text}"[:_MAX_TEXT]


class _Noted:
    def __init__(self, error: Error, at: float) -> None:
        self.error, self.at = error, at
        self.signs_of_life = 0


class _Open:
    def __init__(self) -> None:
        self.lines = 0
        self.at_checkpoint = False


class Errors:
    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._noted: list[_Noted] = []
        self._now = 0.0
        self._is_ignored = False

    @property
    def is_open(self) -> bool:
        """The next lines belong to a traceback."""
        return bool(self._open)

    @property
    def found(self) -> list[Error]:
        """The earliest first."""
        return [each.error for each in self._noted]

    def feed(self, line: str, now: float) -> None:
        """`now`: when it was read, in seconds of any clock."""
        self._now = now
        name, text = unprefixed(line)
        opened = self._open.get(name)
        if _TRACEBACK in text:
            self._begin(name)
        elif opened is not None:
            self._go_on(name, opened, text)
        elif text.startswith("Exception ignored in"):
            self._is_ignored = True
        elif "Duplicate GPU detected" in text:
            self._note(Error(_rank(name), "NCCL error", text.strip()[:_MAX_TEXT], False))
        elif _MEMORY.search(text) and "decreased" not in text:
            # Composer says that in a warning, and goes on with a smaller batch.
            self._note(Error(_rank(name), "CUDA out of memory", "", False))

    def survived(self, now: float) -> None:
        """Training went on: what it outlived is no cause."""
        for each in self._noted:
            each.signs_of_life += now - each.at >= _SAME_MOMENT_SECONDS
        self._noted = [each for each in self._noted if each.signs_of_life < _SIGNS_OF_LIFE]

    def root(self, rank: int | None) -> Error | None:
        """Why it ended; of `rank`, where the launcher names it."""
        causes = [each for each in self.found if not each.is_consequence]
        memory = [each for each in causes if each.is_memory]
        own = [each for each in causes if rank is not None and each.rank == rank]
        return next(iter(memory or own or causes or self.found), None)

    def _begin(self, name: str) -> None:
        if self._is_ignored:
            self._is_ignored = False
        elif len(self._open) < MAX_OPEN:
            # torch prints the tracebacks of other ranks inside its own: that is still one.
            self._open.setdefault(name, _Open())

    def _go_on(self, name: str, opened: _Open, text: str) -> None:
        opened.lines += 1
        found = _END.match(text.rstrip())
        if found is not None:
            del self._open[name]
            rest = (found.group(2) or "")[:_MAX_TEXT]
            self._note(Error(_rank(name), found.group(1), rest, opened.at_checkpoint))
        elif _AT_A_CHECKPOINT.search(text):
            opened.at_checkpoint = True
        elif opened.lines > _MAX_LINES:
            del self._open[name]

    def _note(self, error: Error) -> None:
        if len(self._noted) < MAX_ERRORS:
            self._noted.append(_Noted(error, self._now))


def unprefixed(line: str) -> tuple[str, str]:
    """The prefix that a launcher put before a line, and the rest."""
    prefix = _PREFIX.match(line[:_MAX_PREFIX])
    return (prefix.group(0).strip(), line[prefix.end() :]) if prefix else ("", line)


def _rank(prefix: str) -> int | None:
    found = re.fullmatch(r"\[rank(\d{1,7})\]:", prefix)
    return int(found.group(1)) if found else None
