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
    "Power against its limit": NO_GPU,
    "Held down now, by reason": NO_GPU,
    "Share of time held down, by reason": NO_GPU,
    "Reached by the driver": NO_GPU,
    "Last Xid": NO_GPU,
    "The driver asks for": NO_GPU,
    "Memory errors": NO_GPU,
    "Replaced rows": NO_GPU,
    "Row waits for a reset, or could not be replaced": NO_GPU,
    "NVLink errors": NO_GPU,
    "PCIe packets sent again": NO_GPU,
    "Communicators": NO_RAS,
    "Ranks that do not answer": NO_RAS,
    "Communicators out of step": NO_RAS,
    "Collectives for each second": NO_RAS,
    "Ports": NO_CARD,
    "Traffic": NO_CARD,
    "Errors": NO_CARD,
}
_QUERIES = {
    ("fleet", "All runs", "H"): WELL,
    ("run", "Iteration by each witness", "B"): NO_EVENTS,
}


def why_not_live(query: PanelQuery) -> str | None:
    """None: a real run shows it."""
    if "mwatch_controller_" in query.expr:
        return NO_CLUSTER
    if query.board == "gpu-network" and query.panel in _PANELS:
        return _PANELS[query.panel]
    return _QUERIES.get((query.board, query.panel, query.ref))
