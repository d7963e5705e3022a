# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes in, events out: one reader per file.

It jumps from one line of interest to the next; only while a block (a traceback, the argument
block) is open does it look at every line. Lines that look like the last iteration line take the
short way through `shape`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter

from mwatch.model.event import Event, Iteration
from mwatch.parse.context import Block, Context
from mwatch.parse.grammar import Grammar
from mwatch.parse.layout import Layout, learn
from mwatch.parse.line import Line, split_prefix
from mwatch.parse.run import Run, read_run
from mwatch.parse.shape import Shapes
from mwatch.parse.transport import Lines, Transport, count_lines

_MAX_LANES = 64
_MAX_LAYOUTS = 4
_BAR = ord("|")
_LINE = attrgetter("line")
Spot = tuple[int, int, int, list[int]]
"""A line of a block that is worth a look: start, end, line number, what the scanner saw in it."""


def in_order(events: list[Event]) -> list[Event]:
    """A block (an argument list, a traceback) is known when it ends, but was there before."""
    events.sort(key=_LINE)
    return events


class _Open:
    """An open block and how long it has waited for its next line."""

    def __init__(self, block: Block, line: int) -> None:
        self.block = block
        self.last_line = line
        self.foreign = 0


class Reader:
    def __init__(self, grammar: Grammar, file: str) -> None:
        self._grammar = grammar
        self._context = Context(file, grammar.flavour)
        self._transport = Transport()
        self._lanes: dict[str, list[_Open]] = {}
        self._layouts: list[Layout] = []
        self._shapes = Shapes()
        self.lines = 0
        """Physical lines that ended so far."""

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for batch in self.batches(chunk) for event in batch]

    def batches(self, chunk: bytes) -> Iterator[Sequence[Event]]:
        """The events in pieces, of which a `Run` decodes only what is looked at."""
        for lines in self._transport.feed(chunk):
            yield from self._read(lines)

    def settle(self) -> list[Event]:
        """Nothing came for a while: what is open will not be continued."""
        return [event for lane in list(self._lanes) for event in self._close_lane(lane)]

    def restart(self) -> list[Event]:
        """The file was rotated or rewritten: lines count from 1 again, the run goes on."""
        events = self.close()
        self._transport = Transport()
        self.lines = 0
        return events

    def close(self) -> list[Event]:
        events: list[Event] = []
        for lines in self._transport.close():
            events += (event for batch in self._read(lines) for event in batch)
            self.lines += not lines.block.endswith(b"\n")
        return events + self.settle()

    def _read(self, lines: Lines) -> Iterator[Sequence[Event]]:
        if not self._lanes and not lines.shifts:
            first = self.lines + 1
            run = self._run(lines.block, range(first, first + len(lines.block)))  # or fewer
            if run:
                yield run
                self.lines += len(run)
                lines = Lines(lines.block[run.end :])
        block = lines.block
        steps: list[Spot] = []
        for spot in self._walk(lines, steps):
            yield from self._steps(steps, block)
            steps.clear()
            yield self._line(spot, block)
        yield from self._steps(steps, block)

    def _run(self, block: bytes, lines: Sequence[int]) -> Run | None:
        """The step lines of one layout with which the block begins."""
        rows = self._shapes.rows(block, self._layouts)
        return read_run(rows, lines, self._context.coverage)

    def _steps(self, spots: list[Spot], block: bytes) -> Iterator[Sequence[Event]]:
        """Step lines that follow each other, in as few runs as possible."""
        while spots:
            text = b"".join([block[start : end + 1] for start, end, _, _ in spots])
            run = self._run(text, [number for _, _, number, _ in spots])
            half = len(spots) // 2
            if run:
                yield run
            elif half:
                yield from self._steps(spots[:half], block)
            else:
                yield self._line(spots[0], block)
            spots = spots[len(run) if run else max(half, 1) :]

    def _walk(self, lines: Lines, steps: list[Spot]) -> Iterator[Spot]:
        """The lines worth a look; while a block is open, all lines.

        Whole step lines are not given but left in `steps`: they are read together later. A step
        line that was cut opens a block, so it cannot wait.
        """
        block, lanes, size = lines.block, self._lanes, len(lines.block)
        shifts = list(reversed(lines.shifts))
        hits, step = self._grammar.scan(block), self._grammar.step
        hits.append((size + 1, -1))  # behind all lines
        index = position = 0
        number = self.lines + 1
        while position < size:
            hit, kind = hits[index]
            if not lanes and hit > size:
                break
            start = position if lanes else block.rfind(b"\n", position, hit) + 1 or position
            end = block.find(b"\n", start)
            end = size if end < 0 else end
            first = index
            while hit <= end:
                index += 1
                hit = hits[index][0]
            waits = kind == step and index - first == 1 and not lanes and block[end - 1] == _BAR
            seen = [] if waits else [each for _, each in hits[first:index]]
            if not (waits or lanes) and self._grammar.is_no_fault(seen, block, start, end):
                continue
            number += count_lines(block[position:start])
            while shifts and shifts[-1][0] <= start:
                number += shifts.pop()[1]
            if waits:
                steps.append((start, end, number, [kind]))
            else:
                yield start, end, number, seen
            position = end + 1
            number += end < size
        self.lines = number - 1 + count_lines(block[position:]) + sum(delta for _, delta in shifts)

    def _line(self, spot: Spot, block: bytes) -> list[Event]:
        start, end, number, hits = spot
        text = block[start:end].decode("utf-8", "replace")
        return list(self._read_line(split_prefix(text.rstrip("\r"), number), set(hits)))

    def _read_line(self, line: Line, seen: set[int]) -> Iterator[Event]:
        if not line.body.strip():
            return
        belongs = False
        if self._lanes:
            yield from self._forget(line.number)
            lane = self._lane_of(line)
            if lane is not None:
                belongs = yield from self._feed_lane(lane, line)
        flavour = self._context.flavour
        if not belongs:
            for recogniser in self._grammar.recognisers(seen):
                events = list(recogniser.read(line, self._context))
                if self._context.opened:
                    yield from self._open(line)
                yield from events
                if len(events) == 1 and type(events[0]) is Iteration:
                    self._learn(line.text, events[0])
        if self._context.flavour != flavour:
            self._layouts, self._shapes = [], Shapes()  # they were learnt for another one
        if not (belongs and line.body[:1].isspace()):  # source code quoted in a traceback
            faults = self._grammar.fault_hits(seen)
            yield from self._grammar.faults.read(line, self._context, faults)

    def _lane_of(self, line: Line) -> str | None:
        if line.lane in self._lanes:
            return line.lane
        newest = next(reversed(self._lanes), None)
        loose = newest is not None and not line.lane and self._lanes[newest][-1].block.any_lane
        return newest if loose else None

    def _feed_lane(self, name: str, line: Line) -> Generator[Event, None, bool]:
        """Offer the line to the open blocks, innermost first; returns whether one took it."""
        belongs = False
        for opened in reversed(self._lanes[name].copy()):
            belongs = opened.block.feed(line)
            if belongs:
                opened.foreign = 0
                opened.last_line = line.number
            else:
                opened.foreign += 1
            if opened.block.done or opened.foreign > opened.block.tolerates:
                yield from self._close(name, opened)
            if belongs:
                break
        return belongs

    def _open(self, line: Line) -> Iterator[Event]:
        block, self._context.opened = self._context.opened, None
        assert block is not None
        for opened in self._lanes.get(line.lane, []).copy():
            if not opened.block.survives or type(opened.block) is type(block):
                yield from self._close(line.lane, opened)
        if len(self._lanes) >= _MAX_LANES:
            yield from self._close_lane(next(iter(self._lanes)))
        self._lanes.setdefault(line.lane, []).append(_Open(block, line.number))

    def _close_lane(self, lane: str) -> Iterator[Event]:
        for opened in self._lanes[lane].copy():
            yield from self._close(lane, opened)

    def _close(self, lane: str, opened: _Open) -> Iterator[Event]:
        self._lanes[lane].remove(opened)
        if not self._lanes[lane]:
            del self._lanes[lane]
        yield from opened.block.finish()

    def _forget(self, number: int) -> Iterator[Event]:
        for lane, blocks in list(self._lanes.items()):
            for opened in blocks.copy():
                if number - opened.last_line > opened.block.patience:
                    yield from self._close(lane, opened)

    def _learn(self, text: str, event: Iteration) -> None:
        raw = f"{text}\n".encode("utf-8", "replace")
        if any(known.match(raw) for known in self._layouts):
            return  # it took the long way for another reason; making a pattern is dear
        layout = learn(text, event)
        if layout and not any(layout.same_as(known) for known in self._layouts):
            self._layouts = [layout, *self._layouts[: _MAX_LAYOUTS - 1]]
