# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics of the controller itself: they are of no run, and have no such label."""

from __future__ import annotations

from mwatch.export.metrics.metric import Metric, counter, gauge

LEADER = gauge(
    "controller_leader", "0 or 1", "1 while this controller is the leader and may act, else 0."
)
JOBS = gauge("controller_jobs", "jobs", "Watched jobs, by whether they are acted on.", "state")
ACTIONS = gauge(
    "controller_actions",
    "jobs",
    "Watched jobs, by the action in progress, and for `held` by what holds it.",
    "state",
    "reason",
)
LEDGER_ERRORS = counter(
    "controller_ledger_errors",
    "errors",
    "Failed reads and writes of the ledger; without it no action is taken.",
)
PODS = gauge(
    "controller_pods", "pods", "Running pods of watched jobs, by whether they answer.", "state"
)
POLLS = counter("controller_polls", "polls", "Requests to sidecars.")
POLL_FAILURES = counter(
    "controller_poll_failures", "polls", "Failed requests to sidecars.", "reason"
)
API_CALLS = counter("controller_api_calls", "calls", "Calls to the API server, retries included.")
VIEW_AGE = gauge(
    "controller_view_age_seconds",
    "seconds",
    "Age of the cached view of these objects; absent if they were never read.",
    "resource",
)
OLD_VIEW_AGE = gauge(
    "controller_sight_age_seconds",
    "seconds",
    "Deprecated, removed in 0.3: use mwatch_controller_view_age_seconds.",
    "resource",
)
RELISTS = counter("controller_relists", "lists", "Lists of objects that had to be read as a whole.")
LOOP = gauge("controller_loop_seconds", "seconds", "Duration of the last turn of the loop.")
LOOP_LONGEST = gauge(
    "controller_loop_longest_seconds", "seconds", "The longest turn of the last five minutes."
)
STARTED = gauge("controller_start_timestamp_seconds", "seconds since 1970", "When it was started.")
ERRORS = counter("controller_errors", "errors", "Internal errors that the controller survived.")
CPU = counter("controller_cpu_seconds", "seconds", "CPU time of the controller.")
MEMORY = gauge("controller_resident_bytes", "bytes", "Memory of the controller.")

ALL: tuple[Metric, ...] = tuple(each for each in vars().copy().values() if isinstance(each, Metric))
