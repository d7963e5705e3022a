# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of mwatch, and pods that it was injected into, under the Pod Security standard `restricted`.

The real API server enforces it. What the trainer's own container gives up, the parts of mwatch
beside it give up, too: none of them may be the reason that a pod is refused.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from cluster.dry_run import Refused, stored
from mwatch.kube.access import Access
from mwatch.kube.resources import ApiResource
from mwatch.manifests.whole import inject_text
from support.repository.chart_renders import CHARTS, rendered
from support.repository.manifest_files import NATIVE, PLAIN, named, objects_in, pods_of

NAMESPACES = ApiResource("", "v1", "namespaces", "Namespace", is_namespaced=False)
ENFORCED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: example.com/train:1
          command: ["torchrun", "pretrain_gpt.py", "--save", "/ckpt", "--load", "/ckpt"]
          securityContext:
            runAsNonRoot: true
            runAsUser: 1000
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
            seccompProfile: {type: RuntimeDefault}
"""


@pytest.fixture(scope="module")
def restricted(plane: ControlPlane, access: Access) -> str:
    namespace = things.fresh_namespace(access)
    access.patch(NAMESPACES, "", namespace, ENFORCED)
    # What admits pods hears of the label a moment later.
    things.wait_for(lambda: refuses(plane, namespace), "the standard is enforced")
    return namespace


def refuses(plane: ControlPlane, namespace: str) -> bool:
    container = {"name": "main", "image": "example.com/train:1"}
    try:
        stored(plane.kubectl, [pod({"containers": [container]})], namespace)
    except Refused as error:
        return "restricted" in str(error)
    return False


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}


def test_the_namespace_refuses_a_pod_that_gives_up_nothing(
    plane: ControlPlane, restricted: str
) -> None:
    (job,) = objects_in(JOB)
    spec = job["spec"]["template"]["spec"]
    del spec["containers"][0]["securityContext"]
    with pytest.raises(Refused, match="restricted"):
        stored(plane.kubectl, [pod(spec)], restricted)


@pytest.mark.parametrize("wrapper", ["configmap", "image"])
@pytest.mark.parametrize("form", [NATIVE, PLAIN], ids=["native", "plain"])
def test_an_injected_pod_is_taken(
    plane: ControlPlane, restricted: str, form: Any, wrapper: str
) -> None:
    (spec,) = pods_of(inject_text(JOB, "job.yaml", form._replace(wrapper=wrapper)).text, "Job")
    beside = [*spec.get("initContainers", ()), *spec["containers"]]
    assert named(beside, "mwatch")
    stored(plane.kubectl, [pod(spec)], restricted)


def test_the_controllers_pod_is_taken(plane: ControlPlane, restricted: str) -> None:
    objects = rendered(CHARTS / "mwatch", name="mwatch")
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    spec["serviceAccountName"] = "default"
    stored(plane.kubectl, [pod(spec)], restricted)
