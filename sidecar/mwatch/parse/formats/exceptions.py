# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Python exceptions: whole tracebacks, those without their first lines, and last lines alone.

In a chain of exceptions the first error is the cause. torchrun's own traceback ends in a
ChildFailedError without information; its root-cause block has the details. Ranks without a prefix
interleave their tracebacks, and users paste excerpts, so a line such as `ValueError: …` counts
without its traceback, also after a logger's prefix. It is weaker evidence (`exception`), because
programs also print errors that they survive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from mwatch.model.event import Event
from mwatch.parse.formats.failures import reported
from mwatch.parse.lines.context import MAX_TEXT, Block, Context, Recogniser
from mwatch.parse.lines.line import Line
from mwatch_trainer.exits.launchers import LauncherReport, read_reports

_OPEN = "Traceback (most recent call last):"
_IN_ONE_LINE = _OPEN + "\\n"  # with a backslash
_IGNORED = ("Exception ignored in", "--- Logging error ---")
"""Python prints these before a traceback that does not end the process."""
TIDIES_UP = frozenset({"_run_finalizers", "_exit_function", "_at_fork_reinit"})
"""Clean-up functions at process exit or fork; an exception in them does not end the run."""
_FRAME = re.compile(r'\s*File "([^"\n]{1,500})", line (\d+)(?:, in (.{1,200}))?')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|/torch/|/bin/|^<")
"""Files not written by the user; the frame that called them is reported instead."""
_ERROR = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: ?(.*))?")
_INDENTED = re.compile(r"\s{1,40}(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception): \S")
"""The last line of a traceback that is indented as a whole; no statement has this form."""
_TORN = re.compile(r"([\w.]*?[A-Z]\w*?(?:Error|Exception))(?:[\w.]*?[A-Z]\w*?(?:Error|Exception))+")
"""Exception names that several ranks printed into one line."""
_EXCEPTION = re.compile(
    r"(?:.*\.)?_*(?:[A-Z]\w*)?(?:[Ee]rror|[Ee]xception|[Tt]imeout|Interrupt|Exit|Iteration|Fail\w*"
    r"|Expired|Warning)"
    r"|.*\._*[A-Z]\w*[a-z]\w*|[A-Z][a-z0-9]+[A-Z]\w*"
)
"""An exception name: ends in Error or similar, has a module, or is mixed case; not `INFO: …`."""
_BARE = re.compile(
    r"(?<![\w.'\"(/=-])((?:[A-Za-z_]\w{0,80}\.){0,8}(?:_?[A-Z]\w{0,80}Error|[A-Z]?\w{0,80}Exception)"
    r"|(?:[A-Za-z_]\w{0,80}\.){1,8}(?:[A-Z]\w{0,80}Timeout|Broken\w{1,20}Pool|Bad\w{1,10}File"
    r"|TimeoutExpired)"
    r"|(?:[A-Za-z_]\w{0,80}\.){0,6}_?(?:errors?|exceptions?|exc)\.[A-Z]\w{0,80})"
    r"(?:\(([A-Z]\w{0,80})\))?(?:: ?(.*)|$)"
)
_LOGGED = re.compile(r"\b(?:ERROR|CRITICAL|FATAL|EXCEPTION|[Uu]ncaught|[Uu]nhandled)\b|^E\d{4} ")
_HARMLESS = re.compile(r"\bwarn(?:ing)?\b|\b(?:INFO|DEBUG)\b|\bignor|\bretry|\bskipp", re.I)
_PREFIXES = re.compile(
    r"(?:\[[^\]\n]{1,80}\]|\([^)\n]{1,80}\)|<\w{1,20}>|[\w.@/-]{1,80}:|[\d:.,/TZ+-]{2,40}|[|>:-]"
    r"|\s){1,12}+"
)
"""Times, hosts, processes and other marks before a line, but no words. The repeat is possessive:
digits match in many ways, and backtracking through all of them would take minutes."""
_BEFORE = 200  # characters that a logger may print before an exception
_AT_EXIT = re.compile(r"\b(?:at|after) interpreter shutdown$")
"""Raised in threads that wake up while Python shuts down; it did not end the run."""
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_BOX_OPEN = re.compile(
    r"^[\u256d\u250c+][\u2500\u2501-]{2,300} Traceback \(most recent call last\) "
)
"""The first row of a traceback that the library rich draws as a box, as Composer, OLMo and Typer
print it."""
_BOX_CLOSE = re.compile(r"^[\u2570\u2514+][\u2500\u2501-]{9}")
_BOX_SIDES = "\u2502|"
_BOX_FRAME = re.compile(r"(\S.{0,500}?):(\d{1,7}) ?in(?: (\S.{0,200}))?$")
_LONGEST_PATH = 700
_BOX_SOURCE = re.compile(r"[\u2771>]\s{1,4}\d{1,7} [\u2502|]\W{0,80}(.*)")
_INSIDE = re.compile(re.escape(_OPEN) + r" \(RANK (\d{1,7})\)")
"""Header of a failed rank's traceback, which torch prints below its CheckpointException."""
_LAUNCHERS = ("ChildFailedError", "ProcessRaisedException")
_SPAWN = "torch/multiprocessing/spawn.py"
_RELAYS = ("raise subprocess.CalledProcessError(", "raise ChildFailedError(")
"""Statements of launchers at which a traceback may be cut off."""
_CHILD_ENDS = ("CalledProcessError", "ProcessExitedException")
_ENDED = re.compile(r"process \d{1,7} terminated with (?:signal|exit code) ")
"""Message of the bare Exception that torch.multiprocessing raised until torch 1.6."""
_OF_AN_ACTOR = "because of an error raised in its creation task"
"""Message of Ray's exception for the end of an actor; the actor's traceback follows it."""
_DURING = {
    "load": re.compile(
        r"_?load_(?:\w+_)?checkpoint|_load_(?:\w+_)?base_checkpoint|(?:dcp|)_?load_state_dict"
        r"|\w*load_plan|load_sharded\w*|_unpack_nemo_file|_?restore_(?:from|weights|state|model)\w{0,20}"
        r"|(?:_|_?maybe_|_?try_)?(?:load|restore|resume|download|fetch|read|get|find)_\w{0,40}"
        r"(?:checkpoint|ckpt)\w{0,20}"
    ),
    "save": re.compile(
        r"_?save_(?:checkpoint|weights|model|pretrained|optimizer)\w*|maybe_finalize_async_save"
        r"|_?save_(?:\w+_)?ckpt|_?optim_state_dict\w*|_convert_state_with_\w+"
        r"|_(?:unflatten|communicate|gather)_\w*optim_state\w*|save|_?async_save\w*"
        r"|write_preloaded_data\w*|_?(?:write|upload|persist|dump)_\w{0,40}(?:checkpoint|ckpt)\w{0,20}"
        r"|_?save_(?:state|full|sharded|hf|adapter|lora|fsdp|unsharded|final)\w*|dcp_save|_save"
    ),
    "evaluate": re.compile(r"evaluate(?:_and_print_results)?|eval_forward"),
    "data": re.compile(
        r"build_train_valid_test_\w+|train_valid_test_datasets_provider|__getitem__|_(?:next|try_get|get)_data"
        r"|_?collate\w{0,40}|\w{0,40}_collate|batch_generator|_worker_loop"
    ),
    "build": re.compile(r"_jit_compile|jit_load|_write_ninja_file_and_build_library"),
    "meet": re.compile(r"init_process_group|rendezvous|_store_based_barrier|monitored_barrier"),
    "unscale": re.compile(r"unscale_?(?:grads?_?)?"),
    "step": re.compile(r"train_step|forward_step|forward_backward_\w+"),
    "close": re.compile(
        r"_{0,2}(?:close|finish|shut_?down|tear_?down|clean_?up|destroy|atexit|exit_function|del)"
        r"(?:_\w{0,40})?"
    ),
}
"""Trainer functions by phase, most specific first, since a save is part of a training loop."""
_LOADS = re.compile(r"load|restore|resume")
_OF_CHECKPOINTS = re.compile(r"checkpoint|[/\\]resume\.py$", re.I)
"""Files about checkpoints, in which a function that matches `_LOADS` is a checkpoint load."""
_CALLS = re.compile(r"\b(load|save)_checkpoint\(")
"""The calling statement, for tracebacks that lack the frame of the function itself."""
_MAX_LINES = 2000


