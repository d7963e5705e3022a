# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job in which no check finds anything, and each way to spoil it."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

Edit = Callable[[dict[str, Any]], object]
ARGUMENTS = {
    "--tensor-model-parallel-size": "4",
    "--pipeline-model-parallel-size": "2",
    "--num-layers": "24",
    "--num-attention-heads": "16",
    "--micro-batch-size": "1",
    "--global-batch-size": "512",
    "--save": "/data/run",
    "--load": "/data/run",
}
TRAIN = "torchrun --nproc-per-node 8 pretrain_gpt.py --train-iters 10 --save /data/a --load /data/a"


def job(**arguments: str | None) -> dict[str, Any]:
    """A PyTorchJob of 1 + 1 pods with 8 GPUs, in which there is nothing to find."""
    flags = ARGUMENTS | {f"--{key.replace('_', '-')}": each for key, each in arguments.items()}
    words = [word for key, each in flags.items() if each is not None for word in (key, each)]
    container = {
        "name": "pytorch",
        "image": "megatron",
        "command": ["torchrun", "--nproc-per-node=8", "pretrain_gpt.py", *words],
        "env": [{"name": "NCCL_DEBUG", "value": "WARN"}],
        "resources": {"limits": {"nvidia.com/gpu": 8, "rdma/ib": 8}},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    spec = {"containers": [container], "volumes": volumes}
    replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": {"spec": spec}}
    replicas = {"Master": deepcopy(replica), "Worker": deepcopy(replica)}  # they share nothing
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "gpt"},
        "spec": {"runPolicy": {}, "pytorchReplicaSpecs": replicas},
    }


def pod(content: dict[str, Any], role: str = "Worker") -> dict[str, Any]:
    found: dict[str, Any] = content["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]
    return found


def container(content: dict[str, Any], role: str = "Worker") -> dict[str, Any]:
    found: dict[str, Any] = pod(content, role)["containers"][0]
    return found


def script(content: dict[str, Any], text: str) -> dict[str, Any]:
    for role in ("Master", "Worker"):
        container(content, role)["command"] = ["bash", "-c", text]
    return content


def variable(content: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    container(content)["env"].append({"name": name, "value": value})
    return content


def change(content: dict[str, Any], edit: Edit) -> dict[str, Any]:
    edit(content)
    return content


def service(selector: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "board"},
        "spec": {"selector": selector},
    }


def at_instance(kind: str, efa: int) -> dict[str, Any]:
    content = job()
    pod(content)["nodeSelector"] = {"node.kubernetes.io/instance-type": kind}
    limits = {"nvidia.com/gpu": 8, "vpc.amazonaws.com/efa": efa}
    container(content)["resources"] = {"limits": limits}
    return content


def jobset(
    policy: str, limit: int, *, failure: dict[str, Any] | None = None, pods: int = 2
) -> dict[str, Any]:
    inner = pod(job())
    template = {"spec": {**inner, "restartPolicy": policy}}
    spec = {"parallelism": pods, "backoffLimit": limit, "template": template}
    node = {"name": "node", "template": {"spec": spec}}
    failure = {"maxRestarts": 3} if failure is None else failure
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "gpt"},
        "spec": {"replicatedJobs": [node], "failurePolicy": failure},
    }


def probed_jobset(*, publishes: bool) -> dict[str, Any]:
    content = jobset("Never", 0)
    content["spec"]["network"] = {"publishNotReadyAddresses": publishes}
    inner = content["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    inner["containers"][0]["readinessProbe"] = {"exec": {"command": ["true"]}}
    return content


def with_policy(policy: str, *, is_wrapped: bool = False) -> dict[str, Any]:
    content = job()
    for role in ("Master", "Worker"):
        content["spec"]["pytorchReplicaSpecs"][role]["restartPolicy"] = policy
        if is_wrapped:
            command = container(content, role)["command"]
            container(content, role)["command"] = [
                "python3",
                "/mwatch/mwatch-run.pyz",
                "--",
                *command,
            ]
    return content


def resumed(mode: str) -> dict[str, Any]:
    content = job()
    content["metadata"]["annotations"] = {
        "sagemaker.amazonaws.com/enable-job-auto-resume": "true",
        "mwatch.dev/mode": mode,
    }
    return content


def saving(grace: int | None) -> dict[str, Any]:
    content = job()
    container(content)["command"].append("--exit-signal-handler")
    if grace is not None:
        pod(content)["terminationGracePeriodSeconds"] = grace
    return content


def elastic(least: int, most: int, backend: str = "c10d") -> dict[str, Any]:
    policy = {"minReplicas": least, "maxReplicas": most, "maxRestarts": 0, "rdzvBackend": backend}
    return change(job(), lambda it: it["spec"].update(elasticPolicy=policy))


def composer(*words: str) -> dict[str, Any]:
    text = " ".join(["composer --nproc 8 train.py c.yaml", *words])
    return script(job(), f"exec {text}")


def rendezvous(first: str, second: str) -> dict[str, Any]:
    content = variable(job(), "RDZV_ID", second)
    container(content, "Master")["env"].append({"name": "RDZV_ID", "value": first})
    return content


def rename(content: dict[str, Any], name: str) -> dict[str, Any]:
    return change(content, lambda it: container(it).update(name=name))


def limited(count: int) -> dict[str, Any]:
    return change(job(), lambda it: it["spec"]["runPolicy"].update(backoffLimit=count))


def queued(label: str) -> dict[str, Any]:
    return change(job(), lambda it: it["metadata"].update(labels={label: "team"}))


def probed(kind: str) -> dict[str, Any]:
    probe = {"exec": {"command": ["true"]}}
    return change(job(), lambda it: container(it).update({kind: probe}))


def without_shm(*, host_ipc: bool = False) -> dict[str, Any]:
    content = job()
    del container(content)["volumeMounts"][1]
    if host_ipc:
        pod(content)["hostIPC"] = True
    return content


def on_volume(source: dict[str, Any]) -> dict[str, Any]:
    return change(job(), lambda it: pod(it)["volumes"][0].update(source))


def local_disk() -> dict[str, Any]:
    content = on_volume({"emptyDir": {}})
    del pod(content)["volumes"][0]["persistentVolumeClaim"]
    return content
