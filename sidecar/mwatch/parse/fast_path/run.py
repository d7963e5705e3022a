# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Consecutive iteration lines of one layout, decoded on demand.

Finding the lines costs a third of converting them to events. Reading a single event or column costs
no more than that; iterating converts all events column by column.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from operator import attrgetter, gt
from typing import overload

from mwatch.model.event import Event, Iteration, StepLines
from mwatch.parse.fast_path.layout import (
    FIRST_SLOT,
    MAKE,
    STAMP,
    TOTAL,
    stamps,
    steady_covers,
    whole_numbers,
)
from mwatch.parse.fast_path.shape import Rows
from mwatch.parse.formats.megatron import read_heads, to_event
from mwatch.parse.lines.context import Cover, Coverage
from mwatch.parse.lines.line import Line

_WORTH_COLUMNS = 16  # fewer lines are cheaper one by one
_SELDOM_READ = {"consumed_samples": "q", "learning_rate": "d", "throughput_tflops": "d"}
"""Array type codes of columns that no detector iterates over: an array is faster to send to another
process, a list is faster to iterate over."""


class LineRun(Sequence[Iteration]):
    def __init__(
        self, rows: Rows, iterations: Sequence[int], covers: Sequence[int], lines: Sequence[int]
    ) -> None:
        self._layout = rows.layout
        self._rows = rows
        self._iterations = iterations
        self._covers = covers
        self.numbers = lines

    def __len__(self) -> int:
        return len(self._covers)

    @property
    def end(self) -> int:
        return self._rows.end

    @overload
    def __getitem__(self, index: int) -> Iteration: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Iteration]: ...
    def __getitem__(self, index: int | slice) -> Iteration | Sequence[Iteration]:
        if isinstance(index, slice):
            return list(self)[index]
        position = range(len(self))[index]
        event = self._layout.decode(
            self._rows[index], self.numbers[position], self._covers[position]
        )
        return event or self._read_slowly()[position]

    def __iter__(self) -> Iterator[Iteration]:
        try:
            values = self._columns()
        except ValueError:
            return iter(self._read_slowly())
        model = self._layout.model._asdict()
        ordered = (values.get(name) or repeat(model[name]) for name in Iteration._fields)
        return map(MAKE, zip(*ordered, strict=False))  # repeat() has no end

    def _read_slowly(self) -> list[Iteration]:
        model = self._layout.model
        events = []
        texts = self._rows.block[self._rows.start : self.end].split(b"\n")[:-1]
        for raw, number, covers in zip(texts, self.numbers, self._covers, strict=False):
            text = raw.decode("utf-8", "replace").rstrip("\r")
            line = Line(text, text, number, "", model.rank)
            cover = Cover(covers, False)
            for reading in read_heads(text):
                events.append(to_event(reading, line, model.file, model.flavour, cover))
                cover = Cover(None, False)  # for a second head inside a value
        return events

    def cut(self, lines: Sequence[int]) -> Iterator[LineRun]:
        """Split the run at these ordered line numbers, which then lie between the parts."""
        within = lines[bisect(lines, self.numbers[0]) : bisect(lines, self.numbers[len(self) - 1])]
        places = {bisect(self.numbers, line, hi=len(self)) for line in within}
        for low, high in pairwise((0, *sorted(places), len(self))):
            yield LineRun(
                self._rows.part(low, high),
                self._iterations[low:high],
                self._covers[low:high],
                self.numbers[low:high],
            )

    def column(self, field: str) -> list[float | int]:
        """Return the values of one field of `Iteration`; KeyError if the lines do not print it."""
        index = self._layout.fields.get(field)
        if index is not None:
            return list(self._convert(index))
        value = getattr(self._layout.model, field)
        if value is None:
            raise KeyError(field)
        return [value] * len(self)

    def lines(self) -> StepLines | None:
        """Return all lines as columns; None if only the slow path can read a value."""
        model = self._layout.model
        losses: dict[str, list[float]] = {}
        extra: dict[str, list[float]] = {}
        varying: dict[str, Sequence[float]] = {}
        steady: dict[str, object] = {}
        try:
            for index, slot in enumerate(self._layout.slots):
                values = self._convert(index)
                if slot.kind != "field":
                    (losses if slot.kind == "loss" else extra)[slot.name] = list(values)
                elif isinstance(values, list):
                    code = _SELDOM_READ.get(slot.name)
                    varying[slot.name] = array(code, values) if code else values
                else:
                    steady[slot.name] = next(iter(values))
            is_stamped = model.timestamp is not None
            printed = stamps(self._rows.column(STAMP)) if is_stamped else None
        except ValueError:
            return None
        totals = self._rows.column(TOTAL)
        if totals.only is None:
            varying["total_iterations"] = list(whole_numbers(totals))
        else:
            steady["total_iterations"] = int(totals.only)
        event = model._replace(**steady)  # type: ignore[arg-type]
        iterations, numbers = _as_range(self._iterations), _as_range(self.numbers[: len(self)])
        return StepLines(event, iterations, self._covers, numbers, printed, losses, extra, varying)

    def _convert(self, index: int) -> Iterable[float | int]:
        return self._layout.slots[index].convert_all(self._rows.column(index + FIRST_SLOT))

    def _columns(self) -> dict[str, Iterable[object]]:
        rows, slots = self._rows, self._layout.slots
        losses: dict[str, Iterable[object]] = {}
        extras: dict[str, Iterable[object]] = {}
        values: dict[str, Iterable[object]] = {
            "iteration": self._iterations,
            "covers": self._covers,
            "first_of_process": repeat(False),
            "line": self.numbers,
            "total_iterations": whole_numbers(rows.column(TOTAL)),
        }
        for index, slot in enumerate(slots):
            kinds = {"loss": losses, "extra": extras, "field": values}
            kinds[slot.kind][slot.name] = self._convert(index)
        values["losses"] = _dicts(losses)
        values["extra"] = _dicts(extras)
        if self._layout.model.timestamp is not None:
            values["timestamp"] = stamps(rows.column(STAMP)).decode("ascii").split("\n")[:-1]
        return values


