# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster of the tests is a real one, and leaves nothing behind."""

from __future__ import annotations

import pytest

from cluster.binaries import VERSION
from cluster.control_plane import ControlPlane
from cluster.kubectl import Kubectl


@pytest.mark.timeout(180)
def test_the_api_server_answers_and_judges(plane: ControlPlane) -> None:
    assert f"v{VERSION}" in plane.kubectl("version")
    assert plane.kubectl("auth", "can-i", "delete", "pods").strip() == "yes"
    assert plane.kubectl.answer("auth", "can-i", "delete", "pods", "--as", "nobody") is None


@pytest.mark.timeout(180)
def test_a_pod_runs_on_the_node(cluster: Kubectl) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "first"},
        "spec": {
            "containers": [
                {"name": "one", "image": "localhost/pause:1", "imagePullPolicy": "IfNotPresent"}
            ]
        },
    }
    cluster.apply(pod)
    cluster("wait", "--for=condition=Ready", "pod/first", "--timeout=60s", seconds=70)
    cluster("delete", "pod", "first", "--grace-period=0", "--force")
