# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one scrubber: it stands before every log, file, metric, page and bundle that mwatch writes.

Works on bytes, because a log need not be text. A chunk without any suspicious word is handed back
as it is, after one look; only lines with such a word are looked at closely. A secret is replaced by
`[scrubbed KIND]`; the rest of the line stays. It holds the state of one stream: a private key goes
over many lines. It can miss a secret (see `scrub_rules`); for those there are the user's own
patterns, for all of mwatch in `MWATCH_SCRUB`, one a line.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache, partial
from typing import Callable, Iterable, Iterator, Match, Pattern, Sequence

from mwatch_trainer.scrub_rules import KEY_BEGIN, KEY_END, KEY_LINE, RULES, Rule

_KEY_NEEDLE = b"-----begin"
_NEEDLES = {
    needle: sum(1 << at for at, rule in enumerate(RULES) if needle in rule.needles)
    for needle in sorted({needle for rule in RULES for needle in rule.needles} | {_KEY_NEEDLE})
}
"""Each with the rules that ask for it, a bit for each."""
_BYTES = sorted(set(b"".join(_NEEDLES)))
_MAX_KEY_LINES = 256
VARIABLE = "MWATCH_SCRUB"


class Scrubber:
    """`patterns`: the user's own; what their group `secret`, else the whole match, takes out. Those
    of `MWATCH_SCRUB` are always among them."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """Raises ValueError for a pattern that is none."""
        given = _of_everybody(os.environ.get(VARIABLE, ""))
        self._own = (*(compiled(each) for each in patterns), *given)
        self._key_lines_left = 0

    def scrub(self, data: bytes) -> bytes:
        """Whole lines, or one line without its newline."""
        for pattern in self._own:
            data = pattern.sub(_replaced, data)
        suspicious = _suspicious_lines(data)
        if not suspicious and not self._key_lines_left:
            return data
        lines = data.split(b"\n")
        chosen: Iterable[int] = suspicious
        if self._key_lines_left or KEY_BEGIN.search(data):
            chosen = range(len(lines))
        for number in chosen:
            lines[number] = self._line(lines[number], suspicious.get(number, 0))
        return b"\n".join(lines)

    def text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogateescape")
        return self.scrub(data).decode("utf-8", "surrogateescape")

    def _line(self, line: bytes, rules: int) -> bytes:
        line = self._without_key(line)
        for rule, cut in _of(rules):
            line = rule.pattern.sub(cut, line)
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


def patterns_in(text: str) -> list[str]:
    """Of the variable: one a line."""
    return [each.strip() for each in text.split("\n") if each.strip()]


@lru_cache(maxsize=4)
def _of_everybody(text: str) -> tuple[Pattern[bytes], ...]:
    """One that cannot be used is told at the start of `mwatch-run`, and takes nothing out."""
    found = []
    for each in patterns_in(text):
        with contextlib.suppress(ValueError):
            found.append(compiled(each))
    return tuple(found)


def scrub_text(text: str, patterns: Sequence[str] = ()) -> str:
    return Scrubber(patterns).text(text)


def _suspicious_lines(data: bytes) -> dict[int, int]:
    """By their numbers, in order; with the rules that are to look at each."""
    lowered = data.lower()
    # One byte is found much faster than several, and lines of numbers lack many a letter.
    absent = {byte for byte in _BYTES if byte not in lowered}
    found = [
        (place, rules)
        for needle, rules in _NEEDLES.items()
        if absent.isdisjoint(needle) and needle in lowered
        for place in _places(lowered, needle)
    ]
    lines: dict[int, int] = {}
    number = at = 0
    for place, rules in sorted(found):
        number += data.count(b"\n", at, place)
        at = place
        lines[number] = lines.get(number, 0) | rules
    return lines


@lru_cache(maxsize=1024)
def _of(rules: int) -> tuple[tuple[Rule, Callable[[Match[bytes]], bytes]], ...]:
    """With how each cuts."""
    return tuple(
        (rule, partial(_cut, b"[scrubbed " + rule.name.encode() + b"]"))
        for at, rule in enumerate(RULES)
        if rules >> at & 1
    )


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