def _as_range(rising: Sequence[int]) -> Sequence[int]:
    """Return the numbers, as a range if evenly spaced, which costs nothing to send."""
    step = rising[1] - rising[0] if len(rising) > 1 else 1
    evenly = range(rising[0], rising[0] + step * len(rising), step)
    return evenly if evenly[-1] == rising[-1] and list(evenly) == list(rising) else rising


def _dicts(columns: dict[str, Iterable[object]]) -> Iterable[dict[str, object]]:
    if not columns:
        return repeat({})
    if len(columns) == 1:
        ((name, values),) = columns.items()
        return [{name: value} for value in values]
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def read_run(rows: Rows | None, lines: Sequence[int], coverage: Coverage) -> LineRun | None:
    """Return the rows as a run if each continues the previous one; `lines`: their line numbers."""
    if rows is None:
        return None
    iterations = rows.iterations()
    covers = steady_covers(iterations, coverage)
    if not covers:
        return None
    coverage.advance(iterations[-1], covers[-1])
    return LineRun(rows, iterations, covers, lines)


def in_pieces(batches: Iterable[Sequence[Event]]) -> list[Event | StepLines]:
    """Return what was read in file order; long runs of similar lines stay together as columns."""
    read = list(batches)
    ordered = [number for batch in read for number in _ends(batch)]
    if any(map(gt, ordered, ordered[1:])):
        read = _in_order(read)
    pieces: list[Event | StepLines] = []
    for batch in read:
        lines = None
        if isinstance(batch, LineRun) and len(batch) >= _WORTH_COLUMNS:
            lines = batch.lines()
        pieces += batch if lines is None else (lines,)
    return pieces


def _in_order(batches: Sequence[Sequence[Event]]) -> list[Sequence[Event]]:
    """Sort the batches; cut runs that have other events between their lines."""
    others = [event for batch in batches if not isinstance(batch, LineRun) for event in batch]
    others.sort(key=attrgetter("line"))
    lines = [event.line for event in others]
    parts: list[Sequence[Event]] = [[event] for event in others]
    for batch in batches:
        if isinstance(batch, LineRun):
            parts += batch.cut(lines)
    return sorted(parts, key=lambda part: next(iter(_ends(part))))


def _ends(batch: Sequence[Event]) -> Iterable[int]:
    """Return line numbers to check the order by; within a run the lines are in order."""
    if isinstance(batch, LineRun):
        return batch.numbers[0], batch.numbers[len(batch) - 1]
    return (event.line for event in batch)
