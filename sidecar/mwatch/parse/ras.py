# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read the response of NCCL RAS, as JSON (NCCL 2.28.7 and newer) or as text.

JSON communicators are decoded one by one, because a response about thousands of GPUs is tens of
megabytes. NCCL 2.28.7 and 2.28.9 omit a comma in each missing rank; it is restored. A communicator
that is being created may be all zeros or have no status (nccl #2346). The text format, which NCCL
calls unstable, has counts only where ranks differ and names only outliers. It shows that a
difference persists, but not whether a job whose ranks are all equal makes progress.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mwatch.model.snapshot.pod import Communicator, MissingRank, RasAnswer

MAX_COMMUNICATORS = 65_536
_LOST_COMMA = re.compile(r'("nvml_dev":\s*-?\d{1,9})(\s*"status":)')
_ARRAY = re.compile(r'"communicators"\s*:\s*\[')
_JSON_VERSION = re.compile(r'"nccl_version"\s*:\s*"([^"]{1,40})"')
_BETWEEN = re.compile(r"[\s,]*")
_RUNNING = 0
_UNKNOWN_PID = -1
MAX_RANKS = 65_536
_TEXT_VERSION = re.compile(r"NCCL version (\S{1,40})")
_NUMBERS = re.compile(r"\s*\d+(?:\s+\d+)+\s*")
_GROUP = re.compile(r"\s*(\d+)\s+(\d+)\s+\d+\s+[\d-]+\s+(\d+)\s+\d+\s+[A-Z]+\s+[A-Z,]+\s*")
"""Row of the summary; captures group number, communicators, ranks per communicator."""
_ABOUT = re.compile(r"#(\d+)-\d+ \(([0-9a-f]{1,16})\) ([A-Z]+)")
_PROCESS = re.compile(r"\s+Process (\d+) on node (\S+) managing")
_DIFFERENT = re.compile(r"\s+Communicator ranks have different (\w+)(?: operation)?(?: counts)?")
_MANY = re.compile(r"\s+(\d+) ranks have (?:launched up to operation (\d+)|not launched any)")
_RANK = re.compile(
    r"\s+Rank (\d+)(?: has (?:launched up to operation (\d+)|(not launched)[^-]*|status \w+))? --"
    r"(?: GPU .{1,60} managed by process (\d+) on node (\S+))?"
)
_MISSING_COUNT = re.compile(r"\s+Missing communicator data from (\d+) ranks?")
_MISSING_RANKS = re.compile(r"\s+The missing ranks?: ([\d,]+)")


def read_json(text: str) -> RasAnswer:
    """Read the JSON form; ValueError if it is cut short or not from RAS."""
    start = _ARRAY.search(text)
    if start is None:
        raise ValueError("no list of communicators in the answer")
    reported: list[Communicator] = []
    processes: set[str] = set()
    hosts: set[str] = set()
    for body in _objects(_LOST_COMMA.sub(r"\1,\2", text), start.end()):
        found = _communicator(body)
        if found is None:
            continue
        reported.append(found)
        processes.update(found.processes.values())
        processes.update(lost.process for lost in found.missing if lost.process)
        hosts.update(process.split()[0] for process in found.processes.values())
    version = _JSON_VERSION.search(text, 0, start.start())
    return RasAnswer(
        version=version[1] if version else None,
        communicators=len(reported),
        reported=tuple(reported),
        gpus=len(processes) or None,
        nodes=len(hosts) or None,
        counts_all=True,
    )


def _objects(text: str, at: int) -> Iterator[dict[str, Any]]:
    decode = json.JSONDecoder().raw_decode
    for _ in range(MAX_COMMUNICATORS):
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
        if text.startswith("]", at):
            return
        try:
            body, at = decode(text, at)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(body, dict):
            raise ValueError("a communicator is not an object")
        yield body
    raise ValueError(f"more than {MAX_COMMUNICATORS} communicators")


def _communicator(body: dict[str, Any]) -> Communicator | None:
    size, name = _whole(body.get("size")), body.get("hash")
    if not size or not isinstance(name, str):
        return None  # being created: nothing is filled in yet
    begun: dict[int, int] = {}
    processes: dict[int, str] = {}
    is_settled = True
    for each in _list(body.get("ranks")):
        rank = _whole(each.get("rank"))
        if rank is None:
            continue
        process = _process(each)
        if process is not None:
            processes[rank] = process
        begun[rank] = _sum(each.get("collective_counts"))
        is_settled = is_settled and _is_running(each.get("status"))
    missing = tuple(
        MissingRank(each["rank"], _process(each), each["status"].get("considered_dead") is True)
        for each in _list(body.get("missing_ranks"))
        if _is_lost(each)
    )
    # The second hash makes the first one unique.
    second = body.get("secondary_hash")
    return Communicator(
        hash=f"{name[:40]} {second[:60]}" if isinstance(second, str) else name[:40],
        size=size,
        begun=begun,
        processes=processes,
        missing=missing,
        missing_count=len(missing),
        is_settled=is_settled and len(begun) + len(missing) == size,
    )


def _is_running(status: object) -> bool:
    if not isinstance(status, dict):
        return False
    leaves = any(status.get(key) for key in ("finalize_called", "destroy_flag", "abort_flag"))
    return status.get("init_state") == _RUNNING and not leaves


def _is_lost(each: dict[str, Any]) -> bool:
    """Whether the rank is missing; one that responds but is not a member now is not."""
    status = each.get("status")
    reported = status if isinstance(status, dict) else {}
    return _whole(each.get("rank")) is not None and (
        reported.get("unresponsive") is True or reported.get("considered_dead") is True
    )


def _process(each: dict[str, Any]) -> str | None:
    host, pid, gpu = each.get("host"), _whole(each.get("pid")), _whole(each.get("nvml_dev"))
    if not isinstance(host, str) or pid in (None, _UNKNOWN_PID):
        return None
    return f"{host[:80]} {pid} {gpu}"


def _sum(counts: object) -> int:
    values = counts.values() if isinstance(counts, dict) else ()
    return sum(each for each in map(_whole, values) if each is not None)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _list(value: object) -> list[dict[str, Any]]:
    found = value if isinstance(value, list) else []
    return [each for each in found if isinstance(each, dict)]


@dataclass(slots=True)
class _Group:
    value: int
    size: int
    ranks: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _About:
    hash: str
    size: int
    differences: list[list[_Group]] = field(default_factory=list)
    """One list for each kind of collective whose counts differ."""
    missing: dict[int, str | None] = field(default_factory=dict)
    missing_count: int = 0
    is_settled: bool = True


def read_text(text: str) -> RasAnswer:
    """Read the text form; ValueError if it is cut short or not from RAS."""
    if "\nWarnings\n" not in text:
        raise ValueError("the answer is cut short, or not from RAS")
    reader = _Reader()
    for line in text.splitlines():
        reader.line(line)
    version = _TEXT_VERSION.search(text)
    return RasAnswer(
        version=version[1] if version else None,
        communicators=reader.communicators,
        reported=tuple(reader.all_communicators()),
        gpus=reader.gpus,
        nodes=reader.nodes,
        counts_all=False,
    )


class _Reader:
    def __init__(self) -> None:
        self.communicators = 0
        self.gpus: int | None = None
        self.nodes: int | None = None
        self._sizes: dict[int, int] = {}
        self._about: dict[str, _About] = {}
        self._now: _About | None = None
        self._kind = ""
        self._dead: set[str] = set()
        self._before = ""

    def line(self, line: str) -> None:
        if line and not line[0].isspace() and not line[0].isdigit():
            self._head(line)
        elif self._now is not None:
            detail = {"INCOMPLETE": _incomplete, "MISMATCH": _mismatch}.get(self._kind)
            if detail is not None:
                detail(self._now, line)
        elif self._kind == "DEAD":
            process = _PROCESS.match(line)
            if process:
                self._dead.add(f"{process[2]} {process[1]}")
        else:
            self._row(line)
        self._before = line

    def all_communicators(self) -> Iterator[Communicator]:
        for about in self._about.values():
            yield Communicator(
                hash=about.hash,
                size=about.size,
                begun=_begun(about),
                processes={},
                missing=tuple(
                    MissingRank(rank, process, process in self._dead)
                    for rank, process in sorted(about.missing.items())
                ),
                missing_count=max(about.missing_count, len(about.missing)),
                is_settled=about.is_settled,
            )

    def _head(self, line: str) -> None:
        found = _ABOUT.match(line)
        self._kind = found[3] if found else line.strip()
        self._now = None
        if found:
            size = self._sizes.get(int(found[1]), 0)
            self._now = self._about.setdefault(found[2], _About(found[2], size))

    def _row(self, line: str) -> None:
        group = _GROUP.fullmatch(line)
        if group:
            self._sizes[int(group[1])] = int(group[3])
            self.communicators += int(group[2])
        elif "(total)" in self._before and _NUMBERS.fullmatch(line):
            columns = line.split()
            self.nodes, self.gpus = int(columns[0]), int(columns[-1])


def _incomplete(about: _About, line: str) -> None:
    count, listed = _MISSING_COUNT.match(line), _MISSING_RANKS.match(line)
    named = _RANK.match(line)
    if count:
        about.missing_count = int(count[1])
    elif listed:
        about.missing.update((int(rank), None) for rank in listed[1].split(",")[:MAX_RANKS] if rank)
    elif named:
        about.missing[int(named[1])] = f"{named[5]} {named[4]}" if named[4] else None


def _mismatch(about: _About, line: str) -> None:
    different = _DIFFERENT.match(line)
    if different:
        if different[1] == "status":
            about.is_settled = False
        else:
            about.differences.append([])
        return
    if not about.differences:
        return  # the groups are of a difference in status
    groups = about.differences[-1]
    many, rank = _MANY.match(line), _RANK.match(line)
    if many:
        groups.append(_Group(int(many[2] or 0), int(many[1])))
    elif rank and (rank[2] or rank[3]):
        groups.append(_Group(int(rank[2] or 0), 1, [int(rank[1])]))
    elif rank and groups:
        groups[-1].ranks.append(int(rank[1]))


def _begun(about: _About) -> dict[int, int]:
    """Return the count by rank; a single unnamed group consists of all other ranks.

    Groups that cannot be assigned to ranks get negative keys, so that a change in them is noticed.
    """
    begun: dict[int, int] = {}
    ranks = range(min(about.size, MAX_RANKS))
    for groups in about.differences:
        nameless = [group for group in groups if len(group.ranks) < group.size]
        if len(nameless) > 1:
            values = [group.value for every in about.differences for group in every]
            return {-1 - place: value for place, value in enumerate(values)}
        named = {rank: group.value for group in groups for rank in group.ranks}
        rest = nameless[0].value if nameless else None
        for rank in ranks:
            value = named.get(rank, rest)
            if value is not None:
                begun[rank] = begun.get(rank, 0) + value
    return begun


def read_answer(text: str) -> RasAnswer:
    """Read either form; ValueError if it is incomplete or not from RAS."""
    return read_json(text) if text[:64].lstrip().startswith("{") else read_text(text)
