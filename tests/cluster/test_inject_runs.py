# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `inject` writes, run by a real node: the job ends, and SIGTERM reaches the trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.images import MWATCH
from cluster.kubectl import Kubectl
from manifest_files import objects_in
from mwatch.manifests.parts import Sidecar, Wish
from mwatch.manifests.whole import inject_text

pytestmark = pytest.mark.timeout(300)
PYTHON = str(Path(sys.executable).resolve())
SAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))
print('training', flush=True)
while True: time.sleep(0.05)
"""


def pod(script: str) -> dict[str, Any]:
    """Its image is ours: it has a shell and Python, and nothing is pulled."""
    container = {
        "name": "pytorch",
        "image": MWATCH,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
    }
    return {"restartPolicy": "Never", "containers": [container]}


def job(name: str, script: str) -> dict[str, Any]:
    spec = {"backoffLimit": 0, "template": {"spec": pod(script)}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def pytorchjob(name: str, script: str, pods: int = 2) -> dict[str, Any]:
    template = {"spec": {"containers": pod(script)["containers"]}}
    worker = {"replicas": pods, "restartPolicy": "OnFailure", "template": template}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }


def apply(cluster: Kubectl, content: dict[str, Any], form: Sidecar) -> None:
    wish = Wish(MWATCH, form, python=PYTHON)
    cluster.apply(*objects_in(inject_text(json.dumps(content), "job.json", wish).text))


@pytest.mark.parametrize("form", ["native", "container"])
def test_a_job_ends_when_its_trainer_does(cluster: Kubectl, form: Sidecar) -> None:
    name = f"ends-{form}"
    apply(cluster, job(name, "echo trained on $MWATCH_POD as $MWATCH_JOB"), form)
    try:
        cluster("wait", "--for=condition=Complete", f"job/{name}", "--timeout=90s", seconds=100)
        said = cluster("logs", f"job/{name}", "-c", "pytorch")
        assert f"as {name}" in said and f"trained on {name}-" in said
        assert "Traceback" not in cluster("logs", f"job/{name}", "-c", "mwatch")
    finally:
        cluster("delete", "job", name, "--wait=false")


@pytest.mark.parametrize("form", ["native", "container"])
def test_a_failed_trainer_fails_the_job(cluster: Kubectl, form: Sidecar) -> None:
    name = f"fails-{form}"
    apply(cluster, job(name, "exit 7"), form)
    try:
        cluster("wait", "--for=condition=Failed", f"job/{name}", "--timeout=90s", seconds=100)
    finally:
        cluster("delete", "job", name, "--wait=false")


@pytest.mark.parametrize("form", ["native", "container"])
def test_a_pytorchjob_of_two_pods_succeeds(cluster: Kubectl, form: Sidecar) -> None:
    name = f"pair-{form}"
    apply(cluster, pytorchjob(name, "echo trained; sleep 1"), form)
    try:
        wanted = "--for=condition=Succeeded"
        cluster("wait", wanted, f"pytorchjob/{name}", "--timeout=120s", seconds=130)
        said = cluster("logs", f"{name}-worker-1", "-c", "pytorch")
        assert "trained" in said
    finally:
        cluster("delete", "pytorchjob", name, "--wait=false")


@pytest.mark.parametrize("form", ["native", "container"])
def test_a_trainer_that_is_started_again_in_its_pod_keeps_its_sidecar(
    cluster: Kubectl, form: Sidecar
) -> None:
    name = f"again-{form}"
    script = "[ -e /mwatch/once ] && echo trained && exit 0; : > /mwatch/once; exit 1"
    apply(cluster, pytorchjob(name, script, pods=1), form)
    try:
        wanted = "--for=condition=Succeeded"
        cluster("wait", wanted, f"pytorchjob/{name}", "--timeout=120s", seconds=130)
        status = cluster.get("pod", f"{name}-worker-0")["status"]
        every = [*status["containerStatuses"], *status["initContainerStatuses"]]
        restarts = {each["name"]: each["restartCount"] for each in every}
        assert (restarts["pytorch"], restarts["mwatch"]) == (1, 0)
    finally:
        cluster("delete", "pytorchjob", name, "--wait=false")


def test_a_deleted_pod_saves_although_a_shell_and_tee_are_around_it(cluster: Kubectl) -> None:
    script = f'echo begin\n{PYTHON} -c "{SAVES}" 2>&1 | cat\necho after\n'
    apply(cluster, job("deleted", script), "native")
    cluster("wait", "--for=jsonpath={.status.ready}=1", "job/deleted", "--timeout=90s", seconds=100)
    found = cluster.get("pods", "-l", "job-name=deleted")["items"][0]["metadata"]["name"]
    with subprocess.Popen(
        [cluster._program, "logs", "-f", found, "-c", "pytorch"],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig)},
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        try:
            assert any("training" in line for line in following.stdout)
            cluster("delete", "job", "deleted", "--wait=false")
            rest = following.stdout.read()
        finally:
            following.kill()
    assert "saved" in rest and "after" in rest
