# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Recogniser of the Megatron family's iteration line, wrapped lines included."""

from __future__ import annotations

from collections.abc import Iterable

from mwatch.model.event import Event
from mwatch.parse import iteration
from mwatch.parse.context import Block, Context, Recogniser
from mwatch.parse.line import Line

_MAX_JOINS = 4


class _Wrapped(Block):
    """An iteration line that ended early: its rest may be on the next lines."""

    any_lane = True
    patience = 1

    def __init__(self, line: Line, context: Context) -> None:
        self._line = line
        self._context = context
        self._joined = 0

    def feed(self, line: Line) -> bool:
        if self._joined == _MAX_JOINS or not iteration.continues(self._line.text, line.body):
            return False
        self._joined += 1
        self._line = self._line._replace(text=f"{self._line.text} {line.body}")
        self.done = line.body.rstrip().endswith("|")
        return True

    def finish(self) -> Iterable[Event]:
        return _events(iteration.read_heads(self._line.text), self._line, self._context)


def _events(readings: list[iteration.Reading], line: Line, context: Context) -> Iterable[Event]:
    return [
        iteration.to_event(
            reading,
            line,
            context.file,
            context.flavour,
            iteration.cover_of(reading, context.coverage),
        )
        for reading in readings
    ]


def _read(line: Line, context: Context) -> Iterable[Event]:
    readings = iteration.read_heads(line.text)
    if readings and readings[-1].cut:
        context.opened = _Wrapped(line, context)
        return ()
    return _events(readings, line, context)


RECOGNISER = Recogniser(
    triggers=iteration.TRIGGERS,
    read=_read,
    flavours=frozenset({"megatron", "deepspeed", "bridge"}),
)
