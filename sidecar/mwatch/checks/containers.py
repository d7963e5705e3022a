# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The container that the operator looks for, and probes that take a pod's name away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
    if _keeps_names(workload):
        return
    is_sure = workload.kind == "PyTorchJob"
    unless = "" if is_sure else " (unless its Service has publishNotReadyAddresses)"
    for each in workload.replicas:
        for key, index, container in containers(each):
            if "readinessProbe" in container:
                yield Seen(
                    (*each.path, "spec", key, index, "readinessProbe"),
                    f"{container.get('name')} has a readinessProbe: while it fails, the pod's DNS "
                    f"name is gone, and ranks cannot meet{unless}",
                    "take it away",
                    None if is_sure else Level.WARNING,
                )


def _keeps_names(workload: Workload) -> bool:
    """Names of pods that are not ready too: a JobSet's own Service does so unless it is told."""
    if workload.kind in ("JobSet", "TrainJob"):
        network = workload.spec.get("network")
        return not (
            isinstance(network, Mapping) and network.get("publishNotReadyAddresses") is False
        )
    services = [each.content.get("spec") for each in workload.others if each.kind == "Service"]
    return any(
        isinstance(each, Mapping) and each.get("publishNotReadyAddresses") is True
        for each in services
    )


CHECKS = (
    Check("container-name", Level.ERROR, "a PyTorchJob's container is named pytorch", _name),
    Check("readiness-probe", Level.ERROR, "no container has a readinessProbe", _readiness),
)
