# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Convert log files to events as JSON lines for `mwatch parse`, once or as the files grow."""

from __future__ import annotations

import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from mwatch import json_codec
from mwatch.errors import InputError
from mwatch.model.event import (
    Event,
    Iteration,
    Overflow,
    Straggler,
    Timers,
    Validation,
    event_name,
)
from mwatch.model.snapshot.event_wire import to_wire
from mwatch.parse.grammar import Grammar
from mwatch.parse.reader import Reader
from mwatch.runtime.files import STDIN, read_chunks, shown
from mwatch.sources.log_tail import LogTail
from mwatch_trainer.scrub.scrubber import Scrubber

_POLL_SECONDS = 0.2
_SETTLE_POLLS = 10
_PROGRESS_SECONDS = 0.5
_NUMBERS = (Iteration, Validation, Overflow, Timers, Straggler)
"""Frequent events with numbers only, so they need no scrubbing of secrets."""

Progress = Callable[[str, int, int], None]
"""Called about twice a second with the file, the bytes read and the total (0: unknown)."""


@dataclass
class Summary:
    lines: int = 0
    events: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    """Inputs that could not be read completely, one line each."""

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.events.most_common())
        message = f"{self.lines} lines, {self.events.total()} events"
        return f"{message}: {counts}" if counts else message


class EventWriter:
    """Writes events as JSON lines and counts them."""

    def __init__(self, out: BinaryIO, summary: Summary, since_line: int) -> None:
        self._out = out
        self._summary = summary
        self._since_line = since_line

    def write(self, events: Iterable[Event]) -> None:
        chosen = [event for event in events if event.line >= self._since_line]
        self._summary.events.update(event_name(type(event)) for event in chosen)
        self._out.write(b"".join(map(encode, chosen)))

    def flush(self) -> None:
        self._out.flush()


def encode(event: Event) -> bytes:
    record = to_wire(event)
    try:
        line = json_codec.encode(record) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate, which the slow encoder escapes
        line = json.dumps(record).encode() + b"\n"
    return line if isinstance(event, _NUMBERS) else Scrubber().scrub(line)


def parse_files(
    files: Sequence[str],
    grammar: Grammar,
    writer: EventWriter,
    summary: Summary,
    progress: Progress | None = None,
) -> None:
    """Parse each file; one that cannot be read becomes a problem of the summary."""
    gc.freeze()  # events hold no reference cycles, so collecting them only costs time
    gc.set_threshold(100_000)
    reported = time.monotonic()
    for file in files:
        reader = Reader(grammar, "stdin" if file == STDIN else shown(file))
        try:
            for chunk in read_chunks(file):
                writer.write(reader.feed(chunk.data))
                if progress and time.monotonic() - reported > _PROGRESS_SECONDS:
                    reported = time.monotonic()
                    progress(file, chunk.done, chunk.size)
        except InputError as error:
            summary.problems.append(str(error))
        writer.write(reader.close())
        summary.lines += reader.lines
    writer.flush()


def follow_files(
    files: Sequence[str],
    grammar: Grammar,
    writer: EventWriter,
    summary: Summary,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Write events as the files grow, until interrupted; a file may appear later."""
    tails = [(Reader(grammar, shown(file)), LogTail(Path(file))) for file in files]
    idle = 0
    try:
        while True:
            busy = [_poll(reader, tail, writer, summary) for reader, tail in tails]
            idle = 0 if any(busy) else idle + 1
            if idle == _SETTLE_POLLS:
                for reader, _ in tails:
                    writer.write(reader.settle())
            if idle:
                writer.flush()
                wait(_POLL_SECONDS)
    finally:
        for reader, tail in tails:
            tail.close()
            writer.write(reader.close())
            summary.lines += reader.lines
        writer.flush()


def _poll(reader: Reader, tail: LogTail, writer: EventWriter, summary: Summary) -> bool:
    try:
        poll = tail.poll()
    except OSError as error:
        raise InputError(f"cannot read {tail.path}: {error.strerror}; check its mode") from error
    if poll.restarted:
        summary.lines += reader.lines
        writer.write(reader.restart())
    if poll.data:
        writer.write(reader.feed(poll.data))
    return bool(poll.data)
