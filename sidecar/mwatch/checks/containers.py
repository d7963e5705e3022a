# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The container that the operator looks for, and probes that take a pod's name away."""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.checks.pods import containers, named
from mwatch.model.check import Check, Level, Seen
from mwatch.model.workload import Workload


def _name(workload: Workload) -> Iterator[Seen]:
    if workload.kind != "PyTorchJob":
        return
    for each in workload.replicas:
        found = [str(one.get("name")) for one in named(each.pod.get("containers"))]
        told = ", ".join(found) or "none"
        if "pytorch" not in found:
            yield Seen(
                (*each.path, "spec", "containers"),
                f"{each.name} has no container named 'pytorch' (found: {told})",
                "rename the one that trains: the operator accepts no other name",
            )


def _readiness(workload: Workload) -> Iterator[Seen]:
    for each in workload.replicas:
        for key, index, container in containers(each):
            if "readinessProbe" in container:
                yield Seen(
                    (*each.path, "spec", key, index, "readinessProbe"),
                    f"{container.get('name')} has a readinessProbe: while it fails, the pod's DNS "
                    "name is gone, and ranks cannot meet",
                    "take it away",
                )


CHECKS = (
    Check("container-name", Level.ERROR, "a PyTorchJob's container is named pytorch", _name),
    Check("readiness-probe", Level.ERROR, "no container has a readinessProbe", _readiness),
)
