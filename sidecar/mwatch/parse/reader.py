# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes in, events out: one reader per file.

It jumps from one line of interest to the next; only while a block (a traceback, the argument
block) is open does it look at every line. Lines that look like the last iteration line take the
short way through `layout`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence

from mwatch.model.event import Event, Iteration
from mwatch.parse.context import Block, Context
from mwatch.parse.grammar import Grammar
from mwatch.parse.layout import Layout, learn
from mwatch.parse.line import Line, split_prefix
from mwatch.parse.run import read_run
from mwatch.parse.transport import Lines, Transport

_MAX_LANES = 64
_MAX_LAYOUTS = 4


class _Lane:
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
        self._lanes: dict[str, _Lane] = {}
        self._layouts: list[Layout] = []
        self.lines = 0
        """Physical lines that ended so far."""

    def feed(self, chunk: bytes) -> list[Event]:
        return [event for batch in self.batches(chunk) for event in batch]

    def batches(self, chunk: bytes) -> Iterator[Sequence[Event]]:
        """The events in pieces, of which a `Run` decodes only what is looked at."""
        return map(self._read, self._transport.feed(chunk))

    def settle(self) -> list[Event]:
        """Nothing came for a while: what is open will not be continued."""
        return [event for lane in list(self._lanes) for event in self._close(lane)]

    def restart(self) -> list[Event]:
        """The file was rotated or rewritten: lines count from 1 again, the run goes on."""
        events = self.close()
        self._transport = Transport()
        self.lines = 0
        return events

    def close(self) -> list[Event]:
        events: list[Event] = []
        for lines in self._transport.close():
            events += self._read(lines)
            self.lines += not lines.block.endswith(b"\n")
        return events + self.settle()

    def _read(self, lines: Lines) -> Sequence[Event]:
        block = lines.block
        if not self._lanes and not lines.shifts:
            run = read_run(self._layouts, block, self.lines + 1, self._context.coverage)
            if run:
                self.lines += len(run)
                return run
        return list(self._walk(lines))

    def _walk(self, lines: Lines) -> Iterator[Event]:
        block = lines.block
        hits = self._grammar.scan(block)
        shifts = list(reversed(lines.shifts))
        index = position = 0
        number = self.lines + 1
        while position < len(block):
            start = position
            if not self._lanes:
                if index == len(hits):
                    break
                start = max(position, block.rfind(b"\n", position, hits[index][0]) + 1)
            number += block.count(b"\n", position, start)
            while shifts and shifts[-1][0] <= start:
                number += shifts.pop()[1]
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            seen = []
            while index < len(hits) and hits[index][0] <= end:
                seen.append(hits[index][1])
                index += 1
            yield from self._line(block, start, end, number, seen)
            position = end + 1
            number += end < len(block)
        self.lines = number - 1 + block.count(b"\n", position) + sum(delta for _, delta in shifts)

    def _line(
        self, block: bytes, start: int, end: int, number: int, seen: list[int]
    ) -> Iterable[Event]:
        if not self._lanes:
            if len(seen) == 1 and seen[0] in self._grammar.step_hits:
                event = self._step(block, start, number)
                if event:
                    return (event,)
            elif self._grammar.is_no_fault(seen, block, start, end):
                return ()
        text = block[start:end].decode("utf-8", "replace")
        return self._read_line(split_prefix(text.rstrip("\r"), number), set(seen))

    def _step(self, block: bytes, start: int, number: int) -> Iteration | None:
        for index, layout in enumerate(self._layouts):
            event = layout.one(block, start, number, self._context.coverage)
            if event:
                if index:
                    self._layouts.insert(0, self._layouts.pop(index))  # it will be the next too
                return event
        return None

    def _read_line(self, line: Line, seen: set[int]) -> Iterator[Event]:
        belongs = False
        if self._lanes:
            yield from self._forget(line.number)
            lane = self._lane_of(line)
            if lane is not None:
                belongs = yield from self._feed_lane(lane, line)
        if not belongs:
            for recogniser in self._grammar.recognisers(seen):
                events = list(recogniser.read(line, self._context))
                if self._context.opened:
                    yield from self._open(line)
                yield from events
                if len(events) == 1 and type(events[0]) is Iteration:
                    self._learn(line.text, events[0])
        if not (belongs and line.body[:1].isspace()):  # source code quoted in a traceback
            faults = self._grammar.fault_hits(seen)
            yield from self._grammar.faults.read(line, self._context, faults)

    def _lane_of(self, line: Line) -> str | None:
        if line.lane in self._lanes:
            return line.lane
        newest = next(reversed(self._lanes), None)
        loose = newest is not None and not line.lane and self._lanes[newest].block.any_lane
        return newest if loose else None

    def _feed_lane(self, name: str, line: Line) -> Generator[Event, None, bool]:
        """Offer the line to an open block; returns whether it took it."""
        lane = self._lanes[name]
        belongs = lane.block.feed(line)
        if belongs:
            lane.foreign = 0
            lane.last_line = line.number
            self._lanes[name] = self._lanes.pop(name)  # the oldest stays first
        elif line.body.strip():
            lane.foreign += 1
        if lane.block.done or lane.foreign > lane.block.tolerates:
            yield from self._close(name)
        return belongs

    def _open(self, line: Line) -> Iterator[Event]:
        block, self._context.opened = self._context.opened, None
        assert block is not None
        yield from self._close(line.lane)
        if len(self._lanes) >= _MAX_LANES:
            yield from self._close(next(iter(self._lanes)))
        self._lanes[line.lane] = _Lane(block, line.number)

    def _close(self, lane: str) -> Iterator[Event]:
        opened = self._lanes.pop(lane, None)
        if opened:
            yield from opened.block.finish()

    def _forget(self, number: int) -> Iterator[Event]:
        for name, lane in list(self._lanes.items()):
            if number - lane.last_line > lane.block.patience:
                yield from self._close(name)

    def _learn(self, text: str, event: Iteration) -> None:
        layout = learn(text, event)
        if layout and not any(layout.same_as(known) for known in self._layouts):
            self._layouts = [layout, *self._layouts[: _MAX_LAYOUTS - 1]]
