# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The one scrubber: it removes secrets from every log, file, metric, page and bundle mwatch writes.

It works on bytes, because a log need not be text. Only lines with a suspicious word are examined.
A secret is replaced by `[scrubbed KIND]`. The state of one stream is kept: a private key spans many
lines. A secret without a known shape or name is missed; for those there are the user's own
patterns, for all of mwatch in `MWATCH_SCRUB`, one per line.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache, partial
from typing import Callable, Iterable, Iterator, Mapping, Match, NamedTuple, Pattern, Sequence


class ScrubRule(NamedTuple):
    """Applied only to lines with one of its lower-case needles; removes its group `secret`."""

    name: str
    needles: tuple[bytes, ...]
    pattern: Pattern[bytes]


def _rule(name: str, needles: str, pattern: str, flags: int = 0) -> ScrubRule:
    encoded = tuple(each.encode() for each in needles.split())
    return ScrubRule(name, encoded, re.compile(pattern.encode(), flags | re.VERBOSE))


def _token(name: str, needles: str, shape: str) -> ScrubRule:
    """Make a rule for a word recognized by its beginning and length."""
    pattern = rf"(?<![A-Za-z0-9_-]) (?P<secret> {shape} ) (?![A-Za-z0-9])"
    return _rule(name, needles, pattern)


# What follows the name of a secret: `=`, `:`, JSON's `": "`, Megatron's row of dots, a flag's
# blank. Values that are not secrets: nothing, a boolean, a variable, one scrubbed already.
_SET = r"""\\*["']? (?: \s* [=:] \s* | \s+ \.{2,} \s+ ) (?:[bB]?\\*["'])?"""
_NO_VALUE = r"""(?! (?: none|null|nil|true|false|undefined|unset|set|yes|no|\*+|x{3,} ) (?![\w.-])
    | [$<{\[(%] )"""
_NO_NUMBER = r"(?! [-+]? [0-9.]+ (?:e[-+]?[0-9]+)? (?![\w]) )"
_WORD = r"""(?: [^\s"',;&)}\]\\] | \\(?!["']) )"""  # JSON inside JSON: its quotes stay
_STRONG = r"""(?: pass(?:word|wd|phrase) | secret (?:[_-]?access)? [_-]?key | (?:api|account|access|
    shared[_-]?access|signing|encryption|storage|subscription) [_-]?key | apikey )"""
_MIXED = r"(?=[A-Za-z_.+/=~-]*[0-9]) (?=[0-9_.+/=~-]*[A-Za-z])"  # letters and digits

