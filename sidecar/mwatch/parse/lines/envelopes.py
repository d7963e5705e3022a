# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Unwrap lines of log shippers and viewers: Docker's JSON, stern, Compose, CloudWatch and others.

A whole file is wrapped in one way, so its first lines decide. Each line becomes what kubectl or the
container runtime would have printed, with pod and time in front where the wrapping has them. A line
that is wrapped differently is left unchanged. Line numbers stay those of the file: the lines of an
entry with several lines are separated by carriage returns.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mwatch import json_codec

SAMPLE = 32
"""Number of first lines that decide how the file is wrapped."""
_LEAST = 8  # fewest lines to recognise a form without a distinctive mark, such as a name in front
_SHARE = 0.9
_TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
_IS_TIME = re.compile(_TIME.decode())
_NAME = re.compile(r"[^\]\s]{1,200}")
_DIGITS = 20
_EPOCHS = ((10**17, 10**9), (10**14, 10**6), (10**11, 10**3))
"""Values from which an epoch time is in nanoseconds, microseconds, milliseconds; units per s."""


class Envelope(ABC):
    as_cri = False
    """Whether lines are converted to the container runtime's format, which has partial lines."""

    @abstractmethod
    def line(self, raw: bytes) -> bytes:
        """Return the content of a line without its line end."""

    def unwrap(self, block: bytes) -> bytes:
        return b"\n".join([self.line(raw) if raw else raw for raw in block.split(b"\n")])


def envelope_of(head: Sequence[bytes]) -> Envelope | None:
    """Return how the file is wrapped; None: not at all. `head`: its first non-blank lines."""
    if head and head[0].lstrip(b"\xef\xbb\xbf")[:1] in (b"{", b"["):
        return _of_json(head)
    if head and (columns := _columns(head[0])):
        return _Table(*columns)
    return next(filter(None, (form.learnt(head) for form in _FORMS)), None)


def _of_json(head: Sequence[bytes]) -> Envelope | None:
    for raw in head[:2]:  # the first may be the rest of a longer line
        entry = _entry(raw)
        if entry is not None and _text_of(entry) is not None:
            return _DockerJson() if entry.keys() <= _DOCKER else _JsonLines()
    is_listing = sum(map(bool, map(_PRETTY_MARK.match, head))) > 0
    has_texts = sum(map(bool, map(_PRETTY.match, head))) > 0
    return _PrettyJson() if is_listing and has_texts else None


_DOCKER = frozenset({"log", "stream", "time", "attrs"})
_TEXTS = (
    ("log", frozenset({"stream", "kubernetes"})),
    ("message", frozenset({"podName", "logStreamName", "ingestionTime", "kubernetes"})),
    ("line", frozenset({"labels"})),
    ("textPayload", frozenset({"insertId", "resource", "logName", "timestamp"})),
    ("MESSAGE", frozenset({"__REALTIME_TIMESTAMP", "_HOSTNAME", "SYSLOG_IDENTIFIER"})),
)
"""The key of an entry's text, and keys of which at least one identifies this kind of entry."""
_TIMES = ("time", "@timestamp", "timestamp", "__REALTIME_TIMESTAMP")


def _entry(raw: bytes) -> dict[str, Any] | None:
    try:
        entry = json_codec.decode(raw) if raw.startswith(b"{") else None
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _text_of(entry: dict[str, Any]) -> str | None:
    for key, marks in _TEXTS:
        if key in entry and not marks.isdisjoint(entry):
            text = entry[key]
            if isinstance(text, list):  # journald prints text with colours as a list of bytes
                return bytes(each & 255 for each in text if isinstance(each, int)).decode(
                    "utf-8", "replace"
                )
            return text if isinstance(text, str) else None
    return None


