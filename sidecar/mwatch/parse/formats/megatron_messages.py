# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of rank 0 that mark the phases of a run, its exit and its checkpoints.

"Successfully saved" is printed after the tracker file was written. With asynchronous saving it
comes many iterations later; a queued iteration is remembered until then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import itemgetter
from typing import Literal, NamedTuple

from mwatch.model.event import Checkpoint, Edge, Event, Exit, Phase
from mwatch.parse.lines.context import MAX_TEXT, Context, Recogniser
from mwatch.parse.lines.line import Line, stamp

_BARRIER = re.compile(
    r"\[([^\[\]\n]{3,120})\] datetime: (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)"
)
_EXIT = re.compile(
    r"exiting (?:the )?program (?:after receiving (?P<signal>\w+)"
    r"|after (?P<minutes>[\d.e+]+) minutes|at iteration (?P<iteration>\d{1,18}))"
)
_EXITS = {
    ">>> training terminated. Returning": "terminated",
    "Exiting during evaluation, timelimit reached": "evaluation-time-limit",
}
_MAX_SCHEDULED = 64
_IN_PATH = r"(?P<path>\S+(?: \S+)*?)"
_END = r"(?=\s*$|  )"  # two blanks: the next line was glued on
_N = r"(?P<n>\d{1,18})"
_LAYOUT = r"(?: \[ [^\]\n]{1,200} \])?"
_RANDOM = "will not load any checkpoints and will start from random"
_PROGRESS = re.compile(
    r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)\tJob ID: [^\t\n]*\t# GPUs: \d+\t"
    r"(Starting job|Saved checkpoint|Saving async checkpoint|Saved async checkpoint"
    r"|Saved async local checkpoint|Deleted checkpoint)(?:\tIteration: (\d{1,18}))?"
)
_PROGRESS_FORMS: dict[str, tuple[Literal["save", "delete"], Edge, bool | None]] = {
    "Saved checkpoint": ("save", "end", False),
    "Saving async checkpoint": ("save", "mark", True),
    "Saved async checkpoint": ("save", "end", True),
    "Saved async local checkpoint": ("save", "end", True),
    "Deleted checkpoint": ("delete", "end", None),
}


class Mark(NamedTuple):
    text: str
    name: str
    edge: Edge
    starts_process: bool = False


# Texts of `[…] datetime:` barriers, by their beginning.
_BARRIERS = (
    Mark("after megatron is initialized", "starting", "mark", True),
    Mark("after model, optimizer", "starting", "mark", True),
    Mark("after dataloaders are built", "starting", "mark", True),
    Mark("before the start of training step", "first-step", "begin", True),
    Mark("after training is done", "training", "end"),
)
_LINES = (
    Mark("using world size: ", "starting", "begin", True),
    Mark("> initializing torch distributed", "starting", "mark", True),
    Mark("done with setup", "starting", "end", True),
    Mark("training ...", "starting", "mark", True),
    Mark("setting training iterations to", "starting", "mark", True),
    Mark("time to initialize megatron (seconds)", "starting", "mark", True),
    Mark("Evaluating on ", "evaluating", "begin"),
    Mark("Unfinalized async checkpoint saves.", "async-finalize", "begin"),
)


def _read_barrier(line: Line, context: Context) -> Iterable[Event]:
    for found in _BARRIER.finditer(line.text):
        when = found[2].replace(" ", "T")
        if exit_text := _EXIT.search(found[1]):
            yield _exit(exit_text, found[1], when, line, context)
            continue
        known = next((mark for mark in _BARRIERS if found[1].startswith(mark.text)), None)
        mark = known or Mark(found[1], "starting", "mark")
        if mark.starts_process:
            context.coverage.process_started()
        text = found[1][:MAX_TEXT]
        yield Phase(mark.name, mark.edge, text, when, line.rank, context.file, line.number)


def _exit(
    exit_text: re.Match[str], text: str, when: str | None, line: Line, context: Context
) -> Exit:
    reason = "signal" if exit_text["signal"] else "duration" if exit_text["minutes"] else "interval"
    iteration = int(exit_text["iteration"]) if exit_text["iteration"] else None
    return Exit(reason, iteration, text[:MAX_TEXT], when, line.rank, context.file, line.number)


def _read_line(line: Line, context: Context) -> Iterable[Event]:
    body = line.body.strip()
    for mark in _LINES:
        if body.startswith(mark.text):
            if mark.starts_process:
                context.coverage.process_started()
            text, when = body[:MAX_TEXT], stamp(line.text)
            yield Phase(mark.name, mark.edge, text, when, line.rank, context.file, line.number)
            return


def _read_exit(line: Line, context: Context) -> Iterable[Event]:
    if _BARRIER.search(line.text):
        return  # read as a barrier
    exit_text = _EXIT.search(line.text)
    if exit_text:
        yield _exit(exit_text, line.body.strip(), stamp(line.text), line, context)
        return
    for text, reason in _EXITS.items():
        if text in line.text:
            yield Exit(reason, None, text, stamp(line.text), line.rank, context.file, line.number)


def _read_bridge(line: Line, context: Context) -> Iterable[Event]:
    context.hint = "bridge"
    return ()