RULES: tuple[ScrubRule, ...] = (
    _token("aws-key", "akia asia", r"(?:AKIA|ASIA) [A-Z0-9]{16}"),
    _token("google-key", "aiza", r"AIza [A-Za-z0-9_-]{35}"),
    _token("google-token", "ya29. gocspx-", r"ya29\. [A-Za-z0-9._-]{20,} | GOCSPX- [\w-]{20,}"),
    _token("google-token", "1//0", r"1//0 [A-Za-z0-9_-]{30,}"),
    _token("hugging-face", "hf_ api_org_", r"(?:hf|api_org)_ [A-Za-z0-9]{30,}"),
    _token("github", "ghp_ gho_ ghu_ ghs_ ghr_", r"gh[pousr]_ [A-Za-z0-9]{30,}"),
    _token("github", "_pat_", r"github_pat_ [A-Za-z0-9_]{22,}"),
    _token("gitlab", "glpat- gldt- glrt- glcbt-", r"gl (?:pat|dt|rt|cbt) - [A-Za-z0-9_.-]{20,}"),
    _token("slack", "xox xapp-", r"(?:xox[abeoprs]|xapp) - [A-Za-z0-9-]{10,}"),
    _token("api-key", "sk-", r"sk- (?=[A-Za-z_-]*[0-9]) [A-Za-z0-9_-]{20,}"),
    _token("api-key", "k_live_ k_test_", r"[sr]k_ (?:live|test)_ [A-Za-z0-9]{16,}"),
    _token("nvidia", "nvapi-", r"nvapi- [A-Za-z0-9_-]{30,}"),
    _token("wandb", "wandb", r"(?:local-)? wandb_v[0-9]+_ [A-Za-z0-9_-]{20,}"),
    _token("databricks", "dapi", r"dapi [0-9a-f]{32} (?:-[0-9]+)?"),
    _token("registry", "_pat_ pypi- npm_", r"(?:dckr_pat_|pypi-|npm_) [A-Za-z0-9_-]{24,}"),
    _token("vault", "hvs.", r"hvs\. [A-Za-z0-9_-]{24,}"),
    _token("azure-client", "q~", r"[A-Za-z0-9_~.-]{3} [78]Q~ [A-Za-z0-9_~.-]{31,34}"),
    _rule("azure-key", "==", r"(?<![A-Za-z0-9+/]) (?P<secret> [A-Za-z0-9+/]{86}== ) (?![=\w])"),
    _token("alibaba", "ltai", r"LTAI (?=[A-Za-z]*[0-9]) [A-Za-z0-9]{12,26}"),
    _token("api-key", "gsk_ xai- pplx-", r"(?:gsk_|xai-|pplx-) [A-Za-z0-9]{30,}"),
    _token("jwt", "eyj", r"eyJ [\w-]{8,} \. eyJ [\w-]{8,} \. [\w-]{8,}"),
    _token("neptune", "eyj", r"eyJhcGlf [A-Za-z0-9+/]{40,} ={0,2}"),
    _rule("webhook", "://", r"""(?:hooks\.slack\.com/(?:services|workflows)/
        |/api/webhooks/) (?P<secret> [\w/-]{20,} )"""),
    _rule("wandb", "wandb", r"""key ["']? \s* [=:] \s* ["']? (?P<secret> [0-9a-f]{40} )
        (?![0-9a-f])"""),
    _rule("wandb", "wandb", r"wandb \s login \s (?:--\S+\s)* (?P<secret> [0-9a-f]{40} )"),
    _rule("signature", "sig= x-amz- x-goog-", r"""(?: (?<![A-Za-z0-9])
        (?: sig | x-(?:amz|goog)-(?:signature|security-token|credential) ) ) =
        (?P<secret> [A-Za-z0-9%+/=_.-]{16,} )""", re.IGNORECASE),
    _rule("signature", "signature=", r"""(?: accesssignature= | [?&;]signature=
        | aws4-hmac-sha256 .{1,400} signature= ) (?P<secret> [A-Za-z0-9%+/=_.~-]{16,} )""",
        re.IGNORECASE),
    _rule("registry", '"auth"', r""""auth" \s* : \s* " (?P<secret> [A-Za-z0-9+/]{8,}={0,2} ) " """),
    _rule("cookie", "cookie", r"cookie \s* : \s* (?P<secret> [^\s=;,'\"]+=[^'\"]{8,} )",
        re.IGNORECASE),
    _rule("flag", "curl", r"""curl \s .{0,400}? \s (?:-u|--user) [\s=]? ["']? [^\s:'"]+ :
        (?P<secret> [^\s'"]+ )"""),
    _rule("netrc", "passw", r"login \s+ \S+ \s+ password \s+ (?P<secret> \S{4,} )"),
    _rule("header", "authorization", rf"""authorization {_SET}
        (?: (?:bearer|basic|token|digest) \s+ )? {_NO_VALUE} (?P<secret> {_WORD}{{8,}} )""",
        re.IGNORECASE),
    _rule("header", "bearer", r"bearer \s+ (?=[A-Za-z._~+/=-]*[0-9]) (?P<secret> [\w.~+/=-]{16,} )",
        re.IGNORECASE),
    _rule("url", "://", r"""[A-Za-z][A-Za-z0-9+.-]{0,31} :// [^\s/:@"'<>]{0,256} :
        (?P<secret> [^\s/@"'<>]{1,512} ) @ """),
    _rule("url", "://", r":// (?=[A-Za-z_-]*[0-9]) (?P<secret> [A-Za-z0-9_.~%+-]{20,512} ) @"),
    _rule("password", "passw passp key", rf"""{_STRONG} {_SET} {_NO_VALUE}
        (?P<secret> {_WORD}{{4,}} )""", re.IGNORECASE),
    _rule("secret", "secret", rf"secret {_SET} {_NO_VALUE} (?P<secret> {_WORD}{{8,}} )",
        re.IGNORECASE),
    _rule("token", "token", rf"""token (?<![A-Za-z0-9]token) {_SET} {_NO_VALUE} {_NO_NUMBER}
        {_MIXED} (?P<secret> [A-Za-z0-9_.+/=~-]{{16,}} )""", re.IGNORECASE),
    _rule("flag", "passw passp secret key token", rf"""(?<![\w-]) -- (?:[a-z0-9]+[_-]){{0,6}}
        (?: {_STRONG} | secret | (?:auth|access|api|hf|hub|bearer|sas|session)[_-]token ) \s+
        {_NO_VALUE} (?P<secret> [^\s-]\S{{3,}} )""", re.IGNORECASE),
    _rule("flag", "key token", rf"""(?<![\w-]) -- (?:[a-z0-9]+[_-]){{0,6}} (?:token|key) \s+
        {_NO_VALUE} {_MIXED} (?P<secret> [A-Za-z0-9_.+/=~-]{{16,}} )""", re.IGNORECASE),
)  # fmt: skip

