# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Removes secrets from every log, file, metric, page and bundle that mwatch writes.

It works on bytes, because a log need not be text, and only on lines with a suspicious word. Five
kinds of secrets are recognized: words of a known shape (`rules`), values of a suspicious name
(`names`), passwords in URLs, random words close to a suspicious one, and long words that mix
letters and digits as no person does. Colours, invisible characters and the escapes of URLs, HTML
and JSON are decoded before matching, and a list of quoted words is also read as a command.

A secret is replaced by `[scrubbed KIND]`, which no rule matches, so scrubbing twice changes nothing
more. State is kept per stream: a private key spans many lines, and a value may be on the line after
its name. Every line takes linear time.

A secret without a known shape or name is missed; for those the user can set patterns, for all of
mwatch in `MWATCH_SCRUB`, one per line.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from functools import lru_cache
from typing import Iterator, Match, Pattern, Sequence

from mwatch_trainer.scrub import values
from mwatch_trainer.scrub.names import HARMLESS, kind_of
from mwatch_trainer.scrub.own_patterns import VARIABLE, compiled, environment_patterns, windows
from mwatch_trainer.scrub.rules import RULES, ScrubRule
from mwatch_trainer.scrub.values import Span

_KEY_BEGIN = re.compile(
    rb"(?:-----BEGIN (?!CERTIFICATE|PUBLIC|RSA PUBLIC|X509|PGP PUBLIC|PGP MESSAGE|PGP SIGN)"
    rb"[A-Z0-9 ]{3,48}-----|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----"
    rb"|Private-Lines: [0-9]{1,4}|Private-MAC: )"
)
_KEY_END = re.compile(rb"-----END [A-Z0-9 ]{3,48}-----|---- END SSH2|Private-MAC: [0-9a-f]{16,}")
_KEY_NEEDLES = (b"-----begin", b"---- begin", b"private-lines", b"private-mac")
_MAX_KEY_LINES = 256
# Escape sequences and invisible characters, with the text that they are decoded to.
_CODES: tuple[tuple[bytes, bytes], ...] = (
    (rb"\x1b(?:\[[0-9;:?]{0,32}[ -/]?[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\^_])", b""),
    (rb"\\(?:u001[Bb]|x1[Bb]|033)\[[0-9;:?]{0,32}[@-~]", b""),
    (rb"\xe2\x80[\x8b-\x8f]|\xe2\x81\xa0|\xef\xbb\xbf|\xc2\xad", b""),
    (rb"&quot;|&#34;|&#x22;|%22|\\u0022|\\{1,4}\"", b'"'),
    (rb"&apos;|&#39;|&#x27;|%27|\\u0027|\\{1,4}'", b"'"),
    (rb"%3[Dd]|&#61;|\\u003[Dd]", b"="),
    (rb"%3[Aa]|&#58;|\\u003[Aa]", b":"),
    (rb"%26|&amp;|&#38;|\\u0026", b"&"),
)
_CODED = re.compile(b"|".join(b"(" + each + b")" for each, _ in _CODES))
_CODE_NEEDLES = (
    b"\x1b", b"\xe2\x80", b"\xe2\x81\xa0", b"\xef\xbb\xbf", b"\xc2\xad", b"&quot;", b"&apos;",
    b"&#", b"&amp;", b"%22", b"%27", b"%3d", b"%3a", b"%26", b"\\u00",
    b"\\x1b", b"\\033", b'\\"', b"\\'",
)  # fmt: skip
# Each begins with fixed text, which makes the search much faster.
_LONE_HEX = (re.compile(rb"\n[0-9a-f]{40}(?=\r?\n)"), re.compile(rb"\]:? ?[0-9a-f]{40}(?=\r?\n)"))
_LONG_LINE = 1 << 16
_KINDS = sorted(
    {rule.name for rule in RULES}
    | {"password", "token", "secret", "flag", "url", "random-word", "rest", "long-line"}
)
_MARK = re.compile(
    rb"\[scrubbed(?: (?:" + "|".join(_KINDS).encode() + rb"))?\]|\[[0-9]{1,9} characters\]"
)
_MARK_NEEDLES = (b"[scrubbed", b" characters]")
_HIDDEN = re.compile(values.HIDDEN + b"+")
_MORE = re.compile(rb"(?<!\\)[^\0\s\"'`,;:.)}\]\\]")
_ROUNDS = 8  # one finds nearly all; cutting may move other words closer together
_QUOTED_WORD = rb"(?:'[^']{0,1024}'|\"[^\"]{0,1024}\")"
_COMMAND = re.compile(_QUOTED_WORD + rb"(?:,\s?" + _QUOTED_WORD + rb")+")
_NEXT_WORD = re.compile(rb"['\"],[\s\x1f]?['\"]")