BARRIERS = Recogniser((r"\] datetime: ",), _read_barrier)
LINES = Recogniser(tuple(re.escape(mark.text) for mark in _LINES), _read_line)
EXITS = Recogniser(
    ("exiting program ", "exiting the program ", *map(re.escape, _EXITS)), _read_exit
)
BRIDGE = Recogniser((r"s GPU utilization: ",), _read_bridge)


class Form(NamedTuple):
    trigger: str
    pattern: re.Pattern[str]
    op: Literal["save", "load", "delete"]
    edge: Edge
    is_async: bool | None = None


def _form(
    trigger: str,
    pattern: str,
    op: Literal["save", "load", "delete"],
    edge: Edge,
    is_async: bool | None = None,
) -> Form:
    return Form(trigger, re.compile(pattern), op, edge, is_async)


FORMS = (
    _form(
        "saving checkpoint at iteration",
        rf"saving checkpoint at iteration +{_N} to {_IN_PATH}(?: in \S+ format)?{_END}",
        "save", "begin",
    ),
    _form(
        "scheduled an async checkpoint save at iteration",
        rf"scheduled an async checkpoint save at iteration +{_N} to {_IN_PATH}{_END}",
        "save", "mark", True,
    ),
    _form(
        "successfully saved ",
        rf"successfully saved (?:local )?checkpoint (?:from|at) iteration +{_N}"
        rf"(?: to {_IN_PATH}{_LAYOUT})?{_END}",
        "save", "end",
    ),
    _form(
        "successfully loaded ",
        rf"successfully loaded checkpoint from {_IN_PATH}{_LAYOUT} at iteration +{_N}",
        "load", "end",
    ),
    _form("successfully loaded ", r"successfully loaded (?P<path>/\S+)\s*$", "load", "end"),
    _form(
        "checkpoint from ",
        rf"loading (?:release )?(?:distributed )?checkpoint from {_IN_PATH}"
        rf"(?: at iteration +{_N})?{_END}",
        "load", "begin",
    ),
    _form(
        "successfully deleted checkpoint",
        rf"successfully deleted checkpoint from iteration +{_N}(?: at {_IN_PATH})?{_END}",
        "delete", "end",
    ),
    _form(
        "when trying to delete checkpoint",
        rf"when trying to delete checkpoint(?: from iteration +{_N})?", "delete", "failed",
    ),
    _form(
        "could not find the metadata file",
        rf"could not find the metadata file {_IN_PATH}{_END}", "load", "failed",
    ),
    _form("could not load the checkpoint", r"could not load the checkpoint", "load", "failed"),
)  # fmt: skip


def _read(line: Line, context: Context) -> Iterable[Event]:
    if _RANDOM in line.text:
        context.coverage.resumes_from(0)
    found = [
        (match.start(), form, match)
        for form in FORMS
        if form.trigger in line.text
        for match in form.pattern.finditer(line.text)
    ]
    for _, form, match in sorted(found, key=itemgetter(0)):
        yield _event(form, match, line, context)


def _event(form: Form, found: re.Match[str], line: Line, context: Context) -> Checkpoint:
    groups = found.groupdict()
    iteration = int(groups["n"]) if groups.get("n") else None
    is_async = form.is_async
    if form.op == "save" and iteration is not None:
        is_async = _track(form.edge, iteration, context)
    if form.op == "load" and form.edge == "end" and iteration is not None:
        context.coverage.resumes_from(iteration)
    path = groups.get("path")
    path = None if path in {None, "None"} else path[:MAX_TEXT]
    text = line.body.strip()[:MAX_TEXT]
    return Checkpoint(
        form.op, form.edge, iteration, path, is_async, text, stamp(line.text), line.rank,
        context.file, line.number,
    )  # fmt: skip


def _track(edge: Edge, iteration: int, context: Context) -> bool | None:
    """Whether the save of `iteration` is asynchronous, as far as known now."""
    if edge == "mark":
        if len(context.scheduled) >= _MAX_SCHEDULED:
            context.scheduled.pop()
        context.scheduled.add(iteration)
        return True
    if edge == "end":
        queued = iteration in context.scheduled
        context.scheduled.discard(iteration)
        return queued
    return context.async_save


def _read_progress(line: Line, context: Context) -> Iterable[Event]:
    found = _PROGRESS.search(line.text)
    if not found:
        return
    when = f"{found[1]}T{found[2]}"
    if found[3] == "Starting job":
        yield Phase("starting", "begin", found[3], when, line.rank, context.file, line.number)
        return
    op, edge, is_async = _PROGRESS_FORMS[found[3]]
    iteration = int(found[4]) if found[4] else None
    yield Checkpoint(
        op, edge, iteration, None, is_async, found[3], when, line.rank, context.file, line.number
    )


CHECKPOINTS = Recogniser(
    (*(re.escape(form.trigger) for form in FORMS), re.escape(_RANDOM)),
    _read,
    inert=frozenset(re.escape(f.trigger) for f in FORMS if (f.op, f.edge) != ("load", "end")),
)
PROGRESS = Recogniser((r"# GPUs: ",), _read_progress)
