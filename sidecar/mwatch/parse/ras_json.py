# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""NCCL RAS's answer as JSON (2.28.7 and newer).

Communicators are decoded one by one: an answer about thousands of GPUs is tens of megabytes, and
little of it is kept. NCCL 2.28.7 and 2.28.9 leave out a comma in each missing rank; it is put
back. A communicator that is just being made may be all zeros or have no status (nccl #2346).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mwatch.model.nccl import Communicator, MissingRank, RasAnswer

MAX_COMMUNICATORS = 65_536
_LOST_COMMA = re.compile(r'("nvml_dev":\s*-?\d{1,9})(\s*"status":)')
_ARRAY = re.compile(r'"communicators"\s*:\s*\[')
_VERSION = re.compile(r'"nccl_version"\s*:\s*"([^"]{1,40})"')
_BETWEEN = re.compile(r"[\s,]*")
_RUNNING = 0
_UNKNOWN_PID = -1


def read_json(text: str) -> RasAnswer:
    """ValueError where it is cut short, or not what RAS writes."""
    start = _ARRAY.search(text)
    if start is None:
        raise ValueError("no list of communicators in the answer")
    told: list[Communicator] = []
    processes: set[str] = set()
    hosts: set[str] = set()
    for body in _objects(_LOST_COMMA.sub(r"\1,\2", text), start.end()):
        found = _communicator(body)
        if found is None:
            continue
        told.append(found)
        processes.update(found.processes.values())
        processes.update(lost.process for lost in found.missing if lost.process)
        hosts.update(process.split()[0] for process in found.processes.values())
    version = _VERSION.search(text, 0, start.start())
    return RasAnswer(
        version=version[1] if version else None,
        communicators=len(told),
        told=tuple(told),
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
            raise ValueError("a communicator is no object")
        yield body
    raise ValueError(f"more than {MAX_COMMUNICATORS} communicators")


def _communicator(body: dict[str, Any]) -> Communicator | None:
    size, name = _whole(body.get("size")), body.get("hash")
    if not size or not isinstance(name, str):
        return None  # being made: nothing is filled in yet
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
    missing = tuple(_missing(each) for each in _list(body.get("missing_ranks")) if _is_lost(each))
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
    """One that answers, but is no member yet or no more, is not missing."""
    status = each.get("status")
    told = status if isinstance(status, dict) else {}
    return _whole(each.get("rank")) is not None and (
        told.get("unresponsive") is True or told.get("considered_dead") is True
    )


def _missing(each: dict[str, Any]) -> MissingRank:
    is_dead = each["status"].get("considered_dead") is True
    return MissingRank(each["rank"], _process(each), is_dead)


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
