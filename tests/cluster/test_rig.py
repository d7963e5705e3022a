# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster of the tests is a real one: it judges, runs pods, and makes the pods of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.binaries import VERSION
from cluster.control_plane import ControlPlane
from cluster.given import given_images, is_given
from cluster.images import MWATCH
from cluster.kubectl import Kubectl

pytestmark = pytest.mark.timeout(900)


def test_the_api_server_answers_and_judges(plane: ControlPlane) -> None:
    assert is_given() or f"v{VERSION}" in plane.kubectl("version")
    assert plane.kubectl("auth", "can-i", "delete", "pods").strip() == "yes"
    assert plane.kubectl.answer("auth", "can-i", "delete", "pods", "--as", "nobody") is None


def test_a_pod_of_our_image_runs_and_ends(cluster: Kubectl) -> None:
    spec = {"restartPolicy": "Never", "containers": [container("one", "--version")]}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": named("first"), "spec": spec})
    cluster("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/first", "--timeout=240s",
            seconds=250)  # fmt: skip
    assert cluster("logs", "first").startswith("mwatch ")
    cluster("delete", "pod", "first", seconds=240)


def test_the_operator_makes_the_pods_of_a_job_and_finishes_it(cluster: Kubectl) -> None:
    template = {"spec": {"containers": [container("pytorch", "--version")]}}
    replicas = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": named("short"),
        "spec": {"pytorchReplicaSpecs": {"Master": replicas, "Worker": replicas}},
    }
    cluster.apply(job)
    cluster("wait", "--for=condition=Succeeded", "pytorchjob/short", "--timeout=240s", seconds=250)
    cluster("delete", "pytorchjob", "short", seconds=240)


def named(name: str) -> dict[str, str]:
    return {"name": name, "namespace": "default"}


def container(name: str, *arguments: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": given_images().get("mwatch", MWATCH),
        "imagePullPolicy": "IfNotPresent",
        "args": [*arguments],
    }
