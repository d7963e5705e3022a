# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read the stacks of one process as text: by the probe, by Python's faulthandler, or by py-spy.

Only the main thread matters, because it trains. The probe and py-spy name it. faulthandler does
not; there it is the thread that was not started by `threading.Thread`. What the thread does is
taken from the innermost function with a known meaning (a collective, the data loader, a wait for
the GPU), and its location from the innermost line outside Python's own and torch's files. C
functions are not on a Python stack; the source line of the call, if it is known, names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mwatch.model.observation import RankStack, StackKind
from mwatch_trainer.probe import stack as probe_stack

MAX_FRAMES = 32
MAX_TEXT = 120
_MAX_LINES = 20_000
_SIGNALLED = "# by the dump signal"
_THREAD = re.compile(
    r"(?P<how>main thread|Current thread|[Tt]hread) (?:0x)?[0-9a-f]+\b(?P<rest>.*)", re.ASCII
)
_FRAME = re.compile(r'  File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9}) in (?P<name>\S+)')
_PY_SPY = re.compile(
    r"    (?P<name>[^\s(][^(\n]{0,200}) \((?P<file>[^()\n]{1,1000}):(?P<line>\d+)\)"
)
_MEANINGS = {
    probe_stack.COLLECTIVE: StackKind.COLLECTIVE,
    probe_stack.DATA: StackKind.DATA,
    probe_stack.SAVING: StackKind.SAVING,
    probe_stack.FINALIZING: StackKind.SAVING,
    probe_stack.LOADING: StackKind.LOADING,
}
_GPU_FILES = ("torch/cuda/__init__.py", "torch/cuda/streams.py")
_GPU_WAIT = frozenset({"synchronize", "wait"})
_READS_GPU = re.compile(r"\.(?:item|cpu|tolist|numpy|synchronize|nonzero)\(")
_WRAPPERS = frozenset({"wrapper", "decorate_context", "_fn", "inner"})


class Frame(NamedTuple):
    file: str
    line: int  # 0: unknown
    function: str

    @property
    def short(self) -> str:
        """The frame as in `train_step (training/training.py:3532)`."""
        tail = "/".join(self.file.split("/")[-2:])
        return f"{self.function} ({tail}{f':{self.line}' if self.line else ''})"[:MAX_TEXT]

    @property
    def place(self) -> str:
        """The frame as in `training.py:3532 in train_step`."""
        line = f":{self.line}" if self.line else ""
        return f"{self.file.rpartition('/')[2]}{line} in {self.function}"[:MAX_TEXT]

    @property
    def path(self) -> str:
        """The file with a leading slash; py-spy omits the folder of the installed packages."""
        return self.file if self.file.startswith("/") else f"/{self.file}"

    @property
    def meaning(self) -> StackKind | None:
        if self.function in _GPU_WAIT and self.path.endswith(_GPU_FILES):
            return StackKind.GPU
        return _MEANINGS.get(probe_stack.meaning_of(self.path, self.function))

    @property
    def is_library(self) -> bool:
        return probe_stack.is_dull(self.path, "")


class _Thread(NamedTuple):
    is_main: bool
    frames: list[Frame]

    @property
    def is_started(self) -> bool:
        """Whether the threading module started it, so that it is not the main thread."""
        outermost = self.frames[-1] if self.frames else None
        return outermost is None or outermost.function in ("_bootstrap", "_bootstrap_inner")


def main_thread(text: str) -> list[Frame]:
    """Return the frames of the main thread, innermost first; empty if the text has none."""
    found: list[Frame] = []
    for thread in _threads(text):
        if thread.is_main and thread.frames:
            return thread.frames
        if not thread.is_started:  # faulthandler lists the newest thread first
            found = thread.frames
    return found


def _threads(text: str) -> Iterator[_Thread]:
    current: _Thread | None = None
    for line in text.split("\n", _MAX_LINES)[:_MAX_LINES]:
        found = _FRAME.match(line) or _PY_SPY.fullmatch(line.rstrip())
        if found is not None and current is not None:
            if len(current.frames) < probe_stack.MAX_DEPTH:
                current.frames.append(Frame(found["file"], int(found["line"]), found["name"]))
        elif (head := _THREAD.match(line)) is not None:
            if current is not None:
                yield current
            is_main = head["how"] == "main thread" or '"MainThread"' in head["rest"]
            current = _Thread(is_main or "[MainThread]" in head["rest"], [])
    if current is not None:
        yield current


def rank_stack(rank: int, text: str, sources: Mapping[str, str] | None = None) -> RankStack | None:
    """Describe a dump; None if it has no frame. `sources`: source text by `FILE:LINE`, if known."""
    frames = main_thread(text)
    if not frames:
        return None
    at = _place(frames)
    source = (sources or {}).get(f"{frames[at].file}:{frames[at].line}", "")
    kind, what = _doing(frames, at, _call(source))
    return RankStack(
        rank,
        kind,
        what[:MAX_TEXT],
        frames[at].place,
        tuple(each.short for each in frames[:MAX_FRAMES]),
        holds_gil=text.startswith(_SIGNALLED),
    )


def _place(frames: Sequence[Frame]) -> int:
    """Return the index of the innermost frame outside libraries, else of the innermost frame."""
    own = [at for at, each in enumerate(frames) if not each.is_library]
    telling = [at for at in own if not probe_stack.is_dull(frames[at].path, frames[at].function)]
    return (telling or own or [0])[0]


def _doing(frames: Sequence[Frame], at: int, call: str) -> tuple[StackKind, str]:
    for index, frame in enumerate(frames):
        kind = frame.meaning
        if kind is None:
            continue
        if kind is StackKind.DATA:
            inner = call if index > at else ""
            return kind, inner or "DataLoader.__next__"
        if kind in (StackKind.SAVING, StackKind.LOADING) or index >= at:
            return kind, call or frame.function
        return kind, _library_call(frames[: at + 1], kind) or frame.function
    if _READS_GPU.search(call):
        return StackKind.GPU, call
    return StackKind.CODE, call or (frames[0].function if at else "")


def _library_call(inner: Sequence[Frame], kind: StackKind) -> str:
    """Return the function that the program called, below the wrappers of a library."""
    names = [each.function for each in inner if each.meaning is kind and each.is_library]
    return next((name for name in reversed(names) if name not in _WRAPPERS), "")


def _call(source: str) -> str:
    """Return the source line as one short text."""
    return " ".join(source.split())[:MAX_TEXT].removesuffix(":")