_NAMED, _URLS, _LONE, _OPAQUE = (1 << (len(RULES) + at) for at in range(4))
# Maps letters and digits to one byte, so that a run of them is found as a run of that byte.
_RUNS = bytes(120 if chr(each).isalnum() and each < 128 else 32 for each in range(256))
_RUN = b"x" * values.LONG_RUN
_ALL_NEEDLES: dict[bytes, int] = {}
for _at, _each in enumerate(RULES):
    for _needle in _each.needles:
        _ALL_NEEDLES[_needle] = _ALL_NEEDLES.get(_needle, 0) | 1 << _at
for _needle in values.NAME_NEEDLES:
    _ALL_NEEDLES[_needle] = _ALL_NEEDLES.get(_needle, 0) | _NAMED
_ALL_NEEDLES[b"://"] = _ALL_NEEDLES.get(b"://", 0) | _URLS
for _needle in (*_KEY_NEEDLES, *_CODE_NEEDLES, *_MARK_NEEDLES):
    _ALL_NEEDLES.setdefault(_needle, 0)
# Needles with their rules as bits: those matched case-insensitively, and those matched exactly.
_ANY_CASE = sorted(each for each in _ALL_NEEDLES.items() if each[0] == each[0].lower())
_EXACT = sorted(each for each in _ALL_NEEDLES.items() if each[0] != each[0].lower())
_BYTES = sorted({byte for needle in _ALL_NEEDLES for byte in needle})


