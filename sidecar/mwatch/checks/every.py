# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""All checks that need the manifest alone, and the way to run them.

Those that need the volume, the nodes or the log are made where these can be seen.
"""

from __future__ import annotations

from mwatch.checks import command, containers, network, parallelism, restart
from mwatch.model.checks.check import Check, CheckLevel, Problem
from mwatch.model.checks.workload import Workload

ALL: tuple[Check, ...] = (
    *containers.CONTAINER_CHECKS,
    *parallelism.CHECKS,
    *containers.STORAGE_CHECKS,
    *restart.CHECKS,
    *command.CHECKS,
    *network.NETWORK_CHECKS,
    *containers.REFERENCE_CHECKS,
    *network.RENDEZVOUS_CHECKS,
)
_ORDER = (CheckLevel.ERROR, CheckLevel.WARNING, CheckLevel.INFO)


def look(workload: Workload, checks: tuple[Check, ...] = ALL) -> list[Problem]:
    """The worst first; one sentence once, though several pods may be made from one template."""
    found: dict[tuple[str, str], Problem] = {}
    for check in checks:
        for seen in check.look(workload):
            level = seen.level or check.level
            job = f"{workload.kind}/{workload.name}"
            line = workload.line(seen.path)
            one = Problem(check.id, level, job, seen.what, seen.fix, line)
            found.setdefault((check.id, seen.what), one)
    return sorted(found.values(), key=lambda each: _ORDER.index(each.level))
