# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch controller` as the packaged chart installs it, with its rights and no others."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from cluster.helm import Helm
from cluster.kubectl import Kubectl
from cluster.training import CONTROLLER
from release.build import package_chart

PORT = 9402
_SELECTOR = f"app.kubernetes.io/name={CONTROLLER}"
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
    def __init__(self, cluster: Kubectl, namespace: str, image: str, claim: str) -> None:
        """`claim`: where it keeps evidence, also after its own end."""
        self._cluster = cluster
        self._helm = Helm(cluster.kubeconfig)
        self._namespace = namespace
        self._image = image
        self._claim = claim
        self._fleet = FLEET
        self._policy = POLICY

    def install(self) -> None:
        self._apply("install")

    def use(self, fleet: str, policy: str = POLICY) -> None:
        """Settings of the fleet: a new pod reads them."""
        if (fleet, policy) != (self._fleet, self._policy):
            self._fleet, self._policy = fleet, policy
            self._apply("upgrade")

    def _apply(self, verb: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            package_chart("mwatch", folder, epoch=0)
            (packaged,) = folder.glob("mwatch-*.tgz")
            (folder / "values.json").write_text(json.dumps(self._values()))
            words = ("mwatch", str(packaged), "--values", str(folder / "values.json"))
            self._helm(verb, *words, namespace=self._namespace)
        self.wait()

    def _values(self) -> dict[str, Any]:
        repository, _, tag = self._image.rpartition(":")
        return {
            "image": {"repository": repository, "tag": tag},
            "controller": {
                "pollSeconds": 1,
                "policy": self._policy,
                "fleet": self._fleet,
                "evidence": {"claim": self._claim},
            },
            "monitoring": {
                "kind": "none",
                "rules": {"form": "none"},
                "dashboards": {"enabled": False},
            },
        }

    def wait(self) -> None:
        self.kubectl("rollout", "status", f"deployment/{CONTROLLER}", "--timeout=240s", seconds=250)

    def scale(self, replicas: int) -> None:
        self.kubectl("scale", f"deployment/{CONTROLLER}", f"--replicas={replicas}")
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
        return self.kubectl("logs", f"deployment/{CONTROLLER}", "--tail=400")

    def jobs(self) -> dict[str, Any]:
        """Its own word, by the API server's proxy."""
        path = f"/api/v1/namespaces/{self._namespace}/services/{CONTROLLER}:{PORT}/proxy/v1/jobs"
        answer = self._cluster.answer("get", "--raw", path)
        return {} if answer is None else dict(json.loads(answer))

    def kubectl(self, *words: str, seconds: float = 120.0) -> str:
        return self._cluster("-n", self._namespace, *words, seconds=seconds)
