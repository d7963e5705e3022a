# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All checks that need only the manifest."""

from __future__ import annotations

from mwatch.checks import containers, exits, topology
from mwatch.model.checks import Check, CheckLevel, Problem, Workload

ALL: tuple[Check, ...] = (
    *containers.CONTAINER_CHECKS,
    *topology.PARALLELISM_CHECKS,
    *containers.STORAGE_CHECKS,
    *exits.RESTART_CHECKS,
    *exits.COMMAND_CHECKS,
    *topology.NETWORK_CHECKS,
    *containers.REFERENCE_CHECKS,
    *topology.RENDEZVOUS_CHECKS,
)
_ORDER = (CheckLevel.ERROR, CheckLevel.WARNING, CheckLevel.INFO)


def look(workload: Workload, checks: tuple[Check, ...] = ALL) -> list[Problem]:
    """Run the checks; worst problems first, and a problem shared by several pods only once."""
    found: dict[tuple[str, str], Problem] = {}
    for check in checks:
        for seen in check.look(workload):
            level = seen.level or check.level
            job = f"{workload.kind}/{workload.name}"
            line = workload.line(seen.path)
            one = Problem(check.id, level, job, seen.what, seen.fix, line)
            found.setdefault((check.id, seen.what), one)
    return sorted(found.values(), key=lambda each: _ORDER.index(each.level))
