# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Lines that report a failure: reports of launchers, entries of the fault catalogue.

The pod's exit code is always torchrun's 1; the worker's 16, 17 or -9 is only in these lines. If
several catalogue entries match, benign ones win, then the longest match; a root elsewhere in the
line beats a cascade. An Xid is found by its number, whether or not the catalogue has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from mwatch.model.event import Event, Exit, Fault
from mwatch.model.fault import CatalogueEntry, Role
from mwatch.parse.lines.context import MAX_TEXT, Block, Context, Recogniser
from mwatch.parse.lines.line import Line, split_prefix, stamp
from mwatch.parse.lines.literals import literals, with_rare_end
from mwatch_trainer.exits.launchers import TRIGGERS, LauncherReport, read_reports
from mwatch_trainer.exits.signal_table import BY_NUMBER, SENT, name_of, signal_of

_ENTRY = re.compile(r"\s*(time|host|rank|exitcode|error_file|traceback)\s*: ?(.*)")
_END = re.compile(r"\s*[=*]{10,}\s*")
_INT = re.compile(r"-?\d{1,9}")
_PID = re.compile(r"pid: (\d{1,9})")
_SIGNAL = re.compile(r"Signal \d+ \((SIG\w+)\)")
_EXCEPTION = re.compile(r"\s*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt))(?:: (.*))?")
_NO_TRACEBACK = "To enable traceback see:"
_WORKER_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,9})\)")
_RESTART = re.compile(
    r"Worker group \w+\. (\d{1,9})/(\d{1,9}) attempts left; will restart worker group"
    r"|\[Auto Resume\][^\n]{1,160}\bRetrying step\b"
)
_STATUS = re.compile(
    r"(?:command terminated with |process )?\"?exit(?:ed with)? ?(?:code|status)\"?:? {1,12}"
    r"(\d{1,3}),?",
    re.I,
)
_BLANKS = re.compile(r" {2,}")  # launchers pad task numbers
_ONE_END = 1000  # lines within which a launcher reports the end of all its processes
XID_TRIGGER = r"NVRM: Xid \("
_XID = re.compile(
    r"(?:(?P<node>[\w.-]{1,80}) (?:kernel|nvidia-\w+): [^\n]{0,60}?)?NVRM: Xid "
    r"\((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]{4,20})[^)\n]{0,80}\)[^\n]{0,40}?: (?P<xid>\d{1,5})\b"
)
UNKNOWN_XID = "xid-unknown"
Search = Callable[[bytes, int, int], re.Match[bytes] | None]
_WINDOW = 1000
"""Characters that a pattern may reach from its literal, so that even huge lines are read fast."""


def signal_name(exit_code: int | None) -> str | None:
    number = signal_of(exit_code)
    return None if number is None else name_of(number)


class _RootCause(Block):
    """The lines under `Root Cause (first observed failure):`."""

    tolerates = 2

    def __init__(self, line: Line, context: Context) -> None:
        self._line = line
        self._context = context
        self._values: dict[str, str] = {}
        self._error: re.Match[str] | None = None

    def feed(self, line: Line) -> bool:
        if _END.fullmatch(line.body):
            self.done = True
            return True
        if found := _ENTRY.fullmatch(line.body):
            self._values.setdefault(found[1], found[2].strip())
            return True
        if "traceback" in self._values:  # the worker's traceback follows, indented
            self._error = _EXCEPTION.fullmatch(line.body.rstrip()) or self._error
            return line.body[:1].isspace()
        return line.body.strip().startswith("[")

    def finish(self) -> Iterable[Event]:
        values = self._values
        if not values:
            return
        exit_code = _int(values.get("exitcode"))
        cause = _SIGNAL.search(values.get("traceback", ""))
        pid = _PID.search(values.get("exitcode", ""))
        time = values.get("time")
        message = self._error[2] if self._error else values.get("traceback", "")
        message = "" if (message or "").startswith(_NO_TRACEBACK) else message
        yield self._context.error(
            self._line,
            kind="elastic",
            error=self._error[1] if self._error else None,
            message=(message or "")[:MAX_TEXT],
            exit_code=exit_code,
            signal=cause[1] if cause else signal_name(exit_code),
            host=values.get("host"),
            pid=int(pid[1]) if pid else None,
            timestamp=stamp(time) if time else stamp(self._line.text),
            rank=_int(values.get("rank")),
        )


