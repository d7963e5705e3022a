# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""JobSet's own controller, beside the API server: without its webhooks, so nothing is defaulted."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from cluster import binaries
from cluster.control_plane import ControlPlane

MODULE = "sigs.k8s.io/jobset"
VERSION = "0.10.1"
_GO_MOD = f"module jobset\ngo 1.24\nrequire {MODULE} v{VERSION}\n"
# The proxy does not list the module, so it cannot be installed by name and version.
_TOOLS = f'//go:build tools\n\npackage main\n\nimport _ "{MODULE}"\n'
_SETTINGS = """\
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
internalCertManagement: {{enable: false}}
leaderElection: {{leaderElect: false}}
webhook: {{certDir: "{folder}", port: 9444}}
metrics: {{bindAddress: "127.0.0.1:9445"}}
health: {{healthProbeBindAddress: "127.0.0.1:9446"}}
"""


def jobset_manager() -> Path:
    """Built on first use: two minutes."""

    def made(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            (Path(work) / "go.mod").write_text(_GO_MOD)
            (Path(work) / "main.go").write_text("package main\n\nfunc main() {}\n")
            (Path(work) / "tools.go").write_text(_TOOLS)
            binaries._go(["mod", "tidy"], folder, Path(work))
            target = str(folder / "jobset")
            words = ["build", "-trimpath", "-ldflags", "-s -w", "-o", target, MODULE]
            binaries._go(words, folder, Path(work))

    return binaries._built("jobset", VERSION, made) / "jobset"


def start(plane: ControlPlane) -> None:
    crds = binaries.module_folder(MODULE, VERSION) / "config" / "components" / "crd" / "bases"
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crds))
    plane.wait_for("CRD of JobSet", "get", "jobsets")
    folder = plane.folder / "jobset"
    folder.mkdir()
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
            "-subj", "/CN=jobset", "-keyout", str(folder / "tls.key"),
            "-out", str(folder / "tls.crt"),
        ],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    settings = folder / "settings.yaml"
    settings.write_text(_SETTINGS.format(folder=folder))
    environment = {**plane.environment, "KUBECONFIG": str(plane.kubeconfig("admin"))}
    plane.namespaces.start("jobset", [jobset_manager(), "--config", str(settings)], environment)