class _Raised:
    """The name, message and line number of an exception."""

    def __init__(self, name: str, message: str, line: int) -> None:
        torn = _TORN.fullmatch(name)
        self.name = torn[1] if torn else name
        self.message = message.lstrip(": ")[:MAX_TEXT] if torn else message[:MAX_TEXT]
        self.line = line


class _Frame(NamedTuple):
    where: str
    printed: str
    line: int


class _Traceback(Block):
    tolerates = 3

    def __init__(self, line: Line, context: Context) -> None:
        self._line = line
        self._context = context
        self._frame: _Frame | None = None
        self._user_frame: _Frame | None = None
        self._source = ""  # the statement under the last frame
        self._raised: _Raised | None = None
        self._during: set[str] = set()
        self._lines = 0
        self._indent = 1  # indent of its frames; the exception after them has less
        self._in_frames = True
        self._launcher = False
        self._chained = False
        self._failed_ranks: set[int] = set()
        self._prefix = _prefix_before(line.body, _OPEN)
        self.is_whole = True  # its first line was read
        self.is_ignored = False
        self.wrapped: _Raised | None = None
        """The exception as named in the first line, where another process forwards it."""

    def feed(self, line: Line) -> bool:
        self._lines += 1
        if self._lines > _MAX_LINES:
            self.done = True
            return False
        body = line.body
        if self._prefix is not None and (before := self._prefix.match(body)):
            body = body[before.end() :]
        text = body.lstrip()
        if text.startswith(_CHAIN):
            self._chained = True
            return True
        if inside := _INSIDE.match(body):
            if not self._failed_ranks:
                self._raised = None  # the rank's own exception is more specific
            self._failed_ranks.add(int(inside[1]))
            self._in_frames, self.patience = True, Block.patience
            return True
        if text.startswith(_OPEN):
            belongs, self._chained = self._chained, False
            self._in_frames, self.patience = True, Block.patience
            self.done = not belongs
            return belongs
        if self._in_frames:
            return self._feed_frame(line, body)
        return False

    def _feed_frame(self, line: Line, body: str) -> bool:
        indent = len(body) - len(body.lstrip())
        if frame := _FRAME.match(body):
            self._indent = indent if frame[0][:1].isspace() else self._indent
        if indent >= self._indent and (frame or not _INDENTED.match(body)):
            self._read_frame(line, body)
            return True
        found = _ERROR.fullmatch(body.strip())
        if not found or not _EXCEPTION.fullmatch(found[1]):
            return False
        if _OF_AN_ACTOR in (found[2] or ""):
            self.wrapped = _Raised(found[1], found[2], line.number)
            return True
        self._in_frames = False
        self.patience = 10  # only a chained exception may still follow
        self._launcher = self._launcher or found[1].endswith(_LAUNCHERS) or self._is_spawn(found)
        if self._raised is None:
            self._raised = _Raised(found[1], found[2] or "", line.number)
        return True

    def _is_spawn(self, found: re.Match[str]) -> bool:
        """Whether torch.multiprocessing raised it, until torch 1.6, above the child's traceback."""
        is_bare = found[1] == "Exception" and not found[2]
        return is_bare and self._frame is not None and _SPAWN in self._frame.where

    def _read_frame(self, line: Line, body: str) -> None:
        if frame := _FRAME.match(body):
            self._enter(line, frame[1], frame[2], frame[3], body.strip())
        else:
            self._read_source(body)

    def _read_source(self, text: str) -> None:
        if called := _CALLS.search(text):
            self._during.add(called[1])
        if self._raised is None:
            self._source = self._source or text.strip()[:MAX_TEXT]

    def _enter(self, line: Line, file: str, number: str, name: str | None, printed: str) -> None:
        """Record a frame; `name`: the function."""
        name = name.strip() if name else None
        if name:
            self.is_ignored = self.is_ignored or name in TIDIES_UP
            self._during |= {key for key, known in _DURING.items() if known.fullmatch(name)}
            if _LOADS.search(name) and _OF_CHECKPOINTS.search(file):
                self._during.add("load")
        if self._raised is not None:
            return
        where = f"{file}:{number}" + (f" in {name}" if name else "")
        self._frame, self._source = _Frame(where, printed[:MAX_TEXT], line.number), ""
        if not _LIBRARY.search(file):
            self._user_frame = self._frame

    def finish(self) -> Iterable[Event]:
        raised = self._raised or self.wrapped
        frame = self._user_frame or self._frame
        if self._launcher or self.is_ignored or not (raised or (frame and self.is_whole)):
            return
        if _AT_EXIT.search(raised.message) if raised else self._source.startswith(_RELAYS):
            return
        if raised and (report := _end_of_child(raised)):
            yield from reported(report, self._line, self._context)
            return
        ranks: set[int | None] = {*self._failed_ranks} or {self._line.rank}
        message = raised.message if raised else ""
        if not message and self._source.startswith("assert "):
            message = self._source
        yield self._context.error(
            self._line,
            kind="traceback" if self.is_whole else "exception",
            rank=next(iter(ranks)) if len(ranks) == 1 else None,
            error=raised.name if raised else None,
            message=message,
            where=frame.where if frame else None,
            frame=frame.printed if frame else None,
            where_line=frame.line if frame else None,
            error_line=raised.line if raised else None,
            during=next((each for each in _DURING if each in self._during), None),
        )


