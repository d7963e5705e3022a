# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The iteration line of the Megatron family: upstream since v1.0, its forks, gpt-neox, nanotron.

The head is searched anywhere in the line; several heads (two ranks without a newline between them)
give several events. A last segment without its `|` was cut off and is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from mwatch.model.event import Event, Flavour, Iteration
from mwatch.parse.lines.context import Block, Context, Cover, Coverage, Recogniser
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
    """Whether `following` is the rest of an iteration line that was wrapped."""
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
    """An iteration line that ended early: the rest may be on the next lines."""

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
