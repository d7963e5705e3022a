# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Turn raw bytes into clean lines: cut lines, colours, progress bars, CRI headers, prefixes.

The wrapping of a log shipper is removed first (`envelopes`). Lines keep their numbers in the file.

Chunks may end anywhere. A line longer than `MAX_LINE` is passed on in pieces, cut between step
lines, so memory stays bounded. Prefixes stack (`0: [default7]:[rank7]: …`); the lane separates the
lines of interleaved writers, and only a prefix with the global rank sets `rank`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from mwatch.parse.lines.envelopes import SAMPLE, Envelope, envelope_of

MAX_LINE = 1 << 18
_OVERLAP = 1 << 13
ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)?|[@-Z\\^_])")
_LINE_END = re.compile(rb"\r+\n")
_ANY_END = re.compile(rb"[\r\n]+")
_LONE_RETURN = re.compile(rb"\r")
_CRI = re.compile(
    rb"(?m)(?:^|(?<=\r))(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) )"
    rb"(std(?:out|err)) ([FP])(?: |$)"
)
_STEP_HEAD = re.compile(
    rb"(?:\[[^\]\n]{10,40}\] )?(?:iteration[ :=]+\d|step: |Epoch \d|Training epoch |\[batch=)"
)
_PREFIX = re.compile(
    r"""(?:
      (?:[A-Z][a-z]{2}\ [ \d]\d\ \d\d:\d\d:\d\d
        | \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d))
        \ (?P<journal>[\w.-]{1,80}\ [\w./@-]{1,80}\[\d{1,9}\]:\ )
      | (?P<clock>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)\s
        (?:std(?:out|err)\ [FP]\ )?
        | \d\d:\d\d:\d\d\.\d+\ | std(?:out|err):\ )
      | \[rank(?P<rank>\d{1,6})\]:\ ?
      | (?P<lane>\[pod/[^\]\s]{1,200}\]\ | \[[a-z_]{1,30}\d{1,6}\]: | \[[\w.-]{1,80}:\d{1,6}\]:\ ?
        | [ ]{0,5}\d{1,6}:\ | [\w.-]{1,80}-\d{1,6}:[ ]
        | \([\w.-]{1,80},?\ [^()]{0,80}pid=\d+[^()]{0,80}\)\ ?
        | [a-z]\.[\w.-]{1,80}/\d{1,6}\ | \[\d{1,9}\]\ )
    )""",
    re.X,
)
_MAX_PREFIXES = 4
_OTHER_RANK = re.compile(r"\[rank-(\d{1,6})/\d|: rank(\d{1,6})\[\d+\]\[")
_STAMP = re.compile(
    r"(?<!\d)(?:(\d{4})-(\d\d)-(\d\d)[ T_](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?"
    r"|\[(\d{4})(\d\d)(\d\d) (\d\d:\d\d:\d\d)"
    r"|(\d\d)/(\d\d)/(\d{4}) (\d\d:\d\d:\d\d))"
)
_STAMP_WINDOW = 120


def count_lines(text: bytes) -> int:
    """Count newlines: removing them and comparing lengths is two to six times as fast as
    count()."""
    return len(text) - len(text.replace(b"\n", b""))


class LineBlock(NamedTuple):
    """A block of whole lines. `shifts`: offsets from which line numbers change by an amount."""

    block: bytes
    shifts: tuple[tuple[int, int], ...] = ()


