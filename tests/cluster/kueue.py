# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Kueue's own controller, beside the API server: without its webhooks, so nothing is defaulted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster import binaries
from cluster.control_plane import READY_SECONDS, ControlPlane
from cluster.namespaces import is_listening
from cluster.own_certificate import write_certificate

MODULE = "sigs.k8s.io/kueue"
VERSION = "0.14.0"
_API = "kueue.x-k8s.io/v1beta1"
_METRICS = "kueue/metrics/certs"
"""Below /etc, where it looks for a certificate and cannot be told otherwise."""
_SETTINGS = """\
apiVersion: config.kueue.x-k8s.io/v1beta1
kind: Configuration
internalCertManagement: {{enable: false}}
leaderElection: {{leaderElect: false}}
webhook: {{certDir: "{folder}", port: 9454}}
metrics: {{bindAddress: "127.0.0.1:9455"}}
health: {{healthProbeBindAddress: "127.0.0.1:9456"}}
integrations: {{frameworks: ["kubeflow.org/pytorchjob"]}}
"""
_HEALTH = 9456


def kueue_manager() -> Path:
    return binaries.program_of("kueue", MODULE, VERSION, f"{MODULE}/cmd/kueue")


def start(plane: ControlPlane) -> None:
    crds = binaries.module_folder(MODULE, VERSION) / "config" / "components" / "crd" / "bases"
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crds))
    plane.wait_for("CRDs of Kueue", "get", "workloads.kueue.x-k8s.io,clusterqueues")
    folder = plane.folder / "kueue"
    certificates = folder / "etc" / _METRICS
    certificates.mkdir(parents=True)
    write_certificate(certificates, "kueue")
    settings = folder / "settings.yaml"
    settings.write_text(_SETTINGS.format(folder=certificates))
    environment = {**plane.environment, "KUBECONFIG": str(plane.kubeconfig("admin"))}
    gates = "--feature-gates=VisibilityOnDemand=false"  # it is an API server of its own
    script = 'mount --bind "$1" /etc && shift && exec "$@"'
    words = ("unshare", "--mount", "sh", "-c", script, "sh", folder / "etc")
    program = (kueue_manager(), "--config", settings, gates)
    plane.namespaces.start("kueue", (*words, *program), environment)
    # One that dies while it starts is started again.
    plane.namespaces.wait_for("Kueue", lambda: is_listening(_HEALTH), READY_SECONDS)


def queue(namespace: str, name: str, *, pods: int) -> list[dict[str, Any]]:
    """A queue of that namespace, with room for so many pods."""
    flavor = {"name": name, "resources": [{"name": "cpu", "nominalQuota": f"{pods * 100}m"}]}
    group = {"coveredResources": ["cpu"], "flavors": [flavor]}
    return [
        _named("ResourceFlavor", name, None, {}),
        _named("ClusterQueue", name, None, {"namespaceSelector": {}, "resourceGroups": [group]}),
        _named("LocalQueue", name, namespace, {"clusterQueue": name}),
    ]


def _named(kind: str, name: str, namespace: str | None, spec: dict[str, Any]) -> dict[str, Any]:
    about = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": _API, "kind": kind, "metadata": about, "spec": spec}
