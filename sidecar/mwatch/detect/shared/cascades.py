# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which faults explain others that are printed beside them: those are not the root cause."""

from __future__ import annotations

from mwatch.model.fault import Blame
from mwatch.model.job import FaultSeen

_RECLAIMED = frozenset(
    {"cloud-machine-reclaimed", "k8s-node-drained", "k8s-node-shutdown", "k8s-preempted",
     "slurm-preempted"}
)  # fmt: skip
_NODE_GONE = frozenset({"k8s-node-not-ready", "ray-node-died", "slurm-node-failed"})
"""What is seen of a machine that was taken away, and what its peers see."""
_PEER_GONE = frozenset({"rendezvous-timeout", "rendezvous-connection", "rendezvous-closed"})
_SEEN_BY_CUDA = frozenset({"cuda-launch-failure", "cuda-unknown-error"})
_PARTS = (Blame.NODE, Blame.GPU, Blame.FABRIC)
_EXPLAINED = (
    (_RECLAIMED, _NODE_GONE),
    (_RECLAIMED | _NODE_GONE, _PEER_GONE),
    (frozenset({"k8s-evicted-disk", "k8s-disk-limit"}), frozenset({"k8s-evicted"})),
    (frozenset({"k8s-disk-limit"}), frozenset({"k8s-evicted-disk"})),
    (frozenset({"k8s-preempted"}), frozenset({"k8s-quota-exceeded", "k8s-unschedulable"})),
    (frozenset({"container-refused-by-kernel"}), frozenset({"container-image-failed"})),
    (frozenset({"elastic-death-signal"}), _PEER_GONE | {"gloo-peer-closed"}),
    (frozenset({"ray-worker-died"}), frozenset({"store-peer-gone"})),
    (frozenset({"workers-out-of-sync"}), frozenset({"checkpoint-truncated"})),
)
"""What explains other faults that are printed beside it, and those."""


def unexplained(faults: list[FaultSeen]) -> list[FaultSeen]:
    """Without those that another one of them explains."""
    for reasons, effects in _EXPLAINED:
        if any(seen.fault.id in reasons for seen in faults):
            faults = [seen for seen in faults if seen.fault.id not in effects]
    if any(map(_is_of_hardware, faults)):
        faults = [seen for seen in faults if seen.fault.id not in _SEEN_BY_CUDA]
    return faults


def _is_of_hardware(seen: FaultSeen) -> bool:
    """An Xid that the code of the job does not cause; the driver's log is often pasted below."""
    return seen.entry is not None and seen.entry.xid is not None and seen.entry.blame in _PARTS
