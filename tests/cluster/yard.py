# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A namespace to train in: a claim for checkpoints, a pod that looks into it, and the controller.

Jobs get mwatch the way a user gives it to them: by `mwatch inject`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.api import Api
from cluster.controller_deployment import FLEET, Controller
from cluster.kube_things import wait_for
from cluster.kubectl import Kubectl
from cluster.training import READER, Training
from cluster.training_job import CLAIM, SAVE, Trainer

_ROOT = Path(__file__).resolve().parents[2]
_SIZE = "5Gi"
_EVIDENCE = "controller-evidence"
"""A claim, and its folder among the checkpoints."""


class Yard:
    def __init__(
        self, cluster: Kubectl, namespace: str, image: str, trainer: Trainer, folder: Path | None
    ) -> None:
        """`folder`: of the node, for the checkpoints; None: one of its own."""
        self.cluster = cluster
        self.namespace = namespace
        self.image = image
        self.trainer = trainer
        self._folder = str(folder or Path("/tmp") / f"mwatch-test-{uuid.uuid4().hex[:8]}")
        self.controller = Controller(cluster, namespace, image, _EVIDENCE)
        self._api = Api(cluster.kubeconfig, namespace)

    def open(self) -> None:
        named = {"name": self.namespace}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": named})
        # Without it no pod may be made; a controller makes it for a new namespace.
        account = ("get", "serviceaccount", "default", "-n", self.namespace)
        wait_for(lambda: self.cluster.answer(*account) is not None, "its service account")
        volumes = [*self._storage(CLAIM, ""), *self._storage(_EVIDENCE, f"/{_EVIDENCE}")]
        self.cluster.apply(*volumes, self._reader())
        ready = ("wait", "--for=condition=Ready", f"pod/{READER}", "--timeout=240s")
        self.cluster(*ready, "-n", self.namespace, seconds=250)
        # The controller is not root.
        script = f"mkdir -p -m 777 {SAVE}/{_EVIDENCE}"
        self.cluster("exec", READER, "-n", self.namespace, "--", "sh", "-c", script)
        self.controller.install()

    def close(self) -> None:
        """What lies on the claim goes too: the volume does not do it."""
        empty = ("sh", "-c", f"rm -rf {SAVE}/* {SAVE}/.[!.]*")
        self.cluster.answer("exec", READER, "-n", self.namespace, "--", *empty)
        self.cluster("delete", "namespace", self.namespace, "--wait=false")
        for claim in (CLAIM, _EVIDENCE):
            self.cluster("delete", "pv", f"{self.namespace}-{claim}", "--wait=false")

    def start(
        self, job: Mapping[str, Any], *, mode: str = "act", sidecar: str = "native"
    ) -> Training:
        given = self.inject(job, mode, sidecar)
        self.cluster("apply", "-n", self.namespace, "-f", "-", given=given)
        return Training(self.cluster, self.namespace, job["kind"].lower(), job["metadata"]["name"])

    def inject(self, job: Mapping[str, Any], mode: str, sidecar: str) -> str:
        done = self.mwatch(
            "inject", "-f", "-", "--image", self.image, "--mode", mode, "--sidecar", sidecar,
            "--python", self.trainer.python, given=json.dumps(job),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def mwatch(
        self, *words: str, given: str = "", seconds: float = 180.0
    ) -> subprocess.CompletedProcess[str]:
        search = os.pathsep.join(str(_ROOT / each) for each in ("sidecar", "trainer"))
        where = ("--kubeconfig", str(self.cluster.kubeconfig), "-n", self.namespace)
        return subprocess.run(
            [sys.executable, "-m", "mwatch", *words, *where],
            input=given,
            env={**os.environ, "PYTHONPATH": search},
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def restart_in_place(self) -> None:
        self.controller.use(FLEET)

    def restart_by_pods(self) -> None:
        """Pods are deleted, and their operator makes new ones."""
        self.controller.use(f"{FLEET}in_place = false\n")

    def evidence(self) -> int:
        """How many bundles the controller has kept."""
        return int(self._api.run(READER, f"find {SAVE}/{_EVIDENCE} -type f -name '*.tgz' | wc -l"))

    def end(self, training: Training) -> None:
        words = ("delete", training.kind, training.name, "--ignore-not-found", "--wait=false")
        self.cluster(*words, "-n", self.namespace)

    def _storage(self, claim: str, folder: str) -> list[dict[str, Any]]:
        """Of one node: all that use the claim run there."""
        node = self.cluster.get("nodes")["items"][0]["metadata"]["labels"]["kubernetes.io/hostname"]
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        about = {"name": claim, "namespace": self.namespace}
        name = f"{self.namespace}-{claim}"
        shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        spec = {
            **shared,
            "capacity": {"storage": _SIZE},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"{self._folder}{folder}", "type": "DirectoryOrCreate"},
            "claimRef": about,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        }
        wanted = {**shared, "volumeName": name, "resources": {"requests": {"storage": _SIZE}}}
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
        bound = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about}
        return [{**volume, "spec": spec}, {**bound, "spec": wanted}]

    def _reader(self) -> dict[str, Any]:
        container = {
            "name": READER,
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sleep", "100000"],
            "securityContext": {"runAsUser": 0},
            "volumeMounts": [{"name": CLAIM, "mountPath": SAVE}],
        }
        claim = {"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}
        spec = {
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [claim],
        }
        about = {"name": READER, "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
