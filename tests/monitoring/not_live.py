# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a real run on a machine without GPUs and without a cluster cannot show, and why.

The fake pod shows it instead, and the fake fleet what is of controllers.
"""

from __future__ import annotations

from monitoring.panel_queries import PanelQuery

NO_GPU = "this machine has no GPU"
NO_RAS = "ranks without GPUs speak over gloo, which has no RAS"
NO_CARD = "this machine has no InfiniBand, RoCE or EFA card"
NO_CLUSTER = "this machine has no cluster that a controller could watch"
WELL = "when the run is over, nothing is wrong with it any more"
NO_EVENTS = "`mwatch run` does not read TensorBoard's event files"
ANYWHERE = frozenset({WELL, NO_EVENTS})
"""True on every machine, whatever its hardware."""

_PANELS = {
    "Utilisation": NO_GPU,
    "Tensor cores active": NO_GPU,
    "Power": NO_GPU,
    "Temperature": NO_GPU,
    "Memory used": NO_GPU,
    "Memory bandwidth (dcgm-exporter)": NO_GPU,
    "SM clock": NO_GPU,
    "Power relative to its limit": NO_GPU,
    "Throttled now, by reason": NO_GPU,
    "Share of time throttled, by reason": NO_GPU,
    "Reachable by the driver": NO_GPU,
    "Last Xid": NO_GPU,
    "Recovery action requested by the driver": NO_GPU,
    "Memory errors": NO_GPU,
    "Remapped rows": NO_GPU,
    "Row remapping pending or failed": NO_GPU,
    "NVLink errors": NO_GPU,
    "PCIe replays": NO_GPU,
    "Communicators": NO_RAS,
    "Ranks not responding": NO_RAS,
    "Communicators out of step": NO_RAS,
    "Collectives per second": NO_RAS,
    "Port state": NO_CARD,
    "Port traffic": NO_CARD,
    "Port errors": NO_CARD,
}
_QUERIES = {
    ("fleet", "All runs", "H"): WELL,
    ("fleet", "Open incidents", "A"): WELL,
    ("run", "Open incidents", "A"): WELL,
    ("run", "Iteration by source", "B"): NO_EVENTS,
    ("fleet", "All runs", "K"): NO_GPU,
    ("run", "MFU", "A"): NO_GPU,
    ("run", "TFLOP/s per GPU and MFU", "B"): NO_GPU,
}


def why_not_live(query: PanelQuery) -> str | None:
    """None: a real run shows it."""
    if "mwatch_controller_" in query.expr:
        return NO_CLUSTER
    if query.board == "gpu-network" and query.panel in _PANELS:
        return _PANELS[query.panel]
    return _QUERIES.get((query.board, query.panel, query.ref))
