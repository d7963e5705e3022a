# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch controller` as a Deployment, with the rights of `manifests/rbac` and no others."""

from __future__ import annotations

import json
from typing import Any

from cluster.kube_things import manifests
from cluster.kubectl import Kubectl

NAME = "mwatch-controller"
PORT = 9402
EVIDENCE = "/evidence"
KEPT = "controller-evidence"
"""Where it lies on the claim."""
_MANIFESTS = ("controller.yaml", "admission.yaml")
# For a job of minutes: a restart costs seconds, so nothing is gained by a long wait.
POLICY = """\
[act]
restarts_per_window = 50
backoff_first_seconds = 1.0
backoff_factor = 1.0
default_restart_cost_seconds = 5.0
min_restart_cost_seconds = 2.0
stall_factor = 1.0
max_without_progress = 5
max_same_fingerprint = 5
[deadlines.first_save]
default_seconds = 60.0
floor_seconds = 15.0
ceiling_seconds = 120.0
[deadlines.saving]
default_seconds = 60.0
floor_seconds = 15.0
ceiling_seconds = 120.0
[checkpoints]
max_rollbacks = 9
"""
# The tests' jobs share their storage, and stall one after the other. On a busy machine a bundle
# takes more than ten seconds.
FLEET = "rendezvous_wait_seconds = 0\nevidence_seconds = 60\ncommon_cause_least = 9\n"


class Controller:
    def __init__(self, cluster: Kubectl, namespace: str, image: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._image = image
        self._fleet = FLEET

    def install(self) -> None:
        for name in _MANIFESTS:
            self._cluster.apply(*manifests(name, self._namespace), server_side=True)
        files = {"policy.toml": POLICY, "fleet.toml": self._fleet}
        settings = {
            **_named("ConfigMap", "v1", "controller-files", self._namespace),
            "data": files,
        }
        self._cluster.apply(settings, self._service(), self._deployment())
        self.wait()

    def use(self, fleet: str) -> None:
        """Settings of the fleet: a new pod reads them."""
        if fleet == self._fleet:
            return
        self._fleet = fleet
        patch = json.dumps({"data": {"fleet.toml": self._fleet}})
        self.kubectl("patch", "configmap", "controller-files", "-p", patch)
        self.kubectl("rollout", "restart", f"deployment/{NAME}")
        self.wait()

    def wait(self) -> None:
        self.kubectl("rollout", "status", f"deployment/{NAME}", "--timeout=90s", seconds=100)

    def scale(self, replicas: int) -> None:
        self.kubectl("scale", f"deployment/{NAME}", f"--replicas={replicas}")
        self.wait()

    def pod(self) -> str:
        items = self._cluster.get("pods", "-n", self._namespace, "-l", _SELECTOR)["items"]
        alive = [each for each in items if "deletionTimestamp" not in each["metadata"]]
        return str(alive[0]["metadata"]["name"])

    def kill(self) -> None:
        """At once and without a word, as a node that dies does it."""
        pod = self.pod()
        self.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

    def log(self) -> str:
        return self.kubectl("logs", f"deployment/{NAME}", "--tail=400")

    def jobs(self) -> dict[str, Any]:
        """Its own word, by the API server's proxy."""
        path = f"/api/v1/namespaces/{self._namespace}/services/{NAME}:{PORT}/proxy/v1/jobs"
        answer = self._cluster.answer("get", "--raw", path)
        return {} if answer is None else dict(json.loads(answer))

    def kubectl(self, *words: str, seconds: float = 60.0) -> str:
        return self._cluster("-n", self._namespace, *words, seconds=seconds)

    def _service(self) -> dict[str, Any]:
        spec = {
            "selector": {"app.kubernetes.io/name": NAME},
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT}],
        }
        return {**_named("Service", "v1", NAME, self._namespace), "spec": spec}

    def _deployment(self) -> dict[str, Any]:
        container = {
            "name": "controller",
            "image": self._image,
            "imagePullPolicy": "IfNotPresent",
            "args": [
                "controller", "-n", self._namespace, "--poll", "1",
                "--policy", "/files/policy.toml", "--fleet", "/files/fleet.toml",
                "--evidence", EVIDENCE,
            ],
            "ports": [{"name": "http", "containerPort": PORT}],
            "volumeMounts": [
                {"name": "files", "mountPath": "/files"},
                {"name": "evidence", "mountPath": EVIDENCE, "subPath": KEPT},
            ],
            "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        }  # fmt: skip
        # On the claim: what was kept is there after the controller's own end.
        volumes = [
            {"name": "files", "configMap": {"name": "controller-files"}},
            {"name": "evidence", "persistentVolumeClaim": {"claimName": "checkpoints"}},
        ]
        labels = {"app.kubernetes.io/name": NAME}
        pod = {
            "serviceAccountName": NAME,
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            "volumes": volumes,
        }
        return {
            **_named("Deployment", "apps/v1", NAME, self._namespace),
            "spec": {
                "replicas": 1,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }


_SELECTOR = f"app.kubernetes.io/name={NAME}"


def _named(kind: str, version: str, name: str, namespace: str) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
    }