def _int(text: str | None) -> int | None:
    found = _INT.match(text or "")
    return int(found[0]) if found else None


def _read_root_cause(line: Line, context: Context) -> Iterable[Event]:
    context.opened = _RootCause(line, context)
    return ()


def _read_worker_failed(line: Line, context: Context) -> Iterable[Event]:
    if found := _WORKER_FAILED.search(line.text):
        context.exit_code = int(found[1])
    return ()


def _read_restart(line: Line, context: Context) -> Iterable[Event]:
    found = _RESTART.search(line.text)
    if not found:
        return
    context.coverage.process_started()
    code, context.exit_code = context.exit_code, None
    yield context.error(
        line,
        kind="restart",
        message=found[0],
        exit_code=code,
        signal=signal_name(code),
        restart_count=int(found[2]) - int(found[1]) + 1 if found[2] else None,
    )


def _read_crashed(line: Line, context: Context) -> Iterable[Event]:
    for report in read_reports(_BLANKS.sub(" ", line.text)):
        yield from reported(report, line, context)


def reported(report: LauncherReport, line: Line, context: Context) -> Iterable[Event]:
    """Yield the end of a process, unless the launcher terminated it after another one failed."""
    signal = BY_NUMBER.get(signal_of(report.code) or 0)
    is_first = abs(line.number - context.reported_at) > _ONE_END
    context.reported_at = line.number
    if not is_first and signal is not None and signal.meaning == SENT:
        return
    yield context.error(
        line,
        message=report.text[:MAX_TEXT],
        exit_code=report.code,
        signal=signal_name(report.code),
        host=report.host,
        pid=report.pid,
        rank=line.rank if report.rank is None else report.rank,
    )


ROOT_CAUSE = Recogniser(
    (r"Root Cause \(first observed failure\):", r"Root Cause:"), _read_root_cause
)
WORKER_FAILED = Recogniser((r"failed \(exitcode: ",), _read_worker_failed)


def _read_status(line: Line, context: Context) -> Iterable[Event]:
    """Read the exit code of the training command, as a shell or kubectl prints it."""
    found = _STATUS.fullmatch(line.body.strip())
    if not found:
        return
    code = int(found[1])
    if code == 0:
        if "ode:" not in found[0]:  # kubectl describe shows helper containers too
            at = stamp(line.text)
            yield Exit("status", None, found[0], at, line.rank, context.file, line.number)
        return
    yield context.error(line, message=found[0], exit_code=code, signal=signal_name(code))


STATUS = Recogniser(
    (r"exit code \d", r"[Ee]xit [Cc]ode: ", r"exit status \d", r"exitCode\"?: \d"), _read_status
)
RESTART = Recogniser((r"will restart worker group", r"\[Auto Resume\] "), _read_restart)
CRASHED = Recogniser(tuple(map(re.escape, TRIGGERS)), _read_crashed)