class Scrubber:
    """Scrubs one stream.

    `patterns`: the user's own, in addition to `MWATCH_SCRUB`; their group `secret`, or else the
    whole match, is removed.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """Raises ValueError for an invalid pattern."""
        given = environment_patterns(os.environ.get(VARIABLE, ""))
        self._own = (*(compiled(each) for each in patterns), *given)
        self._key_lines_left = 0
        self._after = values.NOTHING

    def scrub(self, data: bytes) -> bytes:
        """Scrub whole lines, or one line without its newline."""
        for pattern in self._own:
            data = _without_own(pattern, data)
        suspicious = _suspicious_lines(data)
        if not suspicious and not self._is_waiting():
            return data
        lines = data.split(b"\n")
        wanted = sorted(suspicious)
        at = number = 0
        if not self._is_waiting():
            number = wanted[0]
        while number < len(lines):
            is_last = number == len(lines) - 1
            if lines[number] or not is_last:  # the text after the last newline may be empty
                lines[number] = self._line(lines[number], suspicious.get(number, 0))
            number += 1
            if not self._is_waiting():
                while at < len(wanted) and wanted[at] < number:
                    at += 1
                number = wanted[at] if at < len(wanted) else len(lines)
        return b"\n".join(lines)

    def text(self, text: str) -> str:
        data = text.encode("utf-8", "surrogateescape")
        return self.scrub(data).decode("utf-8", "surrogateescape")

    def _is_waiting(self) -> bool:
        return self._key_lines_left > 0 or self._after is not values.NOTHING

    def _line(self, line: bytes, rules: int) -> bytes:
        is_long = len(line) > _LONG_LINE
        line = self._without_key(line)
        hidden = _hidden(line)
        if hidden is not line:
            rules = _suspicious_lines(hidden).get(0, 0)
        for _ in range(_ROUNDS):
            spans = self._spans_of_coded(hidden, rules)
            if not spans:
                break
            line = cut(line, spans)
            hidden = _hidden(line)
            rules = _suspicious_lines(hidden).get(0, 0)
        plain = _decoded(hidden)[0] if _CODED.search(hidden) else hidden
        marks = [Span(*each.span(), "") for each in _HIDDEN.finditer(plain)]
        self._after = values.expected(plain, marks, is_long, self._after)
        return line

    def _spans_of_coded(self, line: bytes, rules: int) -> list[Span]:
        if _CODED.search(line) is None:
            return _of_new(line, self._spans(line, rules))
        is_coded = any(each in line for each in (b"%", b"&", b"\\"))
        raw = _of_new(line, self._spans(line, rules)) if is_coded else []
        plain, places = _decoded(line)
        found = self._spans(plain, rules | _suspicious_lines(plain).get(0, 0))
        return raw + [
            Span(places[each.begin][0], places[each.end - 1][1], each.kind)
            for each in _of_new(plain, found)
        ]

    def _spans(self, line: bytes, rules: int) -> list[Span]:
        lowered = line.lower()
        spans = list(values.continued(self._after, line))
        for rule in _of(rules):
            spans += _matches(rule, lowered if rule.is_lowered else line, line)
            if rule.name == "flag" and b"," in line:
                words = _as_command(line)
                spans += _matches(rule, words.lower() if rule.is_lowered else words, line)
        if rules & _URLS:
            spans += values.in_addresses(line)
        if rules & _NAMED:
            spans += values.named(line, lowered)
            spans += values.of_flags(line)
            spans += values.near(line, lowered)
        if rules & _OPAQUE:
            spans += values.opaque(line, lowered)
        if rules & _LONE:
            spans.append(Span(len(line.rstrip()) - 40, len(line.rstrip()), "wandb"))
        return spans

    def _without_key(self, line: bytes) -> bytes:
        pieces, at = [], 0
        while (begin := _KEY_BEGIN.search(line, at)) is not None:
            pieces += [line[at : begin.start()], b"[scrubbed private-key]"]
            end = _KEY_END.search(line, begin.start())
            if end is None:
                self._key_lines_left = _MAX_KEY_LINES
                return b"".join(pieces)
            self._key_lines_left, at = 0, end.end()
        if pieces or not self._key_lines_left:
            return b"".join((*pieces, line[at:]))
        self._key_lines_left = 0 if _KEY_END.search(line) else self._key_lines_left - 1
        # Lines of other ranks may be interleaved with those of the key.
        found = values.key_line(line)
        return line if found is None else cut(line, [found])


SCRUBBED = "[scrubbed]"


def is_named_secret(name: str, value: str) -> bool:
    """Whether the value of a setting is a secret by its name."""
    kind = kind_of(name)
    data = value.encode("utf-8", "surrogateescape")
    return kind is not HARMLESS and values.is_secret_value(data, kind, name)


def scrub_text(text: str, patterns: Sequence[str] = ()) -> str:
    return Scrubber(patterns).text(text)


def cut(line: bytes, spans: Sequence[Span]) -> bytes:
    """Replace each span by its mark; overlapping spans are merged and keep the first one's kind."""
    if not spans:
        return line
    order = sorted(range(len(spans)), key=lambda at: (spans[at].begin, at))
    kept: list[Span] = []
    rank = 0
    for at in order:
        span = spans[at]
        if kept and span.begin < kept[-1].end:
            last = kept[-1]
            kind = span.kind if at < rank else last.kind
            rank = min(rank, at)
            kept[-1] = Span(last.begin, max(last.end, span.end), kind)
        else:
            kept.append(span)
            rank = at
    pieces, place = [], 0
    for span in kept:
        pieces += [line[place : span.begin], f"[scrubbed {span.kind}]".encode()]
        place = span.end
    return b"".join((*pieces, line[place:]))


def _matches(rule: ScrubRule, searched: bytes, line: bytes) -> Iterator[Span]:
    for match in rule.pattern.finditer(searched):
        begin, end = match.span("secret")
        is_accepted = rule.accepts is None or rule.accepts(line[begin:end])
        if is_accepted and (rule.name != "wandb" or not values.is_version(line, begin)):
            yield Span(begin, end, rule.name)


def _hidden(line: bytes) -> bytes:
    """Return the line with earlier scrub marks blanked out, at the same length."""
    if not any(each in line for each in _MARK_NEEDLES):
        return line
    return _MARK.sub(lambda mark: values.HIDDEN * len(mark.group()), line)


