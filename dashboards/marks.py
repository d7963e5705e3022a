# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Incidents and restarts as vertical lines on every panel."""

from __future__ import annotations

from dashboards.board import Annotation
from dashboards.promql import of, per_run, spoken


def marks(where: str) -> tuple[Annotation, ...]:
    attempt = of("mwatch_attempt", where)

    # A series that begins above 0 has no increase: the first incident of a rare cause is one. A
    # watcher that is itself new tells of the past.
    def began(counted: str) -> str:
        first = (
            f"({counted} > 0 unless last_over_time({counted}[1h] offset $__interval))"
            f" and on (job, instance, run) {attempt} offset $__interval"
        )
        return f"increase({counted}[$__rate_interval]) > 0\n or ({first})"

    incidents = spoken("mwatch_incidents_total", where, "cause", "action", shape=began)
    restarts = f"{per_run(attempt)}\n > {per_run(f'{attempt} offset $__interval')}"
    return (
        Annotation("Incidents", incidents, "{{run}}: {{cause}}", "action: {{action}}", "red"),
        Annotation("Restarts", restarts, "{{run}}: restarted", "a new attempt", "blue"),
    )
