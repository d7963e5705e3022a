# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Operator 1.7.0, as HyperPod has it: its CRD drops native sidecars, so mwatch is a container."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster import operator
from cluster.binaries import OLD_OPERATOR
from cluster.control_plane import ControlPlane
from cluster.node import Node
from cluster.training_job import Wanted, pytorchjob
from cluster.yard import Yard

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def old_operator(yard: Yard, plane: ControlPlane, node: Node) -> Iterator[None]:
    operator.install(plane, node, OLD_OPERATOR)
    yield
    operator.install(plane, node)


def test_a_stopped_rank_is_restarted_with_a_container_sidecar(
    old_operator: None, yard: Yard
) -> None:
    yard.restart_by_pods()
    job = yard.start(pytorchjob(yard.trainer, Wanted("old", launcher="python")))
    try:
        pods, attempt = job.trains_well()
        spec = yard.cluster.get("pod", job.pod("worker"), "-n", yard.namespace)["spec"]
        assert "mwatch" in {each["name"] for each in spec["containers"]}
        last = job.stop("worker")
        job.wait_for_attempt(attempt + 1)
        assert job.resumed() == last.checkpoint
        job.resumes(last.checkpoint, past=last.iteration)
        assert not set(job.pods().values()) & set(pods.values())
    finally:
        yard.end(job)
        gone = ("wait", "--for=delete", f"pytorchjob/{job.name}", "--timeout=240s")
        yard.cluster(*gone, "-n", yard.namespace, seconds=250)
