# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""JobSet's own controller, beside the API server: without its webhooks, so nothing is defaulted."""

from __future__ import annotations

from pathlib import Path

from cluster import binaries
from cluster.control_plane import READY_SECONDS, ControlPlane
from cluster.namespaces import is_listening
from cluster.own_certificate import write_certificate

MODULE = "sigs.k8s.io/jobset"
VERSION = "0.10.1"
_SETTINGS = """\
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
internalCertManagement: {{enable: false}}
leaderElection: {{leaderElect: false}}
webhook: {{certDir: "{folder}", port: 9444}}
metrics: {{bindAddress: "127.0.0.1:9445"}}
health: {{healthProbeBindAddress: "127.0.0.1:9446"}}
"""
_HEALTH = 9446


def jobset_manager() -> Path:
    return binaries.program_of("jobset", MODULE, VERSION, MODULE)


def start(plane: ControlPlane) -> None:
    crds = binaries.module_folder(MODULE, VERSION) / "config" / "components" / "crd" / "bases"
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crds))
    plane.wait_for("CRD of JobSet", "get", "jobsets")
    folder = plane.folder / "jobset"
    folder.mkdir()
    write_certificate(folder, "jobset")
    settings = folder / "settings.yaml"
    settings.write_text(_SETTINGS.format(folder=folder))
    environment = {**plane.environment, "KUBECONFIG": str(plane.kubeconfig("admin"))}
    plane.namespaces.start("jobset", [jobset_manager(), "--config", str(settings)], environment)
    # One that dies while it starts is started again.
    plane.namespaces.wait_for("JobSet", lambda: is_listening(_HEALTH), READY_SECONDS)
