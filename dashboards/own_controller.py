# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controllers themselves: do they see the cluster and the pods, and what do they cost."""

from __future__ import annotations

from dashboards.board import Panel, Query, Row, Step
from dashboards.promql import CONTROLLERS, age, of, rate
from dashboards.states import LEADS

_NAME = "{{namespace}} {{pod}} {{instance}}"


def _by(expr: str, *labels: str) -> str:
    return f"max by ({', '.join(('namespace', 'pod', 'instance', *labels))}) ({expr})"


def _own(metric: str) -> str:
    return of(f"mwatch_controller_{metric}", CONTROLLERS)


CONTROLLER = Row(
    "Controllers",
    (
        Panel(
            "Leader", "band", (Query(_by(_own("leader")), _NAME),), "none",
            "One of a namespace holds the Lease and may act; others look on.",
            alerts=("MwatchControllerNoLeader", "MwatchControllerAbsent"), states=LEADS,
        ),
        Panel(
            "Age of its copy of the cluster", "lines",
            (Query(_by(_own("view_age_seconds"), "resource"), "{{namespace}} {{resource}}"),),
            "s",
            "By kind of object. Usual: below 20 s, a minute for kinds that the cluster does not "
            "have. Nothing is done to a job on a copy older than 30 s.",
            alerts=("MwatchControllerViewStale",),
            steps=(Step(None, "green"), Step(60, "yellow"), Step(120, "red")),
        ),
        Panel(
            "Turn of its loop", "lines",
            (
                Query(_by(_own("loop_seconds")), f"last {_NAME}"),
                Query(_by(_own("loop_longest_seconds")), f"longest {_NAME}"),
            ),
            "s", "One turn each second. Flat lines that never change: it is stuck.",
            alerts=("MwatchControllerLoopSlow", "MwatchControllerLoopStuck"),
            steps=(Step(None, "green"), Step(1, "yellow"), Step(5, "red")),
        ),
        Panel(
            "What it does to its jobs", "lines",
            (
                Query(
                    _by(_own("actions"), "state", "reason"), "{{namespace}} {{state}} {{reason}}"
                ),
            ),
            "none",
            "Jobs, by what is being done to them; held: by what keeps it back. Usual: nothing.",
            alerts=("MwatchRestartHeld",), width=12,
        ),
        Panel(
            "Ledger that could not be read or written", "lines",
            (Query(_by(rate(_own("ledger_errors_total"))), _NAME),), "reqps",
            "What is to be done is written there first: without it nothing is done.",
            alerts=("MwatchRestartHeld",), when_empty="none", width=12,
        ),
        Panel(
            "Questions to sidecars", "lines",
            (Query(_by(rate(_own("polls_total"))), _NAME),), "reqps",
            "Each pod is asked every few seconds.", alerts=("MwatchControllerPodsSilent",),
        ),
        Panel(
            "Questions that came to nothing", "lines",
            (
                Query(
                    _by(rate(_own("poll_failures_total")), "reason"), "{{namespace}} {{reason}}"
                ),
            ),
            "reqps", "By reason.", alerts=("MwatchControllerPodsSilent",), when_empty="none",
        ),
        Panel(
            "Calls to the API server", "lines",
            (
                Query(_by(rate(_own("api_calls_total"))), f"calls {_NAME}"),
                Query(_by(rate(_own("relists_total"))), f"whole lists {_NAME}"),
            ),
            "reqps", "Retries included. Whole lists are dear for the API server: few are usual.",
            alerts=("MwatchControllerViewStale",),
        ),
        Panel(
            "Processor time of the controller", "lines",
            (Query(_by(rate(_own("cpu_seconds_total"))), _NAME),), "percentunit", "Of one core.",
            alerts=("MwatchControllerLoopSlow",), width=6,
        ),
        Panel(
            "Memory of the controller", "lines",
            (Query(_by(_own("resident_bytes")), _NAME),), "bytes", "The chart gives it 1 GiB.",
            alerts=("MwatchControllerMemoryHigh",), width=6,
        ),
        Panel(
            "The controller is running for", "lines",
            (Query(age(_by(_own("start_timestamp_seconds"))), _NAME),), "s",
            "A saw tooth is one that is being restarted.",
            alerts=("MwatchControllerRestarting",), width=6,
        ),
        Panel(
            "Faults of the controller", "lines", (Query(_by(_own("errors_total")), _NAME),),
            "none", "Faults that it survived. Each is a bug: please report it.",
            alerts=("MwatchControllerErrors",), width=6,
        ),
    ),
)  # fmt: skip
