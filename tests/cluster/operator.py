# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Kubeflow's training operator, from its own manifests, with an image that is made here."""

from __future__ import annotations

import re

from cluster.binaries import OPERATOR, OPERATOR_MODULE, module_folder, training_operator
from cluster.control_plane import ControlPlane
from cluster.images import OPERATOR as IMAGE
from cluster.images import WAITER, operator_image, waiter_image
from cluster.node import Node

_IMAGE = re.compile(r"image: kubeflow/training-operator\S*")
_COMMAND = "        - /manager\n"


def install(plane: ControlPlane, node: Node, version: str = OPERATOR) -> None:
    node.load(operator_image(plane.folder, training_operator(version)))
    node.load(waiter_image(plane.folder))
    overlay = module_folder(OPERATOR_MODULE, version) / "manifests" / "overlays" / "standalone"
    text = plane.kubectl("kustomize", str(overlay))
    text = _IMAGE.sub(f"image: {IMAGE}\n        imagePullPolicy: IfNotPresent", text)
    text = text.replace(_COMMAND, f"{_COMMAND}        - --pytorch-init-container-image={WAITER}\n")
    plane.kubectl("apply", "--server-side", "-f", "-", given=text)
    plane.kubectl(
        "wait",
        "--for=condition=Available",
        "--namespace=kubeflow",
        "deployment/training-operator",
        "--timeout=120s",
        seconds=130,
    )
