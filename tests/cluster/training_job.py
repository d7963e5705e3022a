# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job that really trains: two pods, one rank of the small GPT in each, over the pods' network.

On a cluster made here its image holds a shell, and Python with torch comes from this machine by
hostPath; on a cluster that was given it is the user's image. Checkpoints lie on a claim.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_ROOT = Path(__file__).resolve().parents[2]
CLAIM = "checkpoints"
SAVE = "/checkpoints"
FAULTS = f"{SAVE}/faults"
PORT = 29500
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_SMALL = (
    "--num-layers", "1", "--hidden-size", "32", "--num-attention-heads", "4",
    "--seq-length", "64", "--micro-batch-size", "2", "--global-batch-size", "4",
    "--lr", "1e-4", "--lr-decay-style", "constant", "--bf16", "--log-interval", "1",
    "--eval-interval", "1000000", "--eval-iters", "1",
    "--distributed-backend", "gloo", "--no-check-for-nan-in-loss-and-grad",
    "--min-step-seconds", "0.1",
)  # fmt: skip


class Trainer(NamedTuple):
    """What its pods are made of."""

    image: str
    python: str
    """In the image."""
    mounted: tuple[str, ...] = ()
    """Folders of the node, seen in the image under their own names."""
    search: str = ""
    """PYTHONPATH."""


class Wanted(NamedTuple):
    name: str
    save_interval: int = 20
    iterations: int = 1_000_000
    faults: tuple[str, ...] = ()
    launcher: str = "torchrun"
    """Or `python`: the rank is what the pod's operator says."""
    saves_at_end: bool = False
    """On SIGTERM."""


def machine_trainer(image: str) -> Trainer:
    """With the Python that runs the tests, and its packages."""
    # Not resolved: where Python is a link into a virtual environment, that is what is meant.
    folders = ["/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(_ROOT / "trainer")]
    mounted = tuple(dict.fromkeys(each for each in folders if Path(each).is_dir()))
    return Trainer(image, sys.executable, mounted, str(_ROOT / "trainer"))


def command(trainer: Trainer, wanted: Wanted) -> list[str]:
    save = f"{SAVE}/{wanted.name}"
    words = [
        "-m", "mwatch_gpt", *_SMALL,
        "--train-iters", str(wanted.iterations),
        "--save", save, "--load", save, "--save-interval", str(wanted.save_interval),
        "--fault-state", f"{FAULTS}/{wanted.name}",
    ]  # fmt: skip
    words += ["--exit-signal-handler"] if wanted.saves_at_end else []
    words += [word for each in wanted.faults for word in ("--fault", each)]
    if wanted.launcher == "python":
        return [trainer.python, *words]
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "--nnodes", "2"]
    return [trainer.python, *run, *words]


def pod_spec(
    trainer: Trainer, wanted: Wanted, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    claim = {"claimName": CLAIM}
    mounts: list[dict[str, Any]] = [{"name": "checkpoints", "mountPath": SAVE}]
    volumes: list[dict[str, Any]] = [{"name": "checkpoints", "persistentVolumeClaim": claim}]
    for number, path in enumerate(trainer.mounted):
        mounts.append({"name": f"machine-{number}", "mountPath": path, "readOnly": True})
        volumes.append({"name": f"machine-{number}", "hostPath": {"path": path}})
    variables = {"PYTHONPATH": trainer.search, "OMP_NUM_THREADS": "1", **(environment or {})}
    container = {
        "name": "pytorch",
        "image": trainer.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command(trainer, wanted),
        "env": [{"name": name, "value": value} for name, value in variables.items() if value],
        "volumeMounts": mounts,
    }
    # A rank that stands still is not waited for; one that saves has time for it.
    grace = 60 if wanted.saves_at_end else 5
    return {"terminationGracePeriodSeconds": grace, "containers": [container], "volumes": volumes}


def pytorchjob(trainer: Trainer, wanted: Wanted) -> dict[str, Any]:
    replica = {
        "replicas": 1,
        "restartPolicy": "OnFailure",
        "template": {"spec": pod_spec(trainer, wanted)},
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": wanted.name},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {"Master": replica, "Worker": replica},
        },
    }


def jobset(trainer: Trainer, wanted: Wanted, maximum: int = 5) -> dict[str, Any]:
    """Its own failure policy restarts the gang; the first pod's name is where the ranks meet."""
    meeting = f"{wanted.name}-node-0-0.{wanted.name}"
    spec = pod_spec(
        trainer,
        wanted,
        {"PET_MASTER_ADDR": meeting, "PET_MASTER_PORT": str(PORT), "PET_NNODES": "2"},
    )
    index = {"fieldRef": {"fieldPath": _INDEX}}
    spec["containers"][0]["env"].append({"name": "PET_NODE_RANK", "valueFrom": index})
    spec |= {"restartPolicy": "Never", "subdomain": wanted.name}
    job = {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": spec},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": wanted.name},
        "spec": {
            "failurePolicy": {"maxRestarts": maximum, "restartStrategy": "BlockingRecreate"},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
            # As the webhook would fill them in, which does not run here.
            "successPolicy": {"operator": "All", "targetReplicatedJobs": []},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        },
    }
