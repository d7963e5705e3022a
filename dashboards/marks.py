# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Annotations: incidents and restarts as vertical lines on every panel."""

from __future__ import annotations

from dashboards.board import Annotation
from dashboards.promql import controller_first, of, per_run


def marks(where: str) -> tuple[Annotation, ...]:
    attempt = of("mwatch_attempt", where)

    # A series that starts above 0 has no increase, as with the first incident of a rare cause. A
    # process that has just started reports past incidents, which must not be marked again.
    def began(counted: str) -> str:
        first = (
            f"({counted} > 0 unless last_over_time({counted}[1h] offset $__interval))"
            f" and on (job, instance, run) {attempt} offset $__interval"
        )
        return f"increase({counted}[$__rate_interval]) > 0\n or ({first})"

    incidents = controller_first("mwatch_incidents_total", where, "cause", "action", shape=began)
    restarts = f"{per_run(attempt)}\n > {per_run(f'{attempt} offset $__interval')}"
    return (
        Annotation("Incidents", incidents, "{{run}}: {{cause}}", "action: {{action}}", "red"),
        Annotation("Restarts", restarts, "{{run}}: restarted", "a new attempt", "blue"),
    )