class Transport:
    def __init__(self) -> None:
        self._carry = b""
        self._cri = False
        self._envelope: Envelope | None = None
        self._head: list[bytes] | None = []
        """The first lines, which show how the lines are wrapped; None once that is decided."""
        self._partial: dict[bytes, tuple[bytes, int]] = {}
        self._physical = 0

    def feed(self, chunk: bytes) -> list[LineBlock]:
        newline = chunk.rfind(b"\n")
        cut = max(newline, chunk.rfind(b"\r", newline + 1)) + 1
        blocks = []
        if cut:
            whole = b"".join((self._carry, memoryview(chunk)[:cut]))
            blocks.append(self._clean(whole))
            self._carry = chunk[cut:]
        else:
            self._carry += chunk
        if len(self._carry) > MAX_LINE:
            cut = _safe_cut(self._carry)
            blocks.append(self._clean(self._carry[:cut]))
            self._carry = self._carry[cut:]
        return blocks

    def close(self) -> list[LineBlock]:
        """Return the rest: a last line without a newline, and CRI pieces never completed."""
        rest, self._carry = self._carry, b""
        blocks = [self._clean(rest)] if rest else []
        for piece, first in self._partial.values():
            back = self._physical + 1 - first  # a piece has the number of the line it began in
            blocks.append(LineBlock(piece, ((0, -back), (len(piece) + 1, back - 1))))
        self._partial = {}
        return blocks

    def _clean(self, block: bytes) -> LineBlock:
        if b"\0" in block:
            block = block.replace(b"\0", b"")  # a hole that a truncated file leaves
        if b"\x1b" in block:
            block = ANSI.sub(b"", block)
        if self._head is not None:
            self._decide(block)
        returns = b"\r" in block
        if returns:
            block = _LINE_END.sub(b"\n", block)
        if self._envelope:
            block = ANSI.sub(b"", self._envelope.unwrap(block))
            returns = b"\r" in block
        lines = self._join_cri(block) if self._cri else LineBlock(block)
        return _split_returns(lines) if returns else lines

    def _decide(self, block: bytes) -> None:
        assert self._head is not None
        lines = _ANY_END.split(block, 2 * SAMPLE)[: 2 * SAMPLE]
        head = [*self._head, *filter(bytes.strip, lines)][:SAMPLE]
        self._cri = any(map(_CRI.match, head[:2]))  # the first may be the rest of a cut line
        self._envelope = None if self._cri else envelope_of(head)
        if self._envelope:
            self._cri = self._envelope.as_cri
        is_decided = self._cri or self._envelope or len(head) == SAMPLE
        self._head = None if is_decided else head

    def _join_cri(self, block: bytes) -> LineBlock:
        if not self._partial and not any(found[3] == b"P" for found in _CRI.finditer(block)):
            self._physical += count_lines(block)
            return LineBlock(_CRI.sub(rb"\1", block))
        out = bytearray()
        shifts: list[tuple[int, int]] = []
        for raw in block.splitlines(keepends=True):
            ended = raw.endswith(b"\n")
            self._physical += ended
            number = self._physical + (not ended)
            header = _CRI.match(raw)
            text = raw[header.end() :] if header else raw
            time, stream = (header[1], header[2]) if header else (b"", b"")
            if header and header[3] == b"P":
                before, first = self._partial.get(stream, (time, number))
                piece = before + text.rstrip(b"\r\n")
                self._partial[stream] = (piece[-MAX_LINE:], first)
                shifts.append((len(out), int(ended)))  # a line of the file without a line here
            else:
                before, first = self._partial.pop(stream, (time, number))
                shifts.append((len(out), first - number))
                out += before + text
                shifts.append((len(out), number - first))
        return LineBlock(bytes(out), tuple(shift for shift in shifts if shift[1]))


def _split_returns(lines: LineBlock) -> LineBlock:
    """Split at lone carriage returns (progress bars), which do not end a physical line."""
    breaks = [(found.end(), -1) for found in _LONE_RETURN.finditer(lines.block)]
    return LineBlock(lines.block.replace(b"\r", b"\n"), tuple(sorted([*lines.shifts, *breaks])))


def _safe_cut(line: bytes) -> int:
    """Return where to cut an endless line: before its last step line, which may be incomplete."""
    window = max(0, len(line) - _OVERLAP)
    heads = [found.start() for found in _STEP_HEAD.finditer(line, window)]
    return heads[-1] if heads and heads[-1] > 0 else len(line) - 512


class Numbering:
    """Line numbers of a block, counted on demand and in the order of the block."""

    def __init__(self, lines: LineBlock, first: int) -> None:
        self._block = lines.block
        self._shifts = list(reversed(lines.shifts))
        self._at = 0
        self._number = first

    def of(self, starts: Sequence[int]) -> list[int]:
        """Return the numbers of the lines that start at these offsets."""
        if self._shifts:
            return [self._move(start) for start in starts]
        texts = map(self._block.__getitem__, map(slice, (self._at, *starts), starts))
        numbers = list(accumulate(map(count_lines, texts), initial=self._number))
        self._at, self._number = (self._at, *starts)[-1], numbers[-1]
        return numbers[1:]

    def ended(self) -> int:
        """Return the number of the last line that has an end; call it last."""
        return self._move(len(self._block)) - 1 + sum(delta for _, delta in self._shifts)

    def _move(self, start: int) -> int:
        self._number += count_lines(self._block[self._at : start])
        self._at = start
        while self._shifts and self._shifts[-1][0] <= start:
            self._number += self._shifts.pop()[1]
        return self._number


class Line(NamedTuple):
    text: str  # the whole line, cleaned
    body: str  # the line without its transport prefixes
    number: int
    lane: str
    rank: int | None


def split_prefix(text: str, number: int) -> Line:
    position, lane, rank = 0, "", None
    for _ in range(_MAX_PREFIXES):
        found = _PREFIX.match(text, position)
        if not found:
            break
        position = found.end()
        if found["rank"]:
            rank = int(found["rank"])
            lane += f"[rank{rank}]"
        elif writer := found["lane"] or found["journal"]:
            lane += writer.strip()
    if rank is None and "rank" in text and (other := _OTHER_RANK.search(text, 0, 200)):
        rank = int(other[1] or other[2])
    return Line(text, text[position:], number, lane, rank)


def stamp(text: str) -> str | None:
    """Return the first date and time near the start of `text`, as ISO 8601 without a zone."""
    found = _STAMP.search(text, 0, _STAMP_WINDOW)
    if not found:
        return None
    if found[1]:
        fraction = f".{found[5]}" if found[5] else ""
        return f"{found[1]}-{found[2]}-{found[3]}T{found[4]}{fraction}"
    if found[6]:
        return f"{found[6]}-{found[7]}-{found[8]}T{found[9]}"
    return f"{found[12]}-{found[10]}-{found[11]}T{found[13]}"