class FaultMatcher:
    """Finds catalogue entries. `triggers`: what the block scanner searches; a hit is an index."""

    def __init__(self, catalogue: Sequence[CatalogueEntry]) -> None:
        self._xids = {entry.xid: entry for entry in catalogue if entry.xid is not None}
        candidates: dict[str, list[tuple[CatalogueEntry, str]]] = {}
        for entry in catalogue:
            for pattern in entry.patterns:
                for text in map(with_rare_end, literals(pattern)):
                    candidates.setdefault(text, []).append((entry, pattern))
        self._texts = list(candidates)
        self._candidates = list(candidates.values())
        self._in_bytes: dict[int, tuple[bytes, Sequence[Search | None]]] = {}
        self.triggers = (*map(re.escape, candidates), XID_TRIGGER)

    def may_match(self, hits: Iterable[int], block: bytes, start: int, end: int) -> bool:
        """Whether a pattern behind the hits matches these bytes."""
        for hit in hits:
            text, searches = self._in_bytes.get(hit) or self._to_bytes(hit)
            low, high = start, end
            if end - start > _WINDOW:
                near = block.find(text, start, end)
                low, high = max(start, near - _WINDOW), min(end, near + _WINDOW)
            for search in searches:
                if search is None or search(block, low, high):
                    return True
        return False

    def _to_bytes(self, hit: int) -> tuple[bytes, Sequence[Search | None]]:
        """Return the literal of the hit and its searches; None: the line must be read in full."""
        if hit == len(self._candidates):
            made: tuple[bytes, Sequence[Search | None]] = (b"", (None,))
        else:
            patterns = [_as_bytes(pattern) for _, pattern in self._candidates[hit]]
            made = (self._texts[hit].encode(), patterns)
        self._in_bytes[hit] = made
        return made

    def read(self, line: Line, context: Context, hits: Iterable[int]) -> Iterable[Fault]:
        """Yield the faults of a line. `hits`: indices into `triggers` that the scanner found."""
        found: list[tuple[tuple[bool, int], CatalogueEntry, re.Match[str]]] = []
        for hit in hits:
            if hit == len(self._candidates):
                yield from self._xid_faults(line, context)
                continue
            near = line.text.find(self._texts[hit])
            text = line.text[max(0, near - _WINDOW) : near + _WINDOW]
            for entry, pattern in self._candidates[hit]:
                # `re` caches the few patterns that occur
                match = re.search(pattern, text) or re.search(pattern, line.body[:_WINDOW])
                if match:
                    weight = (entry.role is Role.BENIGN, match.end() - match.start())
                    found.append((weight, entry, match))
        if found:
            _, entry, match = max(found, key=itemgetter(0))
            if entry.role is Role.CASCADE:
                others = [each for each in found if _is_root_beside(line, each[1:], match)]
                _, entry, match = max(others, key=itemgetter(0), default=(None, entry, match))
            groups = match.groupdict()
            rank = groups.get("rank")
            fault = _fault(entry.id, entry.role, line, context)
            yield fault._replace(
                node=groups.get("node"),
                gpu=groups.get("gpu"),
                rank=int(rank) if rank else line.rank,
            )

    def _xid_faults(self, line: Line, context: Context) -> Iterable[Fault]:
        for found in _XID.finditer(line.text):
            known = self._xids.get(int(found["xid"]))
            id, role = (known.id, known.role) if known else (UNKNOWN_XID, Role.ROOT)
            fault = _fault(id, role, line, context)
            yield fault._replace(node=found["node"], gpu=found["gpu"])


def matching(text: str, catalogue: Iterable[CatalogueEntry]) -> list[CatalogueEntry]:
    """Return the entries that match a line of the text, in the reader's order of preference."""
    lines = [line[:MAX_TEXT] for line in text.splitlines()]
    xids = {int(found["xid"]) for line in lines for found in _XID.finditer(line)}
    weights: dict[str, tuple[bool, bool, int]] = {}
    entries = list(catalogue)
    for entry in entries:
        lengths = [
            match.end() - match.start()
            for pattern in entry.patterns
            for line in lines
            if any(literal in line for literal in literals(pattern))
            for match in [
                re.search(pattern, line) or re.search(pattern, split_prefix(line, 1).body)
            ]
            if match
        ]
        if lengths or entry.xid in xids:
            is_benign = entry.role is Role.BENIGN
            weights[entry.id] = (entry.xid in xids, is_benign, max(lengths, default=0))
    found = [entry for entry in entries if entry.id in weights]
    return sorted(found, key=lambda entry: weights[entry.id], reverse=True)


def _is_root_beside(
    line: Line, other: tuple[CatalogueEntry, re.Match[str]], cascade: re.Match[str]
) -> bool:
    """Whether `other` is a root that the line names apart from the cascade, as its reason."""
    entry, match = other
    start, at = line.text.find(cascade[0]), line.text.find(match[0])
    is_apart = at >= start + len(cascade[0]) or at + len(match[0]) <= start
    return entry.role is Role.ROOT and is_apart


def _as_bytes(pattern: str) -> Search | None:
    """Return a search in bytes; None for an anchored pattern, which may match after a prefix."""
    anchored = "^" in pattern.replace("[^", "")
    return None if anchored else re.compile(pattern.encode(), re.MULTILINE).search


def _fault(id: str, role: Role, line: Line, context: Context) -> Fault:
    text = line.body.strip()[:MAX_TEXT]
    return Fault(
        id, None, None, text, role.value, stamp(line.text), line.rank, context.file, line.number
    )
