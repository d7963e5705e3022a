# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one scrubber: it removes secrets from every log, file, metric, page and bundle mwatch writes.

It works on bytes, because a log need not be text, and only on lines with a suspicious word. Five
kinds of secrets are recognized: words of a known shape (`rules`), values of a suspicious name
(`names`), passwords in addresses, random words close to a suspicious one, and long words that mix
letters and digits as no person does. Colours, invisible characters and the codes of URLs, HTML and
JSON are looked through. A secret is replaced by `[scrubbed KIND]`. The state of one stream is kept:
a private key spans many lines, and a value may follow its name in the next one. Every line takes
linear time.
A secret without a known shape or name is missed; for those there are the user's own patterns, for
all of mwatch in `MWATCH_SCRUB`, one per line.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Iterator, Pattern, Sequence

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
# What is not shown, or shown as another character, by the character that is read instead.
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
# Each begins with fixed text: that is found much faster.
_LONE_HEX = (re.compile(rb"\n[0-9a-f]{40}(?=\r?\n)"), re.compile(rb"\]:? ?[0-9a-f]{40}(?=\r?\n)"))
_LONG_LINE = 1 << 16

_NAMED, _URLS, _LONE, _OPAQUE = (1 << (len(RULES) + at) for at in range(4))
# A run of letters and digits is found as a run of one byte.
_RUNS = bytes(120 if chr(each).isalnum() and each < 128 else 32 for each in range(256))
_RUN = b"x" * values.LONG_RUN
_ALL_NEEDLES: dict[bytes, int] = {}
for _at, _each in enumerate(RULES):
    for _needle in _each.needles:
        _ALL_NEEDLES[_needle] = _ALL_NEEDLES.get(_needle, 0) | 1 << _at
for _needle in values.NAME_NEEDLES:
    _ALL_NEEDLES[_needle] = _ALL_NEEDLES.get(_needle, 0) | _NAMED
_ALL_NEEDLES[b"://"] = _ALL_NEEDLES.get(b"://", 0) | _URLS
for _needle in (*_KEY_NEEDLES, *_CODE_NEEDLES):
    _ALL_NEEDLES.setdefault(_needle, 0)
# Each with its rules as bits: those found in any case, and those only as they are.
_ANY_CASE = sorted(each for each in _ALL_NEEDLES.items() if each[0] == each[0].lower())
_EXACT = sorted(each for each in _ALL_NEEDLES.items() if each[0] != each[0].lower())
_BYTES = sorted({byte for needle in _ALL_NEEDLES for byte in needle})


class Scrubber:
    """`patterns`: the user's own, besides `MWATCH_SCRUB`; their group `secret` or match is cut."""

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
            if lines[number] or not is_last:  # nothing follows the last newline
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
        line = self._without_key(line)
        if _CODED.search(line) is None:
            spans = self._spans(line, rules)
            self._after = values.expected(line, spans, len(line) > _LONG_LINE, self._after)
            return cut(line, spans)
        is_coded = any(each in line for each in (b"%", b"&", b"\\"))
        raw = self._spans(line, rules) if is_coded else []
        plain, places = _decoded(line)
        found = self._spans(plain, rules | _suspicious_lines(plain).get(0, 0))
        self._after = values.expected(plain, found, len(plain) > _LONG_LINE, self._after)
        spans = [
            Span(places[each.begin][0], places[each.end - 1][1], each.kind)
            for each in found
            if each.end > each.begin
        ]
        return cut(line, raw + spans)

    def _spans(self, line: bytes, rules: int) -> list[Span]:
        lowered = line.lower()
        spans = list(values.continued(self._after, line))
        for rule in _of(rules):
            spans += _matches(rule, lowered if rule.is_lowered else line, line)
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
        begin, end = _KEY_BEGIN.search(line), _KEY_END.search(line)
        if begin is not None:
            is_whole = end is not None and end.end() > begin.end()
            self._key_lines_left = 0 if is_whole else _MAX_KEY_LINES
            rest = line[end.end() :] if is_whole and end is not None else b""
            return line[: begin.start()] + b"[scrubbed private-key]" + rest
        if not self._key_lines_left:
            return line
        self._key_lines_left = 0 if end is not None else self._key_lines_left - 1
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
    """Replace each span by its mark; of spans that overlap the first has the name."""
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


def _without_own(pattern: Pattern[bytes], data: bytes) -> bytes:
    spans = []
    for begin, end in windows(data):
        for match in pattern.finditer(data, begin, end):
            has_group = "secret" in match.re.groupindex and match.start("secret") >= 0
            spans.append(Span(*(match.span("secret") if has_group else match.span()), ""))
    return cut(data, [each for each in spans if each.end > each.begin]).replace(
        b"[scrubbed ]", b"[scrubbed]"
    )


def _decoded(line: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the line as a person reads it, and where each of its bytes begins and ends."""
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
    """Map the number of each suspicious line to the rules to apply, as bits."""
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
    """Yield one place of each needle in each line, with its rules."""
    # Finding one byte is much faster than several, and lines of numbers lack many letters.
    absent = {byte for byte in _BYTES if byte not in text}
    for needle, rules in needles:
        if absent.isdisjoint(needle):
            for place in _places(text, needle):
                yield place, rules


@lru_cache(maxsize=1024)
def _of(rules: int) -> tuple[ScrubRule, ...]:
    return tuple(rule for at, rule in enumerate(RULES) if rules >> at & 1)


def _places(searched: bytes, needle: bytes, data: bytes | None = None) -> Iterator[int]:
    """Yield one position in each line with the needle; `data` has the lines, if not `searched`."""
    lines = searched if data is None else data
    at = searched.find(needle)
    while at >= 0:
        yield at
        end = lines.find(b"\n", at)
        at = searched.find(needle, end) if end >= 0 else -1
