# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of the Megatron family: upstream since v1.0, its forks, gpt-neox, nanotron.

The head of the iteration line is searched anywhere in a line; several heads (two ranks without a
newline between them) give several events. A last segment without its `|` was cut off and is
dropped.

The module also reads the lines of rank 0 that mark the phases of a run, its exit and its
checkpoints. "Successfully saved" is printed after the tracker file was written. With asynchronous
saving it comes many iterations later, so a queued iteration is remembered until then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import itemgetter
from typing import Literal, NamedTuple

from mwatch.model.event import Checkpoint, Edge, Event, Exit, Flavour, Iteration, Phase
from mwatch.parse.lines.context import MAX_TEXT, Block, Context, Cover, Coverage, Recogniser
from mwatch.parse.lines.fields import KNOWN, Fields, read_segments, split_segment, squeeze
from mwatch.parse.lines.line import Line, stamp

TRIGGERS = (r"iteration[ :=]+\d+ ?(?:/ *\d|\| [ce])",)
HEAD = re.compile(
    r"(?<![\w-])iteration[ :=]+(\d{1,18})(?: ?/ *(\d{1,18})\s*\|| *\|(?= (?:consumed|elapsed) ))"
)
_NEMO = re.compile(r"epoch \d+, $")
_BEFORE_HEAD = re.compile(r"(samples/sec): ([\d.]+) \|\s*$")  # gpt-neox
_OWN_STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d{1,9})?)\]\s*$")
_DEEPSPEED_KEYS = frozenset(
    {"consumedtokens", "actualseqlen", "samplespersecond", "curriculumseqlen", "samples/sec"}
)
_MAX_JOINS = 4


class Reading(NamedTuple):
    """One head and its fields; `cut` if the line ended before its last `|`."""

    iteration: int
    total: int | None
    timestamp: str | None
    keeps_first: bool
    fields: Fields
    cut: bool
    plain_style: bool


def read_heads(text: str) -> list[Reading]:
    heads = [head for head in HEAD.finditer(text) if not _NEMO.search(text, 0, head.start())]
    readings = []
    for index, head in enumerate(heads):
        last = index + 1 == len(heads)
        end = len(text) if last else heads[index + 1].start()
        readings.append(_read_fields(text, head, end))
    return readings


def _read_fields(text: str, head: re.Match[str], end: int) -> Reading:
    segments = text[head.end() : end].split("|")
    tail = segments.pop()
    plain_style = text[head.start() + 9] == ":"  # nanotron ends without a bar
    if plain_style and split_segment(tail):
        segments.append(tail)
    fields = read_segments(segments)
    if before := _BEFORE_HEAD.search(text, 0, head.start()):
        fields.add(before[1], before[2])
    own = _OWN_STAMP.search(text, max(0, head.start() - 40), head.start())
    timestamp = f"{own[1]}T{own[2]}" if own else stamp(text[: head.start()])
    cut = not plain_style and "nan" not in fields.known and bool(tail.strip())
    keeps_first = own is not None and "." in own[2]
    total = int(head[2]) if head[2] else None
    return Reading(int(head[1]), total, timestamp, keeps_first, fields, cut, plain_style)


def continues(text: str, following: str) -> bool:
    """Whether `following` is the continuation of a wrapped iteration line."""
    segment, bar, _ = following.partition("|")
    if not bar or HEAD.search(following) or following.lstrip().startswith(("[", "{")):
        return False
    parts = split_segment(f"{text.rpartition('|')[2]} {segment}")
    return parts is not None and squeeze(parts[0]) in KNOWN


def cover_of(reading: Reading, coverage: Coverage) -> Cover:
    fields = reading.fields
    skipped_samples = fields.extra.get("skipped samples")
    return coverage.step(
        reading.iteration,
        fields.known.get("elapsed_ms"),
        keeps_first=reading.keeps_first,
        skipped_samples=skipped_samples if isinstance(skipped_samples, int) else 0,
        batch_size=fields.count("global_batch_size"),
    )


def to_event(
    reading: Reading, line: Line, file: str, flavour: Flavour | None, cover: Cover
) -> Iteration:
    fields = reading.fields
    known = fields.known
    return Iteration(
        iteration=reading.iteration,
        total_iterations=reading.total,
        timestamp=reading.timestamp,
        consumed_samples=fields.count("consumed_samples"),
        elapsed_ms=known.get("elapsed_ms"),
        learning_rate=known.get("learning_rate"),
        global_batch_size=fields.count("global_batch_size"),
        losses=fields.losses,
        loss_scale=known.get("loss_scale"),
        grad_norm=known.get("grad_norm"),
        num_zeros=known.get("num_zeros"),
        params_norm=known.get("params_norm"),
        throughput_tflops=known.get("throughput_tflops"),
        skipped=fields.count("skipped"),
        nan=fields.count("nan"),
        covers=cover.covers,
        first_of_process=cover.first_of_process,
        extra=fields.extra,
        rank=line.rank,
        file=file,
        line=line.number,
        flavour=flavour or guess_flavour(reading),
    )


def guess_flavour(reading: Reading) -> Flavour:
    squeezed = {squeeze(key) for key in reading.fields.extra}
    if squeezed & _DEEPSPEED_KEYS and not reading.plain_style:
        return "deepspeed"
    return "bridge" if "maxattentionlogit" in squeezed else "megatron"


class _Wrapped(Block):
    """An iteration line that ended early; the rest may be on the next lines."""

    any_lane = True
    patience = 1

    def __init__(self, line: Line, context: Context) -> None:
        self._line = line
        self._context = context
        self._joined = 0

    def feed(self, line: Line) -> bool:
        if self._joined == _MAX_JOINS or not continues(self._line.text, line.body):
            return False
        self._joined += 1
        self._line = self._line._replace(text=f"{self._line.text} {line.body}")
        self.done = line.body.rstrip().endswith("|")
        return True

    def finish(self) -> Iterable[Event]:
        return _events(read_heads(self._line.text), self._line, self._context)


def _events(readings: list[Reading], line: Line, context: Context) -> Iterable[Event]:
    context.prints_iterations = True
    return [
        to_event(reading, line, context.file, context.flavour, cover_of(reading, context.coverage))
        for reading in readings
    ]


def _read_step(line: Line, context: Context) -> Iterable[Event]:
    readings = read_heads(line.text)
    if readings and readings[-1].cut:
        context.opened = _Wrapped(line, context)
        return ()
    return _events(readings, line, context)


RECOGNISER = Recogniser(TRIGGERS, _read_step, frozenset({"megatron", "deepspeed", "bridge"}))


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
_END = r"(?=\s*$|  )"  # two blanks: the next line follows without a newline
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


# Texts of `[…] datetime:` barriers, matched by how they begin.
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
