# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The ConfigMap with the wrapper, as the chart mwatch would make it: for namespaces without it."""

from __future__ import annotations

import base64
from typing import Any

from cluster.kubectl import Kubectl
from mwatch.manifests.parts import WRAPPER
from mwatch_trainer.zipapp_build import content


def configmap(namespace: str, data: bytes | None = None) -> dict[str, Any]:
    """`data`: another content of the file."""
    encoded = base64.b64encode(content() if data is None else data).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": WRAPPER, "namespace": namespace},
        "binaryData": {f"{WRAPPER}.pyz": encoded},
    }


def provide(cluster: Kubectl, namespace: str, data: bytes | None = None) -> None:
    # A client-side apply would keep a second copy in an annotation, which is too large for one.
    cluster.apply(configmap(namespace, data), server_side=True)