class _BoxedTraceback(_Traceback):
    """A traceback drawn by rich; its rows are read as the lines that Python would print."""

    def __init__(self, line: Line, context: Context) -> None:
        super().__init__(line, context)
        self._in_box = True
        self._held = ""  # a path, or a path and a line, that continues in the next row

    def feed(self, line: Line) -> bool:
        body = line.body.strip()
        if _BOX_OPEN.match(body):
            belongs, self._in_box = self._chained, True
            self._chained, self.done = False, not belongs
            self._in_frames, self.patience = True, Block.patience
            return belongs
        if not self._in_box:
            return super().feed(line)
        if _BOX_CLOSE.match(body):
            self._in_box = False
            return True
        if not body.startswith(tuple(_BOX_SIDES)):
            return False
        self._read_row(line, body.strip(_BOX_SIDES).strip())
        return True

    def _read_row(self, line: Line, text: str) -> None:
        held, self._held = self._held, ""
        found = _BOX_FRAME.match(held + text)
        if found and found[3]:
            self._enter(line, found[1], found[2], found[3], text)
        elif source := _BOX_SOURCE.match(text):
            self._read_source(source[1])
        elif found:
            self._held = f"{found[0]} "
        elif text.startswith("/") or (text and held):
            self._held = (held + text)[:_LONGEST_PATH]


