# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""etcd and the API server, with the controllers and the scheduler where they are wanted.

Alone it takes pods and runs none: enough for dry runs, rights, admission and thousands of pods.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from cluster import addresses
from cluster.binaries import kubernetes
from cluster.kubectl import Kubectl
from cluster.namespaces import Namespaces
from cluster.tools import tools

READY_SECONDS = 240.0
"""For a part of the cluster to come up, on a machine that is busy."""
_USERS = (
    ("admin", "admin", "system:masters"),
    ("manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("proxy", "system:kube-proxy", ""),
    ("node", "system:node:node1", "system:nodes"),
)
_NETWORK = f"""
set -e
ip link set lo up
ip link add {addresses.BRIDGE} type bridge
ip addr add {addresses.NODE}/24 dev {addresses.BRIDGE}
ip link set {addresses.BRIDGE} up
# Programs of the node reach the addresses of services; kube-proxy rewrites them.
ip route add {addresses.SERVICES} dev {addresses.BRIDGE}
sysctl -qw net.ipv4.ip_forward=1
"""


class ControlPlane:
    """Started by `start`; `kubectl` speaks to it as its administrator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.binaries = kubernetes()
        self.environment = tools().environment(self.binaries)
        self.namespaces = Namespaces(folder)
        self.kubectl = Kubectl(self.binaries / "kubectl", self.kubeconfig("admin"))

    def kubeconfig(self, who: str) -> Path:
        return self.folder / f"{who}.kubeconfig"

    def start(self) -> None:
        """From inside the network of the namespaces."""
        subprocess.run(["sh", "-c", _NETWORK], check=True, timeout=60, env=self.environment)
        self._write_users()
        key = self.folder / "sa.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        self.run("etcd", "--data-dir", "etcd", "--unsafe-no-fsync")
        self.run(
            "kube-apiserver",
            "--etcd-servers", "http://127.0.0.1:2379",
            "--advertise-address", addresses.NODE,
            "--cert-dir", "certs",
            "--token-auth-file", "tokens.csv",
            "--authorization-mode", "Node,RBAC",
            "--service-account-issuer", "https://kubernetes.default.svc",
            "--service-account-key-file", str(key),
            "--service-account-signing-key-file", str(key),
            "--service-cluster-ip-range", addresses.SERVICES,
            "--allow-privileged",
            # Names of nodes are in no name server.
            "--kubelet-preferred-address-types", "InternalIP",
        )  # fmt: skip
        self.wait_for("API server", "get", "--raw", "/readyz")

    def start_controllers(self) -> None:
        self.run(
            "kube-controller-manager",
            "--kubeconfig", str(self.kubeconfig("manager")),
            "--service-account-private-key-file", "sa.key",
            "--root-ca-file", "certs/apiserver.crt",
            "--use-service-account-credentials",
            "--leader-elect=false",
        )  # fmt: skip
        self.run(
            "kube-scheduler",
            "--kubeconfig", str(self.kubeconfig("scheduler")),
            "--leader-elect=false",
        )  # fmt: skip
        self.wait_for("service account", "get", "serviceaccount", "default")

    def run(self, program: str, *words: str) -> None:
        self.namespaces.start(program, [program, *words], self.environment)

    def wait_for(self, what: str, *words: str, says: str = "") -> None:
        """Until kubectl, called so, ends well and its answer holds `says`."""

        def is_there() -> bool:
            answer = self.kubectl.answer(*words)
            return answer is not None and says in answer

        self.namespaces.wait_for(what, is_there, READY_SECONDS)

    def close(self) -> None:
        self.namespaces.close()

    def _write_users(self) -> None:
        lines = [f'{token},{user},{token},"{groups}"' for token, user, groups in _USERS]
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        for token, _, _ in _USERS:
            self.kubeconfig(token).write_text(json.dumps(_kubeconfig(self.folder, token)))


def _kubeconfig(folder: Path, token: str) -> dict[str, object]:
    authority = str(folder / "certs" / "apiserver.crt")
    cluster = {"server": addresses.API, "certificate-authority": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": token}}],
        "users": [{"name": token, "user": {"token": token}}],
        "clusters": [{"name": "test", "cluster": cluster}],
    }
