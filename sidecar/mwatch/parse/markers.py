# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of rank 0 that bound the phases of a run, and the lines in which it says good-bye."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from mwatch.model.event import Edge, Event, Exit, Phase
from mwatch.parse.context import MAX_TEXT, Context, Recogniser
from mwatch.parse.line import Line, stamp

_BARRIER = re.compile(
    r"\[([^\[\]\n]{3,120})\] datetime: (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)"
)
_EXIT = re.compile(
    r"exiting (?:the )?program (?:after receiving (?P<signal>\w+)"
    r"|after (?P<minutes>[\d.e+]+) minutes|at iteration (?P<iteration>\d{1,18}))"
)


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
_EXITS = {
    ">>> training terminated. Returning": "terminated",
    "Exiting during evaluation, timelimit reached": "evaluation-time-limit",
}


def _read_barrier(line: Line, context: Context) -> Iterable[Event]:
    for found in _BARRIER.finditer(line.text):
        when = found[2].replace(" ", "T")
        if bye := _EXIT.search(found[1]):
            yield _exit(bye, found[1], when, line, context)
            continue
        known = next((mark for mark in _BARRIERS if found[1].startswith(mark.text)), None)
        mark = known or Mark(found[1], "starting", "mark")
        if mark.starts_process:
            context.coverage.process_started()
        yield Phase(
            mark.name, mark.edge, found[1][:MAX_TEXT], when, line.rank, context.file, line.number
        )


def _exit(bye: re.Match[str], text: str, when: str | None, line: Line, context: Context) -> Exit:
    reason = "signal" if bye["signal"] else "duration" if bye["minutes"] else "interval"
    iteration = int(bye["iteration"]) if bye["iteration"] else None
    return Exit(reason, iteration, text[:MAX_TEXT], when, line.rank, context.file, line.number)


def _read_line(line: Line, context: Context) -> Iterable[Event]:
    body = line.body.strip()
    for mark in _LINES:
        if body.startswith(mark.text):
            if mark.starts_process:
                context.coverage.process_started()
            yield Phase(
                mark.name,
                mark.edge,
                body[:MAX_TEXT],
                stamp(line.text),
                line.rank,
                context.file,
                line.number,
            )
            return


def _read_exit(line: Line, context: Context) -> Iterable[Event]:
    if _BARRIER.search(line.text):
        return  # read as a barrier
    bye = _EXIT.search(line.text)
    if bye:
        yield _exit(bye, line.body.strip(), stamp(line.text), line, context)
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