def _of_new(line: bytes, spans: Sequence[Span]) -> list[Span]:
    """Return the spans with more than earlier scrub marks, extended to whole marks."""
    spans = [each for each in spans if each.end > each.begin]
    if not spans or values.HIDDEN not in line:
        return spans
    marks = [each.span() for each in _HIDDEN.finditer(line)]
    ends = [end for _, end in marks]
    found = []
    for span in spans:
        text = line[span.begin : span.end]
        if values.HIDDEN in text and not _MORE.search(text):
            continue
        first, last = bisect_right(ends, span.begin), bisect_right(ends, span.end - 1)
        begin = marks[first][0] if first < len(marks) else span.begin
        end = marks[last][1] if last < len(marks) and marks[last][0] < span.end else span.end
        found.append(Span(min(begin, span.begin), end, span.kind))
    return found


def _as_command(line: bytes) -> bytes:
    """Rewrite lists of quoted words as a shell command line, keeping the offset of each byte; a
    blank inside a word becomes another character."""
    return _COMMAND.sub(_words, line)


def _words(command: Match[bytes]) -> bytes:
    text = command.group().replace(b" ", b"\x1f")
    return _NEXT_WORD.sub(lambda gap: b" " * len(gap.group()), text)


def _without_own(pattern: Pattern[bytes], data: bytes) -> bytes:
    spans, hidden = [], _hidden(data)
    for begin, end in windows(hidden):
        for match in pattern.finditer(hidden, begin, end):
            has_group = "secret" in match.re.groupindex and match.start("secret") >= 0
            spans.append(Span(*(match.span("secret") if has_group else match.span()), ""))
    return cut(data, _of_new(hidden, spans)).replace(b"[scrubbed ]", b"[scrubbed]")


def _decoded(line: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the decoded line, and where each of its bytes begins and ends in the original."""
    pieces: list[bytes] = []
    places: list[tuple[int, int]] = []
    at = 0
    for match in _CODED.finditer(line):
        shown = _CODES[(match.lastindex or 1) - 1][1]
        pieces += [line[at : match.start()], shown]
        places += [(each, each + 1) for each in range(at, match.start())]
        places += [match.span()] * len(shown)
        at = match.end()
    pieces.append(line[at:])
    places += [(each, each + 1) for each in range(at, len(line))]
    return b"".join(pieces), places


def _suspicious_lines(data: bytes) -> dict[int, int]:
    """Map the number of each suspicious line to the rules to apply, as a bit mask."""
    lowered = data.lower()
    found = [*_found(lowered, _ANY_CASE), *_found(data, _EXACT)]
    whole = b"\n" + data + b"\n"
    found += [(each.end() - 1, _LONE) for hexes in _LONE_HEX for each in hexes.finditer(whole)]
    found += [(place, _OPAQUE) for place in _places(data.translate(_RUNS), _RUN, data)]
    lines: dict[int, int] = {}
    number = at = 0
    for place, rules in sorted(found):
        number += data.count(b"\n", at, place)
        at = place
        lines[number] = lines.get(number, 0) | rules
    return lines


def _found(text: bytes, needles: list[tuple[bytes, int]]) -> Iterator[tuple[int, int]]:
    """Yield one position of each needle in each line, with its rules."""
    # Searching one byte is much faster than several, and lines of numbers lack many letters.
    absent = {byte for byte in _BYTES if byte not in text}
    for needle, rules in needles:
        if absent.isdisjoint(needle):
            for place in _places(text, needle):
                yield place, rules


@lru_cache(maxsize=1024)
def _of(rules: int) -> tuple[ScrubRule, ...]:
    return tuple(rule for at, rule in enumerate(RULES) if rules >> at & 1)


def _places(searched: bytes, needle: bytes, data: bytes | None = None) -> Iterator[int]:
    """Yield one position in each line with the needle; `data` has the newlines if `searched` has
    not."""
    lines = searched if data is None else data
    at = searched.find(needle)
    while at >= 0:
        yield at
        end = lines.find(b"\n", at)
        at = searched.find(needle, end) if end >= 0 else -1
