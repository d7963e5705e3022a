# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Locates the values of suspicious names in a line: settings, flags, URLs, random words.

A quoted value extends to its closing quote, an unquoted one to the next blank, and a password alone
on its line to the end of the line. Quoted text after a word such as `password` is also removed, and
`pass` counts as a password if a user name precedes it. A name without a value at the end of a line
makes the next lines suspicious, or those of the indented block below it, and so does a secret that
reaches the end of its line.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple, Sequence

from mwatch_trainer.scrub.names import (
    HARMLESS,
    PASSWORD,
    STRONG,
    WEAK,
    is_opaque,
    is_pass,
    kind_of,
    looks_chosen,
    looks_random,
)


class Span(NamedTuple):
    begin: int
    end: int
    kind: str


class After(NamedTuple):
    """What the next lines are expected to contain after this one."""

    what: str
    kind: int
    lines: int
    indent: int = -1
    """Indentation of the line with the name; a block below it is indented further."""


NOTHING = After("", HARMLESS, 0)
NAME_NEEDLES = (
    b"pass", b"pwd", b"pw", b"secret", b"token", b"key", b"cred", b"auth", b"jwt", b"sas",
    b"cookie", b"signature", b"connstr", b"nstring", b"n_string", b"dsn", b"licen", b"psk",
    b"netrc", b"webhook", b"otp", b"_pat", b"login", b"logged", b"bearer", b"pagerduty",
)  # fmt: skip
_SEPARATOR = (
    rb"""(?:\s{0,16}(?:=>|:=|[=:])\s{0,16}|\s{1,64}\.{2,200}\s{1,8}|>|["']\s?,\s?(?=["']))"""
)
_NAME = re.compile(  # the lookahead group keeps the tail from being backtracked into
    rb"(?:pass|pwd|pw|secret|token|key|cred|auth|jwt|sas|cookie|signature|connstr|connection|dsn"
    rb"|licen|psk|netrc|webhook|pat|otp)(?=(?P<tail>[\w.-]{0,48}))(?P=tail)"
    rb"\\{0,4}[\"']?\]?(?P<sep>" + _SEPARATOR + rb")"
)
_QUOTES = (b'"', b"'")
_SENTENCES = (
    re.compile(
        rb"pass(?:word|phrase|wd|code)\s(?:(?:for|of|to)\s\S{1,64}\s)?(?:is|was)\s(?:now\s)?"
        rb"(?!(?:not|the|too|set|unset|in|no|never|still|also|asked|being|expected)\b)"
        rb"(?!(?:wrong|incorrect|invalid|missing|empty|expired|required|needed|stored|read|given"
        rb"|correct|optional|hidden|unknown|refused|rejected|accepted)\b)[\"'`]?(?P<secret>\S{4,})"
    ),
    re.compile(rb"pass(?:word|phrase|code)\s(?:for|of)\s[^:\"]{1,80}:\s(?P<secret>[^\s:].*)"),
)
_BEFORE_QUOTE = re.compile(
    rb"(?:pass(?:word|phrase|wd|code)|pwd|(?P<store>secrets?))(?:\s(?:is|was|now|set|to|as|used|given"
    rb"|supplied|provided|value|string|being)){0,3}\s{1,4}(?=\\*[\"'`])"
)
_CLOSING = re.compile(rb"\\*[\"'`]\s?(?:,\s{0,4}\\*[\"'`{\[]|[}\])]|,?\s{0,4}$)")
_QUOTE_END = re.compile(rb"\\*\"(?=\s?[,}\])]|\s{0,4}$)")
_USER = re.compile(rb"(?:user|usr|login|uid|account|admin)\w{0,8}\\?[\"']?\s{0,2}[=:]")
_USER_BYTES_BEFORE = 128
_PIN = re.compile(rb"[0-9]{4,}")
_PAIR = re.compile(
    rb"(?:name|key)\\*[\"']?\s{0,4}[:=]\s{0,4}\\*[\"']?(?P<name>[\w.-]{2,64})\\*[\"']?,?\s{1,4}"
    rb"\\*[\"']?value\\*[\"']?\s{0,4}[:=]\s{0,4}"
)
_FLAG = re.compile(
    rb"-(?<![\w-]-)(?P<name>-[A-Za-z][\w.-]{0,63}|[A-Za-z][\w.-]{2,63})[\"']?,?[ \t]{1,8}(?=[^-\s])"
)
_NAME_BYTES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_BASE64 = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/="
_NAME_BYTES_BEFORE = 64
_QUOTE = re.compile(rb"[bBuUrRfF]{0,2}(\\*[\"'`])")
_LIMIT = 256
_PIECE = rb"[^\s\"'`;&<\\]*"
_UNQUOTED = re.compile(_PIECE + rb"(?:(?:\\(?![\"'])|[\"'`](?![\s,;:)}\]]|$))" + _PIECE + rb")*")
_MAX_NAMES = 2000  # no normal log line has more; the rest of such a line is removed
_TRAILING = b",)]}.:"
_NO_VALUE = re.compile(
    rb"(?:none|null|nil|true|false|undefined|unset|set|yes|no|\*+|x{3,}|\.{3}|redacted|hidden|masked"
    rb"|str|string|int|bool|bytes|required|optional|missing|invalid|empty|default)?"
    rb"|\$\{?[A-Z_][A-Z0-9_]*\}?|\$\(.*|\$\{\{?.*\}|<[^<>]*>?|\{[\w.]*\}|\{\{.*|%[sr]|%\(\w*\)s"
    rb"|[\[({][\"'\[{(].*|[\[({][\])}].*|\[scrubbed.*|\[[0-9]+ characters\].*"
    rb"|(?:self|cls|args|os|config|cfg|kwargs|opts?|options|settings|hparams|params|getpass|request)"
    rb"[.\[(].*|Optional\[.*|lambda\b.*|\w*\(\)?",
    re.IGNORECASE | re.DOTALL,
)
_VARIABLE = re.compile(rb"\$[a-z]")  # `$ecret` is a password, `$SECRET` a variable
_NUMBER = re.compile(rb"[-+]?[0-9.]+(?:e[-+]?[0-9]+)?(?:ms|s|%)?", re.IGNORECASE)
_PATH = re.compile(rb"(?:~|\.{0,2})/[\w./@:+=~%-]*")
_AWS_BYTES = 40  # an AWS secret key may look like a path
_SPECIAL = re.compile(rb"<[|/]?[\w/|]+[|]?>|\[[A-Z_0-9]+\]")  # a tokenizer's special tokens
_PREFIX = re.compile(rb"(?:hf_|sk-|gh[pousr]_|glpat-|nvapi-|xox[a-z]-|AKIA|AIza)[\w-]")
_LINE_START = re.compile(rb"\s*(?:\[[\w .:-]{1,24}\]:?\s*)?(?:-\s+)?(?:export\s+|ENV\s+)?[\"']?")


