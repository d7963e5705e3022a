# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Select the printed faults that may be a root cause.

Faults that a program survives, and faults that other faults beside them explain, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

from mwatch.model.event import Error, Fault
from mwatch.model.fault import Blame, Role
from mwatch.model.job import FaultSeen

_SHOWN = 400  # characters at the start of a line that are searched for its level
_ENDS = re.compile(
    r"\b(?:stop(?:ping|s)?|end(?:ing|s)?|abort(?:ing|s)?|terminat(?:e|ing|es)|exit(?:ing|s)?)"
    r" (?:the )?(?:training|run|job|process)\b",
    re.I,
)
_WARNS = re.compile(
    r"(?<!NCCL )warn(?:ing)?\b|^\[?W\d{0,4} |(?<![=/\w.-])(?-i:INFO|DEBUG)(?![/\w-])|\bretrying\b"
    r"|\bwill retry\b|\bfalling back\b|\bskipp(?:ed|ing)\b",
    re.I,
)
"""Words of a line about something that the program survives."""
_UNCAUGHT = re.compile(r"^[^\n]{0,200}?\[rank\d{1,7}\]: ")
"""Prefix that torch prints before an uncaught exception; a relay may put its level before it."""
_OF_NCCL = re.compile(r"\.(?:cc|cu|h):\d{1,5} WARN ")
"""Prefix of errors in NCCL up to 2.3; later releases print their name before the level."""
_UNDEFINED = {
    "absurd-allocation": re.compile(""),
    "ranks-hold-other-models": re.compile(r"inconsistent 0 params"),
}
"""Faults whose text may show numbers that a failed collective left undefined."""
_BY_OTHERS = ("k8s-", "ray-", "slurm-", "cloud-")
"""Prefixes of faults that a scheduler reports: its warnings are about events that happened."""
_NOTICES = frozenset(
    {
        "batch-limit", "container-memory-limit", "k8s-disk-limit", "k8s-evicted",
        "k8s-evicted-disk", "k8s-node-not-ready", "k8s-node-shutdown", "k8s-pod-taken",
        "k8s-preempted", "slurm-cancelled", "slurm-node-failed", "slurm-out-of-memory",
        "slurm-preempted", "slurm-time-limit",
    }
)  # fmt: skip
"""Faults that a scheduler reports: steps of a grace period, or a pasted log, may follow them."""
_GRACE_LINES = 200
_RECLAIMED = frozenset(
    {"cloud-machine-reclaimed", "k8s-node-drained", "k8s-node-shutdown", "k8s-preempted",
     "slurm-preempted"}
)  # fmt: skip
_NODE_GONE = frozenset({"k8s-node-not-ready", "ray-node-died", "slurm-node-failed"})
"""Faults that show that a machine is gone; `_PEER_GONE` has what its peers report."""
_PEER_GONE = frozenset({"rendezvous-timeout", "rendezvous-connection", "rendezvous-closed"})
_SEEN_BY_CUDA = frozenset({"cuda-launch-failure", "cuda-unknown-error"})
_PARTS = (Blame.NODE, Blame.GPU, Blame.FABRIC)
_EXPLAINED = (
    (_RECLAIMED, _NODE_GONE),
    (_RECLAIMED | _NODE_GONE, _PEER_GONE),
    (frozenset({"k8s-evicted-disk", "k8s-disk-limit"}), frozenset({"k8s-evicted"}) | _NODE_GONE),
    (frozenset({"k8s-disk-limit"}), frozenset({"k8s-evicted-disk"})),
    (frozenset({"k8s-preempted"}), frozenset({"k8s-quota-exceeded", "k8s-unschedulable"})),
    (frozenset({"container-refused-by-kernel"}), frozenset({"container-image-failed"})),
    (frozenset({"elastic-death-signal"}), _PEER_GONE | {"gloo-peer-closed"}),
    (frozenset({"ray-worker-died"}), frozenset({"store-peer-gone"})),
    (frozenset({"workers-out-of-sync"}), frozenset({"checkpoint-truncated"})),
)
"""Pairs: faults that explain others printed beside them, and the faults that they explain."""


def unexplained(faults: list[FaultSeen]) -> list[FaultSeen]:
    """Return the faults without those that another one of them explains."""
    for reasons, effects in _EXPLAINED:
        if any(seen.fault.id in reasons for seen in faults):
            faults = [seen for seen in faults if seen.fault.id not in effects]
    if any(map(_is_of_hardware, faults)):
        faults = [seen for seen in faults if seen.fault.id not in _SEEN_BY_CUDA]
    return faults


def _is_of_hardware(seen: FaultSeen) -> bool:
    """Whether it is an Xid not caused by the job's code; the driver log is often pasted below."""
    return seen.entry is not None and seen.entry.xid is not None and seen.entry.blame in _PARTS


def is_grave(seen: FaultSeen, after: Mapping[str, int], again: Container[str]) -> bool:
    """Whether the line reports a failure and not just a warning.

    A cascade shows that something failed, whatever its log level, and so does a fault that repeats
    without progress (`again`).
    """
    is_again = seen.fault.id in again
    has_level = seen.fault.role != Role.CASCADE and not seen.fault.id.startswith(_BY_OTHERS)
    has_level = has_level and not is_again
    text = _OF_NCCL.sub("", _UNCAUGHT.sub("", seen.fault.text[:_SHOWN]))
    is_mild = has_level and _WARNS.search(text) is not None and _ENDS.search(text) is None
    return is_behind(seen.fault, after) and not is_mild


def is_behind(what: Fault | Error, after: Mapping[str, int]) -> bool:
    return what.line > after.get(what.file, 0) - grace_lines(what)


def grace_lines(what: Fault | Error) -> int:
    return _GRACE_LINES if isinstance(what, Fault) and what.id in _NOTICES else 0


def is_undefined(seen: FaultSeen) -> bool:
    form = _UNDEFINED.get(seen.fault.id)
    return form is not None and form.search(seen.fault.text) is not None