KEY_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_END = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_LINE = re.compile(rb"(?P<secret>[A-Za-z0-9+/=]{16,})[\"',\s]*$")


_KEY_NEEDLE = b"-----begin"
_NEEDLES = {
    needle: sum(1 << at for at, rule in enumerate(RULES) if needle in rule.needles)
    for needle in sorted({needle for rule in RULES for needle in rule.needles} | {_KEY_NEEDLE})
}  # each with its rules as bits
_BYTES = sorted(set(b"".join(_NEEDLES)))
_MAX_KEY_LINES = 256
VARIABLE = "MWATCH_SCRUB"


class Scrubber:
    """`patterns`: the user's own, besides `MWATCH_SCRUB`; their group `secret` or match is cut."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        """Raises ValueError for an invalid pattern."""
        given = _environment_patterns(os.environ.get(VARIABLE, ""))
        self._own = (*(compiled(each) for each in patterns), *given)
        self._key_lines_left = 0

    def scrub(self, data: bytes) -> bytes:
        """Scrub whole lines, or one line without its newline."""
        for pattern in self._own:
            data = pattern.sub(partial(_cut, b"[scrubbed]"), data)
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
        # Lines of other ranks may be interleaved with those of the key.
        return KEY_LINE.sub(partial(_cut, b"[scrubbed private-key]"), line)


def compiled(pattern: str) -> Pattern[bytes]:
    """Compile a user's pattern. Raises ValueError."""
    try:
        return re.compile(pattern.encode("utf-8", "surrogateescape"))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{pattern!r} is not a pattern: {error}") from None


def patterns_in(text: str) -> list[str]:
    """Return the patterns in the variable's text: one per line."""
    return [each.strip() for each in text.split("\n") if each.strip()]


@lru_cache(maxsize=4)
def _environment_patterns(text: str) -> tuple[Pattern[bytes], ...]:
    """Skip invalid patterns: `mwatch-run` reports them at its start."""
    found = []
    for each in patterns_in(text):
        with contextlib.suppress(ValueError):
            found.append(compiled(each))
    return tuple(found)


def scrub_text(text: str, patterns: Sequence[str] = ()) -> str:
    return Scrubber(patterns).text(text)


