# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes that are not there: kwok says for them that they are ready and that their pods run.

Everything else about them is real: the API server, the scheduler that puts pods on them, the
operator that makes those pods. A node here is one of 8 GPUs. Its heartbeat is a status every ten
minutes, as kubelets send one every five, and no lease: the leases of two thousand kubelets are
nothing that the controller sees, and would take a core of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster import binaries
from cluster.control_plane import ControlPlane
from cluster.namespaces import ClusterBroken

MODULE = "sigs.k8s.io/kwok"
VERSION = "0.7.0"
ADDRESSES = "198.18.0.0/16"
LOCAL = "198.18.0.0/15"
"""Of pods and of nodes: the range that is set apart for benchmarks of networks."""
NODE_ADDRESS = "198.19.0.1"
LABEL = {"type": "kwok"}
TAINT = "kwok.x-k8s.io/node"
GPUS = 8
_MANAGED = "kwok.x-k8s.io/node=fake"
_STAGES = ("pod/fast", "node/fast", "node/heartbeat-with-lease")
_AT_ONCE = 256
_LOOK_SECONDS = 3.0
_READY_LOOKS = 100


def kwok() -> Path:
    """Built on first use, in two and a half minutes."""

    def made(folder: Path) -> None:
        words = ["install", "-trimpath", "-ldflags", "-s -w", f"{MODULE}/cmd/kwok@v{VERSION}"]
        binaries._go(words, folder, folder)

    return binaries.built("kwok", VERSION, made) / "kwok"


def start(plane: ControlPlane, program: Path, stages: Path) -> None:
    plane.namespaces.start(
        "kwok",
        [
            program,
            "--kubeconfig", plane.kubeconfig("admin"),
            "--manage-nodes-with-annotation-selector", _MANAGED,
            "--cidr", ADDRESSES,
            "--node-ip", NODE_ADDRESS,
            "--node-lease-duration-seconds", "0",
            "--config", stages,
        ],
        plane.environment,
    )  # fmt: skip


def write_stages(folder: Path) -> Path:
    """What becomes of a pod and of a node: kwok's own words on it, in one file."""
    source = binaries.module_folder(MODULE, VERSION) / "kustomize" / "stage"
    files = [path for each in _STAGES for path in sorted((source / each).glob("*.yaml"))]
    texts = [path.read_text() for path in files if path.name != "kustomization.yaml"]
    target = folder / "stages.yaml"
    target.write_text("\n---\n".join(texts))
    return target


def add_nodes(plane: ControlPlane, first: int, last: int) -> None:
    """Of those numbers, `last` not among them; waits until all are ready."""
    for begin in range(first, last, _AT_ONCE):
        some = [node(number) for number in range(begin, min(begin + _AT_ONCE, last))]
        plane.kubectl.apply(*some, server_side=True)
    for _ in range(_READY_LOOKS):
        if _ready(plane) >= last:
            return
        time.sleep(_LOOK_SECONDS)
    raise ClusterBroken(f"no {last} ready nodes after {_READY_LOOKS * _LOOK_SECONDS:.0f} s")


def node(number: int) -> dict[str, Any]:
    size = {"cpu": "128", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    name = f"kwok-{number:04d}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**LABEL, "kubernetes.io/hostname": name},
            "annotations": {TAINT: "fake"},
        },
        "spec": {"taints": [{"key": TAINT, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": size, "capacity": size},
    }


def _ready(plane: ControlPlane) -> int:
    answer = plane.kubectl.answer("get", "nodes", "-l", "type=kwok", "--no-headers")
    return sum(_are_ready(answer or ""))


def _are_ready(listing: str) -> Iterator[bool]:
    for line in listing.splitlines():
        yield line.split()[1:2] == ["Ready"]
