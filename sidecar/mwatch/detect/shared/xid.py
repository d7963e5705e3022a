# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Rules for NVIDIA Xids: a burst of them is judged, not a single line.

Xids are grouped by node, in order of time. The absence of Xids proves nothing unless the kernel log
is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mwatch.model.fault import AvoidNode, Blame, RestartHelps, Role
from mwatch.model.job import FaultSeen

BURST_SECONDS = 180.0  # of silence end a burst, as in NVIDIA's own fleet tools
REPEAT_SECONDS = 24 * 3600.0
_NVLINK5 = range(144, 151)
_AFTER_NVLINK5 = frozenset({94, 95})
RECOVERY_ACTION = 154
UNKNOWN = "xid-unknown"
_MACHINE = frozenset({Blame.GPU, Blame.NODE})

_NUMBER = re.compile(r"NVRM: Xid \([^)\n]{1,120}\)[^\n]{0,40}?: (\d{1,5})\b")
_ACTION = re.compile(
    r"changed from [^()\n]{0,40}\([^)\n]{0,80}\) to [^()\n]{0,40}\(([^)\n]{1,80})\)"
)


def number(seen: FaultSeen) -> int | None:
    if seen.entry is not None:
        return seen.entry.xid
    found = _NUMBER.search(seen.fault.text) if seen.fault.id == UNKNOWN else None
    return int(found[1]) if found else None


def place(seen: FaultSeen) -> tuple[str, str | None]:
    return node(seen), seen.fault.gpu


def node(seen: FaultSeen) -> str:
    return seen.fault.node or seen.stream


def action(seen: FaultSeen) -> str | None:
    """Return the action that Xid 154 asks for; the text `None` if the GPU has recovered."""
    if number(seen) != RECOVERY_ACTION:
        return None
    found = _ACTION.search(seen.fault.text)
    return found[1] if found else None


def asks_for_recovery(seen: FaultSeen) -> bool:
    """Whether a recovery is due now; a GPU that is only to be drained works until the job ends."""
    reported = action(seen)
    return (
        reported is not None
        and reported.lower() != "none"
        and not reported.lower().startswith("drain")
    )


def standing(faults: list[FaultSeen]) -> list[FaultSeen]:
    """Return the Xids in order of time, without those that a later Xid 154 cleared."""
    xids = sorted((seen for seen in faults if number(seen) is not None), key=lambda seen: seen.at)
    cleared: dict[tuple[str, str | None], float] = {}
    for seen in xids:
        if (action(seen) or "").lower() == "none":
            cleared[place(seen)] = seen.at
    return [seen for seen in xids if seen.at > cleared.get(place(seen), float("-inf"))]


def bursts(xids: list[FaultSeen]) -> dict[str, list[list[FaultSeen]]]:
    """Group by node; `xids` are in order of time."""
    by_node: dict[str, list[FaultSeen]] = {}
    for seen in xids:
        by_node.setdefault(node(seen), []).append(seen)
    return {name: _in_bursts(on_node) for name, on_node in by_node.items()}


def _in_bursts(xids: Iterable[FaultSeen]) -> list[list[FaultSeen]]:
    found: list[list[FaultSeen]] = []
    for seen in xids:
        if found and seen.at - found[-1][-1].at <= BURST_SECONDS:
            found[-1].append(seen)
        else:
            found.append([seen])
    return found


def is_machine(seen: FaultSeen) -> bool:
    """Whether the entry is a root cause and blames the GPU or its node."""
    if seen.entry is None:
        return seen.fault.id == UNKNOWN
    return seen.entry.role is Role.ROOT and seen.entry.blame in _MACHINE


def is_fatal(seen: FaultSeen) -> bool:
    """Whether waiting on this node cannot fix it."""
    if asks_for_recovery(seen):
        return True
    entry = seen.entry
    if entry is None or not is_machine(seen):
        return False
    return entry.avoid_node is AvoidNode.YES or entry.restart_helps is RestartHelps.ELSEWHERE


def roots(burst: list[FaultSeen]) -> list[FaultSeen]:
    """Return the Xids of a burst that are the machine's own fault, in order of time."""
    found = []
    is_nvlink = False
    for seen in burst:
        is_nvlink = is_nvlink or number(seen) in _NVLINK5
        if is_nvlink and number(seen) in _AFTER_NVLINK5:
            continue
        if is_machine(seen) or asks_for_recovery(seen):
            found.append(seen)
    return found


def repeated(now: list[FaultSeen], before: list[FaultSeen]) -> FaultSeen | None:
    """Return an application's Xid that recurred on one GPU only: the GPU is suspect.

    On several GPUs at once the software is at fault; a second line of one burst is not a repeat.
    """
    ours = sorted(filter(_may_be_machine, now), key=lambda seen: seen.at)
    for burst in reversed(_in_bursts(ours)):
        last = burst[0]
        gpus = {place(seen) for seen in burst}
        if len(gpus) > 1 or last.fault.gpu is None:
            continue
        earlier = [seen for seen in (*before, *now) if 0 < last.at - seen.at <= REPEAT_SECONDS]
        others = [seen for seen in earlier if seen not in burst and number(seen) == number(last)]
        if others and {place(seen) for seen in others} == gpus:
            return last
    return None


def _may_be_machine(seen: FaultSeen) -> bool:
    entry = seen.entry
    if entry is None or entry.xid is None or entry.blame in _MACHINE:
        return False
    return entry.role is Role.ROOT and entry.avoid_node is AvoidNode.REPEAT