def _time_of(entry: dict[str, Any]) -> str:
    at = next((entry[key] for key in _TIMES if key in entry), None)
    if isinstance(at, str) and _IS_TIME.fullmatch(at):
        return f"{at} "
    if isinstance(at, str) and at.isdecimal() and len(at) < _DIGITS:
        at = int(at)
    if not isinstance(at, int):
        return ""
    per_second = next((each for least, each in _EPOCHS if at >= least), 1)
    try:
        return f"{datetime.fromtimestamp(at / per_second, UTC).isoformat()} "
    except (ValueError, OverflowError, OSError):
        return ""


def _pod_of(entry: dict[str, Any]) -> str:
    kubernetes = _object(entry, "kubernetes")
    labels = _object(entry, "labels") or _object(_object(entry, "resource"), "labels")
    names = (
        (kubernetes.get("pod_name"), kubernetes.get("container_name")),
        (entry.get("podName"), entry.get("containerName")),
        (labels.get("pod") or labels.get("pod_name"), labels.get("container")
         or labels.get("container_name")),
        (entry.get("logStreamName"), None),
        (entry.get("_HOSTNAME"), None),
    )  # fmt: skip
    for pod, container in names:
        if isinstance(pod, str) and pod:
            return _lane(pod, container if isinstance(container, str) else "")
    return ""


