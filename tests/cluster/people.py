# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch` as a person calls it, on the real API server; and pods as a kubelet tells of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster import kube_things as things
from cluster.control_plane import ControlPlane
from mwatch.kube.access import Access
from mwatch.kube.resources import NODES, PODS
from mwatch.model.kube.job import KubeJob

ROOT = Path(__file__).resolve().parents[2]


def environment(plane: ControlPlane) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'sidecar'}:{ROOT / 'trainer'}",
        "KUBECONFIG": str(plane.kubeconfig("admin")),
        "TERM": "xterm",
    }


def mwatch(plane: ControlPlane, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mwatch", *words],
        capture_output=True, text=True, timeout=180, env=environment(plane), check=False,
    )  # fmt: skip


def run_pods(access: Access, job: KubeJob, count: int, node: str) -> None:
    """As a kubelet would tell of them."""
    for index in range(count):
        name = f"{job.name}-{index}"
        things.make_pod(access, job, name, node=node)
        state = {"name": "pytorch", "restartCount": 0, "image": "", "imageID": "", "ready": True,
                 "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}  # fmt: skip
        status = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": [state]}
        access.patch(PODS, job.namespace, name, {"status": status}, part="status")


def ready_node(access: Access, name: str) -> str:
    things.make_node(access, name)
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    access.patch(NODES, None, name, {"status": status}, part="status")
    return name