def _suspicious_lines(data: bytes) -> dict[int, int]:
    """Map the number of each suspicious line to the rules to apply, as bits."""
    lowered = data.lower()
    # Finding one byte is much faster than several, and lines of numbers lack many letters.
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
def _of(rules: int) -> tuple[tuple[ScrubRule, Callable[[Match[bytes]], bytes]], ...]:
    """Return each rule with its replacement function."""
    return tuple(
        (rule, partial(_cut, b"[scrubbed " + rule.name.encode() + b"]"))
        for at, rule in enumerate(RULES)
        if rules >> at & 1
    )


def _places(lowered: bytes, needle: bytes) -> Iterator[int]:
    """Yield one position in each line with the needle."""
    at = lowered.find(needle)
    while at >= 0:
        yield at
        end = lowered.find(b"\n", at)
        at = lowered.find(needle, end) if end >= 0 else -1


def _cut(mark: bytes, match: Match[bytes]) -> bytes:
    has_group = "secret" in match.re.groupindex and match.start("secret") >= 0
    begin, end = match.span("secret") if has_group else match.span()
    whole, start = match.group(), match.start()
    return whole[: begin - start] + mark + whole[end - start :]


MAX_VARIABLES = 1024
MAX_VALUE_CHARS = 4096
_MAX_NAME_CHARS = 256
_BY_NAME = "[scrubbed by its name]"
# Parts of a name. TOKENIZER does not match, and neither does a path or a host.
_SECRET = re.compile(
    r"(?:^|_)(?:[A-Z0-9]*(?:PASSWORD|PASSWD|PASSPHRASE|SECRETS?|CREDENTIALS?|APIKEY)|TOKEN|PAT|PWD"
    r"|AUTH|KEY|SAS|COOKIE|SIGNATURE|WEBHOOK|DSN|LICENSE|CONNECTION_?STRING|NETRC|DOCKERCONFIGJSON)"
    r"(?:_(?:VALUE|B64|BASE64|JSON|DATA|ID))?[0-9]*$"
)
_PLAIN = re.compile(r"^(?:PWD|OLDPWD)$|_(?:FILE|PATH|DIR|NAME|HOST|PORT|URI)$")
_IS_PLAIN_VALUE = re.compile(r"(?:|[01]|true|false|yes|no|none)", re.IGNORECASE)


def scrubbed_environment(environ: Mapping[str, str], scrubber: Scrubber) -> dict[str, str]:
    """Return the variables, sorted and limited, without secrets.

    Stricter than in a log, where names are guessed: `HF_TOKEN=x` is a secret, however short.
    """
    found: dict[str, str] = {}
    for name in sorted(environ)[:MAX_VARIABLES]:
        shown = scrubber.text(name)[:_MAX_NAME_CHARS]
        found[shown] = _value(name, environ[name], scrubber)
    return found


def is_secret_name(name: str) -> bool:
    """Whether a variable, or a flag without its dashes, holds a secret."""
    upper = name.upper().replace("-", "_").replace(".", "_")
    return _SECRET.search(upper) is not None and _PLAIN.search(upper) is None


def _value(name: str, value: str, scrubber: Scrubber) -> str:
    if is_secret_name(name) and not _IS_PLAIN_VALUE.fullmatch(value):
        return _BY_NAME
    before = f"{name}="
    text = scrubber.text(before + value)  # rules look at the name too
    clean = text[len(before) :] if text.startswith(before) else scrubber.text(value)
    return clean[:MAX_VALUE_CHARS]


def scrubbed(argv: Sequence[str], scrubber: Scrubber) -> list[str]:
    """Scrub a command line; a value is read with the flag before it: `--password`, `hunter2`."""
    clean: list[str] = []
    for before, word in zip(("", *argv), argv):
        text = scrubber.text(f"{before} {word}") if before.startswith("-") else ""
        is_value = text.startswith(before + " ") and text != f"{before} {word}"
        chosen = text[len(before) + 1 :] if is_value else scrubber.text(word)
        clean.append(chosen.encode("utf-8", "replace").decode("utf-8"))
    return clean