def _prefix_before(text: str, opening: str) -> re.Pattern[str] | None:
    """Return a pattern for the prefix of a traceback's first line; its numbers, such as a time, may
    vary."""
    before = text[: max(0, text.find(opening))]
    if not before.strip() or len(before) > _BEFORE:
        return None
    return re.compile(re.sub(r"\d+", r"\\d+", re.escape(before)))


def _end_of_child(raised: _Raised) -> LauncherReport | None:
    is_end = raised.name.endswith(_CHILD_ENDS) or _ENDED.match(raised.message)
    return next(read_reports(raised.message), None) if is_end else None


def _read_escaped(line: Line, context: Context) -> Iterable[Event]:
    """Read a whole traceback in one string, as loggers that write JSON print it."""
    before, _, escaped = line.text.partition(_IN_ONE_LINE)
    if _HARMLESS.search(before):
        return
    for piece in reversed(escaped.split("\\n")):
        found = _BARE.match(piece)
        if found and not found[1].endswith(_LAUNCHERS):
            message = (found[3] or "").partition('"')[0][:MAX_TEXT]
            yield context.error(line, kind="exception", error=found[1], message=message)
            return


def _read_traceback(line: Line, context: Context) -> Iterable[Event]:
    text = line.text.rstrip()
    if _IN_ONE_LINE in text:
        yield from _read_escaped(line, context)
        return
    if text.endswith(_OPEN) or _INSIDE.match(line.body):  # not one that is quoted inside a line
        opened = _Traceback(line, context)
        opened.is_ignored = 0 < line.number - context.ignored_line <= 2
        context.opened = opened


