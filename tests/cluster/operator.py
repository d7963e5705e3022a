# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Kubeflow's training operator, from its own manifests, with an image that is made here."""

from __future__ import annotations

import json
import re

from cluster.binaries import OPERATOR, OPERATOR_MODULE, module_folder, training_operator
from cluster.control_plane import ControlPlane
from cluster.images import OPERATOR as IMAGE
from cluster.images import WAITER, operator_image, waiter_image
from cluster.node import Node

_IMAGE = re.compile(r"image: kubeflow/training-operator\S*")
_COMMAND = "        - /manager\n"
_PROBES = re.compile(r"(initialDelaySeconds|periodSeconds): \d+")
"""Its makers wait 10 s before they look at it for the first time."""
_WEBHOOK = "validator.training-operator.kubeflow.org"
"""Of the newer ones; with 1.7.0 nobody answers it."""
_MASTER = {
    "replicas": 1, "restartPolicy": "OnFailure",
    "template": {"spec": {"containers": [{"name": "pytorch", "image": "localhost/none:1"}]}},
}  # fmt: skip
_JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "asked", "namespace": "default"},
    "spec": {"pytorchReplicaSpecs": {"Master": _MASTER}},
}


def install(plane: ControlPlane, node: Node, version: str = OPERATOR) -> None:
    """In the place of another version, where there is one."""
    node.load(operator_image(plane.folder, training_operator(version), version))
    node.load(waiter_image(plane.folder))
    overlay = module_folder(OPERATOR_MODULE, version) / "manifests" / "overlays" / "standalone"
    text = plane.kubectl("kustomize", str(overlay))
    image = f"{IMAGE}:{version}"
    text = _IMAGE.sub(f"image: {image}\n        imagePullPolicy: IfNotPresent", text)
    text = text.replace(_COMMAND, f"{_COMMAND}        - --pytorch-init-container-image={WAITER}\n")
    text = _PROBES.sub(r"\1: 1", text)
    plane.kubectl(
        "delete", "validatingwebhookconfiguration", _WEBHOOK, "--ignore-not-found", "--wait=true"
    )
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=text)
    rollout = ("rollout", "status", "deployment/training-operator", "--namespace=kubeflow")
    plane.kubectl(*rollout, "--timeout=300s", seconds=310)
    # Its webhook is reached by way of a Service, which kube-proxy hears of later.
    file = plane.folder / "asked.json"
    file.write_text(json.dumps(_JOB))
    plane.wait_for("operator that takes jobs", "create", "--dry-run=server", "-f", str(file))
