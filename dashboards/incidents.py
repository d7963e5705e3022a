# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The table of open incidents: the verdict of each, its culprit and its action."""

from __future__ import annotations

from dashboards.board import Panel, Query
from dashboards.promql import RUN_LABELS, controller_first

_COLUMNS = {
    "cluster": "Cluster",
    "namespace": "Namespace",
    "run": "Run",
    "severity": "Severity",
    "cause": "Cause",
    "finding": "Finding",
    "action": "Action",
    "stage": "Stage",
    "rank": "Rank",
    "culprit_pod": "Pod",
    "culprit_node": "Node",
    "UUID": "GPU",
}
_LABELS = tuple(label for label in _COLUMNS if label not in RUN_LABELS)


def open_incidents(where: str) -> Panel:
    return Panel(
        "Open incidents",
        "table",
        (Query(controller_first("mwatch_incident_info", where, *_LABELS)),),
        "none",
        "Cause, action and culprit of each incident that is not over. Action: taken if the stage "
        "is acted, else due; in mode observe it is only proposed. For the evidence, type `mwatch "
        "diagnose RUN -n NAMESPACE`.",
        width=24,
        height=6,
        columns=_COLUMNS,
        when_empty="no open incident",
    )