def _read_box(line: Line, context: Context) -> Iterable[Event]:
    if _BOX_OPEN.match(line.body.strip()):
        context.opened = _BoxedTraceback(line, context)
    return ()


def _read_ignored(line: Line, context: Context) -> Iterable[Event]:
    if line.body.startswith(_IGNORED):
        context.ignored_line = line.number
    return ()


def _read_frame(line: Line, context: Context) -> Iterable[Event]:
    """Read a traceback whose first lines are missing."""
    if line.body[:1].isspace() and _FRAME.fullmatch(line.body.rstrip()):
        opened = _Traceback(line, context)
        opened.is_whole = False
        opened.feed(line)
        context.opened = opened
    return ()


def _read_exception(line: Line, context: Context) -> Iterable[Event]:
    """Read the last line of a traceback alone.

    Ray names an exception of another process in parentheses, and its traceback follows.
    """
    body = line.body.rstrip()
    found = _BARE.search(body, 0, _BEFORE + MAX_TEXT)
    if not found or found.start() > _BEFORE:
        return
    before = body[: found.start()]
    is_marked = not before or _PREFIXES.fullmatch(before) or _LOGGED.search(before)
    if not is_marked or _HARMLESS.search(before):
        return
    if found[1].endswith(_LAUNCHERS):
        return
    raised = _Raised(found[2] or found[1], found[3] or "", line.number)
    is_heading = before and raised.name == "Exception" and not raised.message
    if is_heading or _AT_EXIT.search(raised.message):
        return  # a logger announces a traceback, or Python is shutting down
    if report := _end_of_child(raised):
        yield from reported(report, line, context)
        return
    if found[2] or _OF_AN_ACTOR in raised.message:
        opened = _Traceback(line, context)
        opened.is_whole, opened.wrapped = False, raised
        context.opened = opened
        return
    yield context.error(
        line, kind="exception", error=raised.name, message=raised.message, error_line=raised.line
    )


TRACEBACK = Recogniser((re.escape(_OPEN),), _read_traceback)
BOX = Recogniser((r"Traceback \(most recent call last\) ",), _read_box)
IGNORED = Recogniser(tuple(map(re.escape, _IGNORED)), _read_ignored)
_FRAMES = (r'File "[^"\n]{1,500}", line \d',)
FRAME = Recogniser(_FRAMES, _read_frame, inert=frozenset(_FRAMES))
_ENDS = (
    r"(?:errors?|exceptions?|exc)\.[A-Z][A-Za-z]{1,60}: ",
    r"Error: ",
    r"[a-z]Timeout: ",
    r"(?:Broken[A-Z]\w{1,20}Pool|Bad[A-Z]\w{1,10}File|TimeoutExpired): ",
    r"Error\): ",
    r"Exception: ",
    r"Error:?$",
    r"Exception:?$",
)
EXCEPTION = Recogniser(_ENDS, _read_exception, inert=frozenset(_ENDS))