def _object(entry: dict[str, Any], key: str) -> dict[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _lane(pod: str, container: str = "") -> str:
    name = f"{pod.rpartition('/')[2]}/{container or '-'}"
    return f"[pod/{name}] " if _NAME.fullmatch(name) else ""


def _with_prefix(prefix: str, text: str) -> bytes:
    pieces = text.removesuffix("\n").replace("\r", "\n").split("\n")
    return "\r".join(prefix + piece for piece in pieces).encode("utf-8", "replace")


class _JsonLines(Envelope):
    """One entry per line: Fluent Bit, stern, logcli, journald, Cloud Logging."""

    def line(self, raw: bytes) -> bytes:
        entry = _entry(raw)
        text = None if entry is None else _text_of(entry)
        if entry is None or text is None:
            return raw
        return _with_prefix(_pod_of(entry) + _time_of(entry), text)


class _DockerJson(Envelope):
    """Docker's json-file driver, which cuts lines longer than 16 KiB."""

    as_cri = True

    def line(self, raw: bytes) -> bytes:
        entry = _entry(raw)
        text = None if entry is None else _text_of(entry)
        if entry is None or text is None:
            return raw
        stream = "stderr" if entry.get("stream") == "stderr" else "stdout"
        tag = "F" if text.endswith("\n") else "P"
        head = f"{_time_of(entry) or '1970-01-01T00:00:00Z '}{stream} {tag} "
        return (head + text.removesuffix("\n").replace("\n", "\r")).encode("utf-8", "replace")


_PRETTY = re.compile(rb'\s+"(?:message|textPayload|MESSAGE|log|line)": ?("(?:[^"\\]|\\.)*"),?\s*')
_PRETTY_MARK = re.compile(rb'\s+"(?:ingestionTime|logStreamName|insertId|textPayload)": ?')
_PRETTY_STREAM = re.compile(rb'\s+"(?:logStreamName|podName|pod_name)": ?("(?:[^"\\]|\\.)*"),?\s*')


class _PrettyJson(Envelope):
    """One JSON value with a key in each line, as the aws and gcloud commands print it."""

    def __init__(self) -> None:
        self._prefix = ""

    def line(self, raw: bytes) -> bytes:
        if stream := _PRETTY_STREAM.fullmatch(raw):
            self._prefix = _lane(_string(stream[1]))
            return b""
        if text := _PRETTY.fullmatch(raw):
            return _with_prefix(self._prefix, _string(text[1]))
        if raw.strip(b" \t\r") in (b"{", b"},"):
            self._prefix = ""  # the stream may come after the text
        return b""


def _string(raw: bytes) -> str:
    try:
        return str(json_codec.decode(raw))
    except ValueError:
        return raw.decode("utf-8", "replace")


_CELL = re.compile(rb'(?:"((?:[^"]|"")*)(?:"(?=,|\r?$)|$)|([^,]*))(?:,|\r?$)')
_BEGINS_AS_TIME = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:|\d{10,19}$")
_TEXT_COLUMNS = (b"@message", b"message", b"Line", b"line")
_TIME_COLUMNS = (b"@timestamp", b"timestamp", b"Time", b"time")
_NAME_COLUMNS = (b"@logStream", b"logStreamName")


def _columns(header: bytes) -> tuple[int, int, int | None] | None:
    """Return the columns of text, time and stream; None if it is not a table of log lines."""
    names = [name.strip(b'"') for name in header.strip(b"\xef\xbb\xbf\r").split(b",")]
    text, time, stream = (
        next((names.index(each) for each in known if each in names), None)
        for known in (_TEXT_COLUMNS, _TIME_COLUMNS, _NAME_COLUMNS)
    )
    return None if text is None or time is None else (text, time, stream)


class _Table(Envelope):
    """CSV, as CloudWatch Logs Insights and Grafana export it."""

    def __init__(self, text: int, time: int, stream: int | None) -> None:
        self._text, self._time, self._stream = text, time, stream

    def line(self, raw: bytes) -> bytes:
        cells = [(each[1] or each[2] or b"").replace(b'""', b'"') for each in _CELL.finditer(raw)]
        if len(cells) <= max(self._text, self._time, self._stream or 0):
            return raw  # a further line of an entry with several lines
        time = cells[self._time]
        stream = _at(cells, self._stream).decode("utf-8", "replace")
        if not _BEGINS_AS_TIME.match(time):
            return b"" if _columns(raw) else raw
        when = time if time.isdigit() else time.replace(b" ", b"T", 1)
        prefix = _lane(stream) if stream else ""
        return prefix.encode() + _zoned(when) + cells[self._text]


def _at(cells: Sequence[bytes], place: int | None) -> bytes:
    return b"" if place is None else cells[place]


def _zoned(when: bytes) -> bytes:
    if when.isdigit():
        return _time_of({"time": when.decode()}).encode()
    text = when.decode("ascii", "replace")
    return next(
        (f"{each} ".encode() for each in (text, f"{text}Z") if _IS_TIME.fullmatch(each)), b""
    )


class _Named(Envelope):
    """Lines with the name of the writer in front; the groups of `form` capture it."""

    def __init__(self, form: re.Pattern[bytes]) -> None:
        self._form = form

    def learnt(self, head: Sequence[bytes]) -> Envelope | None:
        """Return this envelope if nearly all lines have the form and the names repeat."""
        found = [each for each in map(self._form.match, head) if each]
        names = {each["pod"] for each in found}
        is_usual = len(found) >= max(_LEAST, _SHARE * len(head))
        return self if is_usual and len(names) <= len(found) / 4 else None

    def line(self, raw: bytes) -> bytes:
        found = self._form.match(raw)
        if found is None:
            return raw
        groups = found.groupdict()
        lane = _lane(groups["pod"].decode(), (groups.get("container") or b"").decode())
        return lane.encode() + (groups.get("time") or b"") + raw[found.end() :]


_FORMS = tuple(
    map(
        _Named,
        (
            re.compile(
                rb"(?P<pod>[a-z0-9][a-z0-9.]{0,99}-[a-z0-9.-]{1,150}) "
                rb"(?P<container>[a-z0-9][a-z0-9-]{0,62}) (?!\d+(?:[ .,:/]|$)|[:=])"
            ),
            re.compile(rb"(?P<pod>[A-Za-z][\w.-]{0,80}[-_]\d{1,5}) +\| "),
            re.compile(rb"(?P<time>" + _TIME + rb" )(?P<pod>[^\s\]:]{1,150}/[^\s\]:]{1,150}) "),
        ),
    )
)
"""In this order: stern; Docker Compose; `aws logs tail`, which prints the time first."""
