# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Turn the bytes of one file into events.

The reader jumps from one line of interest to the next. It reads every line only while a block (a
traceback, the argument block) is open. Lines that look like the last iteration line take the fast
path.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from operator import attrgetter

from mwatch.model.event import Event, Iteration
from mwatch.parse.fast_path.layout import LineLayout, learn
from mwatch.parse.fast_path.run import LineRun, read_run
from mwatch.parse.fast_path.shape import Shapes
from mwatch.parse.grammar import Grammar, Span
from mwatch.parse.lines.context import Block, Context, LoopState
from mwatch.parse.lines.line import Line, LineBlock, Numbering, Transport, split_prefix

_MAX_LANES = 64
_MAX_LAYOUTS = 4
_LINE = attrgetter("line")


def in_order(events: list[Event]) -> list[Event]:
    """Sort by line: a block is complete when it ends, but its event belongs where it began."""
    events.sort(key=_LINE)
    return events


_RAISED = re.compile(r"\s+[A-Za-z_][\w.]{0,200}(?:Error|Exception): ")
"""The last line of a traceback whose lines are all indented."""


class _Open:
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
        self._layouts: list[LineLayout] = []
        self._shapes = Shapes()
        self.lines = 0  # physical lines that ended so far

    def feed(self, chunk: bytes) -> list[Event]:
        blocks = self._transport.feed(chunk)
        return [event for lines in blocks for batch in self._read(lines) for event in batch]

    def batches(self, chunk: bytes) -> Iterator[Sequence[Event]]:
        """Yield the events in batches; a `LineRun` decodes only what is used.

        Runs are as long as possible: events between their lines may come before them.
        """
        for lines in self._transport.feed(chunk):
            yield from self._read(lines, long_runs=True)

    def settle(self) -> list[Event]:
        """Close the open blocks because nothing was printed for a while."""
        return [event for lane in list(self._lanes) for event in self._close_lane(lane)]

    def command_ended(self) -> None:
        """Reset the step counter for the next process; what was learnt of the format is kept."""
        self._context.loop = LoopState()

    def restart(self) -> list[Event]:
        """Handle a rotated or rewritten file: lines count from 1 again, the run continues."""
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

    def _read(self, lines: LineBlock, *, long_runs: bool = False) -> Iterator[Sequence[Event]]:
        if not self._lanes and not lines.shifts:
            first = self.lines + 1
            run = self._run(lines.block, 0, range(first, first + len(lines.block)))  # or fewer
            if run:
                yield run
                self.lines += len(run)
                lines = LineBlock(lines.block[run.end :])
        block = lines.block
        numbering = Numbering(lines, self.lines + 1)
        spans: list[Span] = []
        steps: list[bytes] = []
        numbers: list[int] = []
        for start, end, seen in self._walk(block, spans):
            steps += [block[low : high + 1] for low, high in spans]
            *before, number = numbering.of([*(low for low, _ in spans), start])
            numbers += before
            spans.clear()
            if steps and not (long_runs and self._grammar.leaves_steps(seen)):
                yield from self._steps(steps, numbers)
                steps, numbers = [], []
            events = self._line(block[start:end], number, seen)
            if events:
                yield events
        steps += [block[low : high + 1] for low, high in spans]
        if steps:
            numbers += numbering.of([low for low, _ in spans])
            yield from self._steps(steps, numbers)
        self.lines = numbering.ended()

    def _run(self, block: bytes, start: int, lines: Sequence[int]) -> LineRun | None:
        rows = self._shapes.rows(block, start, self._layouts)
        return read_run(rows, lines, self._context.coverage)

    def _steps(self, texts: list[bytes], numbers: list[int]) -> Iterator[Sequence[Event]]:
        """Read step lines in few runs; nothing between them changes how they are read."""
        joined = b"".join(texts)
        offset = at = 0
        while at < len(texts):
            run = self._run(joined, offset, numbers[at:])
            half = (len(texts) - at) // 2
            read = len(run) if run else max(half, 1)
            if run:
                yield run
            elif half:
                yield from self._steps(texts[at : at + half], numbers[at : at + half])
            else:
                yield self._line(texts[at].rstrip(b"\n"), numbers[at], [self._grammar.step])
            offset += sum(map(len, texts[at : at + read]))
            at += read

    def _walk(self, block: bytes, steps: list[Span]) -> Iterator[tuple[int, int, list[int]]]:
        """Yield the lines to read and their hits; all lines while a block is open.

        Whole step lines are collected in `steps` and read together later. A step line that was cut
        opens a block, so it cannot wait.
        """
        lanes, size, grammar = self._lanes, len(block), self._grammar
        hits = [*grammar.scan(block), (size + 1, -1)]  # with a sentinel beyond all lines
        index = position = 0
        while position < size:
            if not lanes:
                index, position = grammar.pass_steps(hits, index, position, block, steps)
            hit = hits[index][0]
            if not lanes and hit > size:
                break
            start = position if lanes else block.rfind(b"\n", position, hit) + 1 or position
            end = block.find(b"\n", start)
            end = size if end < 0 else end
            first = index
            while hit <= end:
                index += 1
                hit = hits[index][0]
            seen = [kind for _, kind in hits[first:index]]
            if lanes or not grammar.has_no_fault(seen, block, start, end):
                yield start, end, seen
                position = end + 1

    def _line(self, raw: bytes, number: int, hits: Sequence[int]) -> list[Event]:
        text = raw.decode("utf-8", "replace")
        seen = self._grammar.confirmed(hits, raw)
        return list(self._read_line(split_prefix(text.rstrip("\r"), number), seen))

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
            self._layouts, self._shapes = [], Shapes()  # they were learnt for another flavour
        is_code = belongs and line.body[:1].isspace() and not _RAISED.match(line.body)
        if not is_code:  # source code quoted in a traceback
            faults = self._grammar.fault_hits(seen)
            yield from self._grammar.faults.read(line, self._context, faults)

    def _lane_of(self, line: Line) -> str | None:
        if line.lane in self._lanes:
            return line.lane
        newest = next(reversed(self._lanes), None)
        loose = newest is not None and not line.lane and self._lanes[newest][-1].block.any_lane
        return newest if loose else None

    def _feed_lane(self, name: str, line: Line) -> Generator[Event, None, bool]:
        """Offer the line to the open blocks, innermost first; return whether one took it."""
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
            return  # it took the slow path for another reason; building a pattern is expensive
        layout = learn(text, event)
        if layout and not any(layout.same_as(known) for known in self._layouts):
            self._layouts = [layout, *self._layouts[: _MAX_LAYOUTS - 1]]
