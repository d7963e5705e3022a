# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controllers: leadership, view of the cluster and the pods, resource use."""

from __future__ import annotations

from dashboards.board import Panel, Query, Row, Step
from dashboards.promql import CONTROLLERS, age, of, rate
from dashboards.states import LEADS

_PLACE = "{{cluster}} {{namespace}}"
_NAME = f"{_PLACE} {{{{pod}}}} {{{{instance}}}}"


def _by(expr: str, *labels: str) -> str:
    return f"max by ({', '.join(('cluster', 'namespace', 'pod', 'instance', *labels))}) ({expr})"


def _own(metric: str) -> str:
    return of(f"mwatch_controller_{metric}", CONTROLLERS)


CONTROLLER = Row(
    "Controllers",
    (
        Panel(
            "Leader", "band", (Query(_by(_own("leader")), _NAME),), "none",
            "One controller per namespace holds the Lease and may act; the others are on standby.",
            alerts=("MwatchControllerNoLeader", "MwatchControllerAbsent"), states=LEADS,
        ),
        Panel(
            "Age of the cluster view", "lines",
            (Query(_by(_own("view_age_seconds"), "resource"), _PLACE + " {{resource}}"),),
            "s",
            "By kind of object. Normal: below 20 s, or a minute for kinds that the cluster does "
            "not have. The controller takes no action on a view older than 30 s.",
            alerts=("MwatchControllerViewStale",),
            steps=(Step(None, "green"), Step(60, "yellow"), Step(120, "red")),
        ),
        Panel(
            "Loop duration", "lines",
            (
                Query(_by(_own("loop_seconds")), f"last {_NAME}"),
                Query(_by(_own("loop_longest_seconds")), f"longest {_NAME}"),
            ),
            "s", "The loop runs once a second. Lines that never change: the loop is stuck.",
            alerts=("MwatchControllerLoopSlow", "MwatchControllerLoopStuck"),
            steps=(Step(None, "green"), Step(1, "yellow"), Step(5, "red")),
        ),
        Panel(
            "Actions in progress", "lines",
            (
                Query(
                    _by(_own("actions"), "state", "reason"), _PLACE + " {{state}} {{reason}}"
                ),
            ),
            "none",
            "Jobs by action in progress. held: by the reason for holding it. Normally empty.",
            alerts=("MwatchRestartHeld",),
        ),
        Panel(
            "Ledger errors", "lines",
            (Query(_by(rate(_own("ledger_errors_total"))), _NAME),), "reqps",
            "Failed reads and writes. Every action is recorded in the ledger first: without it, no "
            "action is taken.",
            alerts=("MwatchRestartHeld",), when_empty="none",
        ),
        Panel(
            "Notifications", "lines",
            (Query(_by(_own("notifications_total"), "result"), _PLACE + " {{result}}"),),
            "none", "Messages about incidents, by result, for each URL of --notify.",
            when_empty="none",
        ),
        Panel(
            "Requests to sidecars", "lines",
            (Query(_by(rate(_own("polls_total"))), _NAME),), "reqps",
            "Each pod is polled every few seconds.", alerts=("MwatchControllerPodsSilent",),
        ),
        Panel(
            "Failed requests to sidecars", "lines",
            (
                Query(
                    _by(rate(_own("poll_failures_total")), "reason"), _PLACE + " {{reason}}"
                ),
            ),
            "reqps", "By reason of the failure.", alerts=("MwatchControllerPodsSilent",),
            when_empty="none",
        ),
        Panel(
            "Calls to the API server", "lines",
            (
                Query(_by(rate(_own("api_calls_total"))), f"calls {_NAME}"),
                Query(_by(rate(_own("relists_total"))), f"full lists {_NAME}"),
            ),
            "reqps",
            "Retries included. Full lists are expensive for the API server and should be rare.",
            alerts=("MwatchControllerViewStale",),
        ),
        Panel(
            "Controller CPU", "lines",
            (Query(_by(rate(_own("cpu_seconds_total"))), _NAME),), "percentunit",
            "Share of one core.",
            alerts=("MwatchControllerLoopSlow",), width=6,
        ),
        Panel(
            "Controller memory", "lines",
            (Query(_by(_own("resident_bytes")), _NAME),), "bytes",
            "The memory limit in the chart is 1 GiB.",
            alerts=("MwatchControllerMemoryHigh",), width=6,
        ),
        Panel(
            "Controller uptime", "lines",
            (Query(age(_by(_own("start_timestamp_seconds"))), _NAME),), "s",
            "A sawtooth means that the controller restarts repeatedly.",
            alerts=("MwatchControllerRestarting",), width=6,
        ),
        Panel(
            "Controller internal errors", "lines", (Query(_by(_own("errors_total")), _NAME),),
            "none", "Internal errors that it recovered from. Each is a bug: please report it.",
            alerts=("MwatchControllerErrors",), width=6,
        ),
    ),
    is_collapsed=True,
)  # fmt: skip
