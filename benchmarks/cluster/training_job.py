# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The job that is measured: a PyTorchJob as a user writes it, with mwatch added by `inject`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any
from urllib.parse import quote

from benchmarks.cluster import kwok
from benchmarks.cluster.fleet_page import Place
from benchmarks.cluster.site import NAMESPACE, BenchPlane, seldom
from benchmarks.measure import ROOT
from benchmarks.serving import environment

NAME = "gpt"
_LABEL = f"training.kubeflow.org/job-name={NAME}"
_MEGATRON = (
    "torchrun", "--nproc-per-node=8", "pretrain_gpt.py", "--tensor-model-parallel-size", "8",
    "--pipeline-model-parallel-size", "8", "--num-layers", "96", "--num-attention-heads", "96",
    "--micro-batch-size", "1", "--global-batch-size", "2048", "--save", "/data/run",
    "--load", "/data/run",
)  # fmt: skip
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={_LABEL}"
_PAGE = 250
_PAGE_SECONDS = 180.0
_RUN_SECONDS = 900.0
_GONE_SECONDS = 600.0


def start(plane: BenchPlane, pods: int) -> float:
    """Seconds until all its pods run."""
    began = time.monotonic()
    plane.kubectl("apply", "-f", "-", given=_injected(plain(pods)))
    seldom(plane, f"{pods} pods that run", lambda: _running(plane) == pods, _RUN_SECONDS)
    return time.monotonic() - began


def places(plane: BenchPlane) -> list[Place]:
    """Of the pods that run; the master is the first of them."""
    found, more = list[Place](), ""
    while True:
        path = f"{_PODS}&limit={_PAGE}" + (f"&continue={quote(more)}" if more else "")
        body = json.loads(plane.kubectl("get", "--raw", path, seconds=_PAGE_SECONDS))
        live = (each for each in body["items"] if not each["metadata"].get("deletionTimestamp"))
        found += map(_place, live)
        more = body["metadata"].get("continue", "")
        if not more:
            return sorted(found)


def remove(plane: BenchPlane) -> None:
    plane.kubectl("delete", "pytorchjob", NAME, "-n", NAMESPACE, "--wait=false")
    seldom(plane, "end of all pods", lambda: _are_gone(plane), _GONE_SECONDS)


def plain(pods: int) -> dict[str, Any]:
    container = {
        "name": "pytorch",
        "image": "megatron",
        "command": list(_MEGATRON),
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
        "resources": {"limits": {"nvidia.com/gpu": kwok.GPUS}},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    spec = {
        "nodeSelector": kwok.LABEL,
        "tolerations": [{"key": kwok.TAINT, "operator": "Exists"}],
        "containers": [container],
        "volumes": [
            {"name": "data", "hostPath": {"path": "/data"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    replicas = {
        role: {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": spec}}
        for role, count in (("Master", 1), ("Worker", pods - 1))
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "spec": {"pytorchReplicaSpecs": replicas},
    }


def _injected(job: dict[str, Any]) -> str:
    words = ["inject", "-f", "-", "--sidecar", "native", "--mode", "act"]
    done = subprocess.run(
        [sys.executable, "-m", "mwatch", *words],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        cwd=ROOT,
    )
    if done.returncode:
        raise RuntimeError(f"mwatch inject ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def _place(body: dict[str, Any]) -> Place:
    about, labels = body["metadata"], body["metadata"]["labels"]
    index = int(labels["training.kubeflow.org/replica-index"])
    is_master = labels["training.kubeflow.org/replica-type"] == "master"
    return Place(
        index if is_master else index + 1,
        about["name"],
        about["uid"],
        about["namespace"],
        body["spec"]["nodeName"],
        body["status"]["podIP"],
    )


def _running(plane: BenchPlane) -> int:
    """As the operator counts them: all pods, read again and again, would be the heaviest load."""
    found = plane.kubectl.answer("get", "pytorchjob", NAME, "-n", NAMESPACE, "-o", "json")
    status = json.loads(found or "{}").get("status") or {}
    return sum(each.get("active", 0) for each in (status.get("replicaStatuses") or {}).values())


def _are_gone(plane: BenchPlane) -> bool:
    found = plane.kubectl.answer("get", "--raw", f"{_PODS}&limit=1")
    return found is not None and not json.loads(found)["items"]