def named(line: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield the values of settings: `name=value`, JSON, YAML, XML, Megatron's dotted arguments."""
    done = 0
    for count, match in enumerate(_NAME.finditer(lowered)):
        if count == _MAX_NAMES:
            yield Span(match.start(), len(line), "long-line")
            return
        if match.start() < done:
            continue
        before = line[max(match.start() - _NAME_BYTES_BEFORE, 0) : match.start()]
        begin = match.start() - len(before) + len(before.rstrip(_NAME_BYTES))
        name = line[begin : match.start("sep")].rstrip(b"\\\"']").decode("utf-8", "replace")
        separator = match.group("sep").strip()
        opening = line[max(begin - 1, 0) : begin]
        if (separator == b">" and opening != b"<") or (
            separator[:1] in _QUOTES and opening not in _QUOTES  # last word of a quoted text
        ):
            continue
        is_first = _LINE_START.fullmatch(line, 0, begin) is not None
        owns_line = is_first and separator[:1] in (b":", b".")
        kind = _kind_at(name, separator, lowered, begin)
        span = _accepted(line, match.end(), name, kind, owns_line=owns_line)
        if span is not None:
            yield span
            done = span.end
    for match in _PAIR.finditer(line):
        name = match.group("name").decode()
        span = _accepted(line, match.end(), name, kind_of(name))
        if span is not None:
            yield span
    for sentence in _SENTENCES:
        for match in sentence.finditer(lowered):
            begin, end = match.span("secret")
            yield Span(begin, _before_quote(line, begin, end), "password")
    yield from _in_quotes(line, lowered)


def _in_quotes(line: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield quoted text after `password`; a single word after `secret` is a Kubernetes object."""
    for match in _BEFORE_QUOTE.finditer(lowered):
        begin, end, is_quoted = _value(line, match.end())
        value = line[begin:end]
        is_password = match.group("store") is None or b" " in value.strip()
        if is_quoted and is_password and is_secret_value(value, PASSWORD, ""):
            yield Span(begin, end, "password")


def _before_quote(line: bytes, begin: int, end: int) -> int:
    """Return where a value ends that extends to the end of the line or of its JSON string."""
    closing = _QUOTE_END.search(line, begin, end) if b'"' in line[:begin] else None
    return end if closing is None else closing.start()


def _kind_at(name: str, separator: bytes, lowered: bytes, begin: int) -> int:
    kind = kind_of(name)
    if kind is not WEAK or not is_pass(name):
        return kind
    if _USER.search(lowered, max(begin - _USER_BYTES_BEFORE, 0), begin):
        return PASSWORD
    return HARMLESS if separator[:1] == b":" and name[-4:].isupper() else WEAK


def _accepted(
    line: bytes, at: int, name: str, kind: int, *, owns_line: bool = False
) -> Span | None:
    if kind is HARMLESS:
        return None
    begin, end, is_quoted = _value(line, at)
    value = line[begin:end]
    if not is_secret_value(value, kind, name):
        return None
    if not is_quoted and kind is PASSWORD and owns_line:
        end = _end_of_own_line(line, begin)
    elif not is_quoted and end - begin >= _LIMIT - len(_TRAILING):
        whole = _UNQUOTED.match(line, begin)
        end = end if whole is None else whole.end()
    return Span(begin, end, _label(name))


def _end_of_own_line(line: bytes, begin: int) -> int:
    """Return the end of a value that extends to the end of the line, before a quote that encloses
    the whole line."""
    mark = line[:begin].lstrip(b" \t-")[:1]
    text = line.rstrip()
    inner = text.rstrip(b" ,;)}]")
    is_whole = mark in (b'"', b"'") and inner[-1:] == mark and len(inner) - 1 > begin
    return len(inner[:-1].rstrip(b"\\")) if is_whole else len(text)


def _label(name: str) -> str:
    lowered = name.lower()
    if "token" in lowered:
        return "token"
    return "secret" if "secret" in lowered and "key" not in lowered else "password"


def _value(line: bytes, at: int) -> tuple[int, int, bool]:
    """Return where the value begins and ends, and whether it is quoted."""
    quote = _QUOTE.match(line, at)
    if quote is not None and not _CLOSING.match(line, at):
        mark, begin = quote.group(1), quote.end()
        end = line.find(mark, begin)
        while end > 0 and mark[:1] != b"\\" and line[end - 1 : end] == b"\\":
            slashes = end - len(line[begin:end].rstrip(b"\\")) - begin
            if slashes % 2 == 0:
                break
            end = line.find(mark, end + 1)
        if end >= 0:
            return begin, end, True
        at = begin
    found = _UNQUOTED.match(line, at, at + _LIMIT)
    if found is None:
        return at, at, False
    return at, at + len(found.group().rstrip(_TRAILING)), False


def is_secret_value(value: bytes, kind: int, name: str) -> bool:
    """Whether the value of a suspicious name is a secret, judged by the value."""
    head = value[:_LIMIT]
    if not head or (_NO_VALUE.fullmatch(head) and not _VARIABLE.match(head)):
        return False
    if _SPECIAL.fullmatch(head) or head.decode("latin-1") == name:
        return False
    if kind is PASSWORD:
        is_folder = name.lower().endswith("pwd") and head[:1] in (b"/", b"~")
        is_count = is_pass(name) and _NUMBER.fullmatch(head) and not _PIN.fullmatch(head)
        return len(head) >= 2 and not is_folder and not is_count
    if _NUMBER.fullmatch(head) or (b" " in head and not looks_random(head)):
        return False
    if _PATH.fullmatch(head) and not looks_random(head) and len(head) != _AWS_BYTES:
        return False
    if kind is STRONG:
        return len(head) >= 4
    if is_pass(name) and looks_chosen(head):
        return True
    is_login = name.lower().endswith("auth") and re.fullmatch(rb"[^\s:/]+:[^\s:/]{3,}", head)
    return bool(is_login or _PREFIX.match(head)) or looks_random(head, 12)


_FLAG_WORDS = ("token", "key", "auth", "pass")


def of_flags(line: bytes) -> Iterator[Span]:
    """Yield the values of suspicious flags: `--db-pass X`, `'--token', 'X'`, `-storepass X`."""
    for match in _FLAG.finditer(line):
        name = match.group("name").lstrip(b"-").decode("utf-8", "replace")
        kind = _kind_of_flag(name)
        if kind is HARMLESS:
            continue
        begin, end, _ = _value(line, match.end())
        if is_secret_value(line[begin:end], kind, name):
            yield Span(begin, end, "flag")


def _kind_of_flag(name: str) -> int:
    kind = kind_of(name)
    return STRONG if kind is WEAK and name.lower().endswith(_FLAG_WORDS) else kind


_ADDRESS = re.compile(rb"://(?P<rest>[^\s\"'<>`\\]+)")
_PORT = re.compile(rb"[0-9]{1,5}(?:[/?,;]|$)")
_HOST = re.compile(rb"[A-Za-z0-9.\[$_{%-]")
_MIN_USER = 16


def in_addresses(line: bytes) -> Iterator[Span]:
    """Yield passwords in URLs, `scheme://user:password@host`, and tokens in place of the user."""
    for match in _ADDRESS.finditer(line):
        begin = match.start("rest")
        for piece in match.group("rest").split(b"://"):
            yield from _login(piece, begin)
            begin += len(piece) + 3


def _login(piece: bytes, begin: int) -> Iterator[Span]:
    at, colon = piece.rfind(b"@"), piece.find(b":")
    if at <= 0 or _HOST.match(piece, at + 1) is None or piece.startswith(b"sha256:", at + 1):
        return
    user = piece[:colon] if 0 <= colon < at else piece[:at]
    if any(each in user for each in (b"/", b"?", b"#")):
        return
    if 0 <= colon < at:
        password = piece[colon + 1 : at]
        if password and not _PORT.match(password) and not _NO_VALUE.fullmatch(password[:_LIMIT]):
            yield Span(begin + colon + 1, begin + at, "url")
    elif len(user) >= _MIN_USER and re.search(rb"[0-9]", user):
        yield Span(begin, begin + at, "url")


_LONG_WORD = re.compile(rb"[A-Za-z0-9+/=_~-]{20,}")
_NEARBY = re.compile(
    rb"(?<![a-z])(?:api.?key|keys?|tokens?|secrets?|passw\w*|credentials?|creds?|bearer|login|logged"
    rb"|auth\w*|apikey|pat|pwd|pagerduty)(?![a-z])"
)
_VERSION = re.compile(
    rb"commit|git|sha|rev|head|hash|digest|checksum|branch|merge|version|@|uuid|guid|fingerprint"
)
_UUID = re.compile(rb"(?:[A-Za-z]{2,4}-)?[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NEAR_BYTES = 64


def near(line: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield long random words shortly after a suspicious one."""
    for match in _LONG_WORD.finditer(line):
        begin, end = match.span()
        begin += line[max(begin - 1, 0) : begin] == b"\\"  # skip the n of an escape such as \\n
        word = line[begin : min(end, begin + _LIMIT)]
        if b"/" in word and (word[:1] == b"/" or len(word) != 40) and not word.endswith(b"="):
            continue
        if line[end : end + 1] in (b".", b"/") or line[max(begin - 1, 0) : begin] in (b".", b"/"):
            continue
        if not looks_random(word, 20) or _UUID.fullmatch(word):
            continue
        before = lowered[max(begin - _NEAR_BYTES, 0) : begin]
        if _NEARBY.search(before) and not _VERSION.search(before):
            yield Span(begin, end, "random-word")


_WORD = re.compile(rb"[A-Za-z0-9_~-]{20,}")
_SEGMENT = re.compile(rb"[A-Za-z0-9]{20,}")
_PREFIXED = re.compile(rb"(?P<kind>[A-Za-z]{2,12})[_-](?:[a-z0-9]{1,6}[_-])?")
_MANGLED = (b"_Z", b"__Z")  # mangled C++ names alternate like a key
_OF_VERSIONS = frozenset((
    b"sha", b"sha256", b"md", b"md5", b"commit", b"git", b"blob", b"container", b"docker", b"image",
    b"layer", b"digest", b"hash", b"checksum", b"rev", b"uid", b"pod", b"node", b"job", b"run",
    b"session", b"trace", b"span", b"id", b"cri", b"kernel", b"triton", b"graph", b"cache",
    b"index", b"actor", b"worker", b"task", b"etag", b"snapshot", b"uuid", b"version", b"build",
    b"dataset", b"shard", b"checkpoint", b"ckpt", b"model", b"step", b"iter", b"rank", b"object",
))  # fmt: skip
LONG_RUN = 20
"""Words with at least this many consecutive letters and digits are checked in any context."""


def opaque(line: bytes, lowered: bytes) -> Iterator[Span]:
    """Yield machine-generated words: keys of services without a rule.

    Hashes of commits, files and containers are kept, and so is everything inside a path.
    """
    for match in _WORD.finditer(line):
        begin, end = match.span()
        word = line[begin : min(end, begin + _LIMIT)]
        if word.startswith(_MANGLED) or _UUID.fullmatch(word) or _in_path(line, begin, end):
            continue
        core = max(_SEGMENT.findall(word), key=len, default=b"")
        if is_opaque(core):
            yield Span(begin, end, "random-word")
        elif len(core) >= 32 and looks_random(core) and len(set(core)) >= 8:
            prefix = _PREFIXED.match(word)
            is_named = prefix is not None and prefix.end() == word.find(core)
            is_upper = not re.search(rb"[a-z]", core) and len(core) >= 40
            is_hash = prefix is not None and prefix.group("kind").lower() in _OF_VERSIONS
            if (is_named or is_upper) and not is_hash and not is_version(line, begin):
                yield Span(begin, end, "random-word")


def _in_path(line: bytes, begin: int, end: int) -> bool:
    """Whether the word is part of a path, of a file name with an extension, or of a dotted name."""
    before, after = line[max(begin - 1, 0) : begin], line[end : end + 2]
    return (
        before in (b"/", b"\\")
        or after[:1] in (b"/", b"\\")
        or (after[:1] == b"." and after[1:].isalnum())
    )


def is_version(line: bytes, begin: int) -> bool:
    """Whether the preceding words mark this as the hash of a version."""
    return _VERSION.search(line[max(begin - _NEAR_BYTES, 0) : begin].lower()) is not None


_OPEN = re.compile(
    rb"(?P<name>[\w.-]{2,64})\\*[\"']?\s{0,4}(?:=>|:=|[:=])\s{0,4}(?:[|>][-+]?|\\|[\"'(]{1,3})?\s*$"
)
_OPEN_FLAG = re.compile(rb"--(?P<name>[A-Za-z][\w.-]{1,63})[\"']?,?\s{0,4}\\?\s*$")
_HEADING = re.compile(
    rb"(?P<indent>\s*)(?:(?:secrets?|credentials?|stringdata)\s{0,4}:?\s{0,4}"
    rb"|kind:\s{1,4}secret\s*)"
)
_BLOCK_LINES = 32
_BELOW = re.compile(rb"\s*(?:-\s+)?\\*[\"']?[\w.-]{1,64}\\*[\"']?\s{0,4}[:=]\s{0,4}")
_OPEN_FIELD = re.compile(
    rb"(?:name|key)\\*[\"']?\s*[:=]\s*\\*[\"']?(?P<name>[\w.-]{2,64})\\*[\"']?,?\s*$"
)
_LONE = re.compile(
    rb"\s*(?:\[[\w .:-]{1,24}\]:?\s*)?(?:-\s+)?\\*[\"']?(?P<secret>[^\s\"']+)"
    rb"\\*[\"']?[\s,;)}\]\\]*$"
)
_LONE_QUOTED = re.compile(rb"\s*(?:-\s+)?\\*[\"'](?P<secret>[^\"']+)\\*[\"'][\s,;)}\]\\]*$")
_FIELD = re.compile(rb"\s*[-{]?\s*\\*[\"']?value\\*[\"']?\s*[:=]\s*")
_TORN = re.compile(rb"[^\s\"',;&]+")
_TAIL_BYTES = 128
_MIN_REST = 8
_MAX_LONE = 2048


HIDDEN = b"\0"
"""Replaces each byte of an earlier scrub mark; no rule matches it as a letter."""


def continued(after: After, line: bytes) -> Iterator[Span]:
    """Yield the secrets that the previous line led to expect in this one."""
    if after.what == "torn":
        found = _TORN.match(line)
        if found is not None:
            yield Span(*found.span(), "rest")
    elif after.what in ("field", "block"):
        yield from _field(after, line)
    elif after is not NOTHING and len(line) < _MAX_LONE:
        found = _LONE.match(line) or _LONE_QUOTED.match(line)
        if found is not None and _is_expected(after, found.group("secret")):
            yield Span(*found.span("secret"), "rest" if after.what == "rest" else "password")


def _field(after: After, line: bytes) -> Iterator[Span]:
    """Yield the value of `value:` below its name, or of any field in the block below a heading."""
    found = (_FIELD if after.what == "field" else _BELOW).match(line)
    if found is None or len(line) - len(line.lstrip()) <= after.indent:
        return
    begin, end, _ = _value(line, found.end())
    value = line[begin:end]
    if _is_hidden(value) or is_secret_value(value, after.kind, ""):
        yield Span(begin, end, "password")


def _is_hidden(word: bytes) -> bool:
    return word[:1] == HIDDEN and not word.strip(HIDDEN)


def _is_expected(after: After, word: bytes) -> bool:
    if _is_hidden(word):
        return True
    if after.what == "rest":
        return not word.strip(_BASE64 + b"_-.~%") and looks_random(word, _MIN_REST)
    return word[-1:] not in b":=" and is_secret_value(word, after.kind, "")


def expected(line: bytes, spans: Sequence[Span], is_long: bool, after: After) -> After:
    """Return what the next lines may contain. Uses the scrubbed line, so that scrubbing again
    expects the same."""
    end = len(line.rstrip(b"\r \\\"'"))
    last = max((each.end for each in spans), default=-1)
    if is_long and last >= len(line) > 0:
        return After("torn", STRONG, 1)
    if 0 < end <= last:
        return After("rest", STRONG, 1)
    heading = _HEADING.fullmatch(line.lower()) if len(line) < _TAIL_BYTES else None
    if heading is not None:
        return After("block", STRONG, _BLOCK_LINES, len(heading.group("indent")))
    if after.what == "block" and after.lines > 1 and _is_below(line, after.indent):
        return after._replace(lines=after.lines - 1)
    tail = line[-_TAIL_BYTES:]
    for what, pattern in (("field", _OPEN_FIELD), ("value", _OPEN), ("value", _OPEN_FLAG)):
        found = pattern.search(tail)
        if found is None:
            continue
        name = found.group("name").decode("utf-8", "replace")
        kind = _kind_of_flag(name) if pattern is _OPEN_FLAG else kind_of(name)
        if kind is not HARMLESS:
            return After(what, kind, 2)
    if after.lines > 1 and not spans and after.what != "block":
        return after._replace(lines=after.lines - 1)
    return NOTHING


def _is_below(line: bytes, indent: int) -> bool:
    """Whether the line belongs to the block. Kubernetes prints a Secret's `kind` and the names of
    its fields at the same indentation, the left margin."""
    depth = len(line) - len(line.lstrip())
    return not line.strip() or depth > indent or (indent == 0 and line.rstrip()[-1:] == b":")


def key_line(line: bytes) -> Span | None:
    """Return the base64 at the end of a line of a private key."""
    text = line.rstrip(b"\"', \t\r\\n")
    begin = len(text.rstrip(_BASE64))
    return Span(begin, len(text), "private-key") if len(text) - begin >= 16 else None
