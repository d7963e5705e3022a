# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one scrubber: it stands before every log, file, metric, page and bundle that mwatch writes.

Works on bytes, because a log need not be text. A chunk without any suspicious word is handed back
as it is, after one look; only lines with such a word are looked at closely. A secret is replaced by
`[scrubbed KIND]`; the rest of the line stays. It holds the state of one stream: a private key goes
over many lines. It can miss a secret (see `scrub_rules`).
"""

from __future__ import annotations

import re
from functools import partial
from typing import Iterator, Match, Pattern, Sequence

from mwatch_trainer.scrub_rules import KEY_BEGIN, KEY_END, KEY_LINE, RULES

_NEEDLES = tuple({needle for rule in RULES for needle in rule.needles} | {b"-----begin"})
_MAX_KEY_LINES = 256


class Scrubber:
    """`patterns`: the user's own; what their group `secret`, else the whole match, takes out."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """Raises ValueError for a pattern that is none."""
        self._own = tuple(compiled(each) for each in patterns)
        self._key_lines_left = 0

    def scrub(self, data: bytes) -> bytes:
        """Whole lines, or one line without its newline."""
        for pattern in self._own:
            data = pattern.sub(_replaced, data)
        chosen: Sequence[int] = _suspicious_lines(data)
        if not chosen and not self._key_lines_left:
            return data
        lines = data.split(b"\n")
        if self._key_lines_left or KEY_BEGIN.search(data):
            chosen = range(len(lines))
        for number in chosen:
            lines[number] = self._line(lines[number])
        return b"\n".join(lines)

    def text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogateescape")
        return self.scrub(data).decode("utf-8", "surrogateescape")

    def _line(self, line: bytes) -> bytes:
        line = self._without_key(line)
        lowered = line.lower()
        for rule in RULES:
            if any(needle in lowered for needle in rule.needles):
                mark = b"[scrubbed " + rule.name.encode() + b"]"
                line = rule.pattern.sub(partial(_cut, mark), line)
        return line

    def _without_key(self, line: bytes) -> bytes:
        begin, end = KEY_BEGIN.search(line), KEY_END.search(line)
        if begin is not None:
            is_whole = end is not None and end.start() > begin.end()
            self._key_lines_left = 0 if is_whole else _MAX_KEY_LINES
            rest = line[end.end() :] if is_whole and end is not None else b""
            return line[: begin.start()] + b"[scrubbed private-key]" + rest
        if not self._key_lines_left:
            return line
        self._key_lines_left = 0 if end is not None else self._key_lines_left - 1
        # Lines of other ranks may stand between those of the key.
        return KEY_LINE.sub(partial(_cut, b"[scrubbed private-key]"), line)


def compiled(pattern: str) -> Pattern[bytes]:
    """Raises ValueError."""
    try:
        return re.compile(pattern.encode("utf-8", "surrogateescape"))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r} is no pattern: {error}") from None


def scrub_text(text: str, patterns: Sequence[str] = ()) -> str:
    return Scrubber(patterns).text(text)


def _suspicious_lines(data: bytes) -> list[int]:
    lowered = data.lower()
    found: set[int] = set()
    for needle in _NEEDLES:
        if needle in lowered:
            found.update(_places(lowered, needle))
    numbers: list[int] = []
    number = at = 0
    for place in sorted(found):
        number += data.count(b"\n", at, place)
        at = place
        if not numbers or numbers[-1] != number:
            numbers.append(number)
    return numbers


def _places(lowered: bytes, needle: bytes) -> Iterator[int]:
    """One in each line that has it."""
    at = lowered.find(needle)
    while at >= 0:
        yield at
        end = lowered.find(b"\n", at)
        at = lowered.find(needle, end) if end >= 0 else -1


def _replaced(match: Match[bytes]) -> bytes:
    return _cut(b"[scrubbed]", match)


def _cut(mark: bytes, match: Match[bytes]) -> bytes:
    begin, end = _secret_span(match)
    whole, start = match.group(), match.start()
    return whole[: begin - start] + mark + whole[end - start :]


def _secret_span(match: Match[bytes]) -> tuple[int, int]:
    if "secret" in match.re.groupindex and match.start("secret") >= 0:
        return match.span("secret")
    return match.span()
