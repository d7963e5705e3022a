# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster of the benchmark: a real control plane, the real operator, and nodes by kwok.

It is the cluster of `tests/cluster`, which leaves nothing behind, however it ends. The operator is
a pod on its one real node; the pods of the measured job are on the others. The API server writes
down each call of the controller: see `benchmarks.cluster.calls`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cluster import kwok
from benchmarks.cluster.calls import FILE, POLICY
from benchmarks.measure import ROOT
from cluster import operator, programs
from cluster.control_plane import ControlPlane
from cluster.node import Node

NAMESPACE = "training"
ACCOUNT = "mwatch-controller"
_LOOK_SECONDS = 2.0
_RIGHTS = ("controller.yaml", "admission.yaml", "nodes-read.yaml")
_MORE = {
    # Nodes by kwok have no lease, and tell of themselves every ten minutes.
    "kube-controller-manager": ["--node-monitor-grace-period=2h", "--kube-api-qps=200"],
    "kube-scheduler": ["--kube-api-qps=200", "--kube-api-burst=400"],
    "kube-apiserver": ["--audit-policy-file=audit.json", f"--audit-log-path={FILE}"],
}


class BenchPlane(ControlPlane):
    def run(self, program: str, *words: str) -> None:
        super().run(program, *words, *_MORE.get(program, ()))

    def start(self) -> None:
        (self.folder / "audit.json").write_text(json.dumps(POLICY))
        super().start()


@contextmanager
def site() -> Iterator[BenchPlane]:
    """In the network of the cluster."""
    programs.build(programs.needed_by({"cluster"}))
    program = kwok.kwok()
    with tempfile.TemporaryDirectory(prefix="mwatch-bench-") as folder:
        plane = BenchPlane(Path(folder))
        try:
            with plane.namespaces.inside():
                _start(plane, program)
                yield plane
        finally:
            plane.close()


def _start(plane: BenchPlane, program: Path) -> None:
    plane.start()
    plane.start_controllers()
    node = Node(plane)
    node.start()
    operator.install(plane, node)
    kwok.start(plane, program, kwok.write_stages(plane.folder))
    # Every address of a pod answers: all of them are this machine.
    words = ["ip", "route", "add", "local", kwok.LOCAL, "dev", "lo"]
    subprocess.run(words, check=True, timeout=20, env=plane.environment)
    plane.kubectl("create", "namespace", NAMESPACE)
    for name in _RIGHTS:
        plane.kubectl("apply", "-f", str(ROOT / "manifests" / "rbac" / name))


def seldom(plane: BenchPlane, what: str, is_there: Callable[[], bool], seconds: float) -> None:
    """Waits for it, and looks so rarely that the looks do not count."""

    def look() -> bool:
        time.sleep(_LOOK_SECONDS)
        return is_there()

    plane.namespaces.wait_for(what, look, seconds)


def controller_kubeconfig(plane: BenchPlane) -> Path:
    """As the controller's own service account: with its rights and under its limits."""
    token = plane.kubectl("create", "token", ACCOUNT, "-n", NAMESPACE, "--duration=4h").strip()
    body = json.loads(plane.kubeconfig("admin").read_text())
    body["users"] = [{"name": ACCOUNT, "user": {"token": token}}]
    body["contexts"] = [
        {"name": "bench", "context": {"cluster": "test", "user": ACCOUNT, "namespace": NAMESPACE}}
    ]
    body["current-context"] = "bench"
    path = plane.kubeconfig("controller")
    path.write_text(json.dumps(body))
    os.chmod(path, 0o600)
    return path
