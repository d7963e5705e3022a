# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Python tracebacks: one event each, with the error that came first.

In a chain ("During handling of the above exception, …") the first error is the cause and the
rest are its consequences. torchrun's own traceback ends in a ChildFailedError, which says
nothing itself; its block is read in `elastic`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.event import Event
from mwatch.parse.lines.context import MAX_TEXT, Block, Context, Recogniser
from mwatch.parse.lines.line import Line

_OPEN = "Traceback (most recent call last):"
_FRAME = re.compile(r'\s*File "([^"\n]{1,500})", line (\d+)(?:, in (.{1,200}))?')
_ERROR = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: ?(.*))?")
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_LAUNCHER = "ChildFailedError"
_DURING = {
    "load": re.compile(r"_?load_(?:\w+_)?checkpoint|_load_(?:\w+_)?base_checkpoint"),
    "save": re.compile(r"_?save_checkpoint\w*|maybe_finalize_async_save|_?save_(?:\w+_)?ckpt"),
    "evaluate": re.compile(r"evaluate(?:_and_print_results)?|eval_forward"),
    "data": re.compile(r"build_train_valid_test_\w+|train_valid_test_datasets_provider"),
    "step": re.compile(r"train_step|forward_step|forward_backward_\w+"),
}
"""Functions of the trainers, the most telling first: a save is part of a training loop."""
_MAX_LINES = 2000


class _Traceback(Block):
    tolerates = 3

    def __init__(self, line: Line, context: Context) -> None:
        self._line = line
        self._context = context
        self._where: str | None = None
        self._error: tuple[str, str] | None = None
        self._during: set[str] = set()
        self._lines = 0
        self._in_frames = True
        self._launcher = False
        self._chained = False

    def feed(self, line: Line) -> bool:
        self._lines += 1
        if self._lines > _MAX_LINES:
            self.done = True
            return False
        body = line.body
        if body.startswith(_CHAIN):
            self._chained = True
            return True
        if body.startswith(_OPEN):
            belongs, self._chained = self._chained, False
            self._in_frames, self.patience = True, Block.patience
            self.done = not belongs
            return belongs
        if self._in_frames:
            return self._feed_frame(body)
        return False

    def _feed_frame(self, body: str) -> bool:
        if body[0] in " \t":
            frame = _FRAME.match(body)
            if frame and frame[3]:
                self._note(frame[3].strip())
            if frame and self._error is None:
                self._where = f"{frame[1]}:{frame[2]}" + (f" in {frame[3]}" if frame[3] else "")
            return True
        found = _ERROR.fullmatch(body.rstrip())
        if not found:
            return False
        self._in_frames = False
        self.patience = 10  # only a chained exception may still follow
        self._launcher = self._launcher or found[1].endswith(_LAUNCHER)
        if self._error is None:
            self._error = (found[1], (found[2] or "")[:MAX_TEXT])
        return True

    def _note(self, function: str) -> None:
        self._during.update(name for name, known in _DURING.items() if known.fullmatch(function))

    def finish(self) -> Iterable[Event]:
        if self._launcher or not (self._error or self._where):
            return
        name, message = self._error or (None, "")
        yield self._context.error(
            self._line,
            kind="traceback",
            error=name,
            message=message,
            where=self._where,
            during=next((each for each in _DURING if each in self._during), None),
        )


def _read(line: Line, context: Context) -> Iterable[Event]:
    if line.text.rstrip().endswith(_OPEN):  # not one that is quoted inside a line
        context.opened = _Traceback(line, context)
    return ()


RECOGNISER = Recogniser((re.escape(_OPEN),), _read)
