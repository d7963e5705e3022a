# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What `inject` writes, run by a real node: the job ends, and SIGTERM reaches the trainer.

All jobs are started at once, so that their pods need not wait for each other's tests.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.given import given_images
from cluster.images import MWATCH
from cluster.kubectl import Kubectl
from cluster.wrapper import provide
from mwatch.manifests.parts import InjectRequest, Sidecar
from mwatch.manifests.whole import inject_text
from support.repository.manifest_files import unlisted_objects_in

pytestmark = pytest.mark.timeout(900)
SAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print('saved', flush=True), sys.exit(0)))
print('training', flush=True)
while True: time.sleep(0.05)
"""


FORMS: tuple[Sidecar, ...] = ("native", "container")
ONCE = "[ -e /mwatch/once ] && echo trained && exit 0; : > /mwatch/once; exit 1"
PYTHON = "python3"


def pod(script: str) -> dict[str, Any]:
    """Its image is ours: it has a shell and Python, and nothing is pulled."""
    container = {
        "name": "pytorch",
        "image": given_images().get("mwatch", MWATCH),
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


def injected(content: dict[str, Any], form: Sidecar) -> list[Any]:
    wish = InjectRequest(given_images().get("mwatch", MWATCH), form, python=PYTHON)
    return unlisted_objects_in(inject_text(json.dumps(content), "job.json", wish).text)


@pytest.fixture(scope="module")
def jobs(cluster: Kubectl) -> Iterator[Kubectl]:
    script = f'echo begin\n{PYTHON} -c "{SAVES}" 2>&1 | cat\necho after\n'
    made = injected(job("deleted", script), "native")
    for form in FORMS:
        made += injected(job(f"ends-{form}", "echo trained on $MWATCH_POD as $MWATCH_JOB"), form)
        made += injected(job(f"fails-{form}", "exit 7"), form)
        made += injected(pytorchjob(f"pair-{form}", "echo trained; sleep 1"), form)
        made += injected(pytorchjob(f"again-{form}", ONCE, pods=1), form)
    provide(cluster, "default")
    cluster.apply(*made)
    yield cluster
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    cluster("delete", "--ignore-not-found", "--wait=false", "-f", "-", given=given)


def wait_for(cluster: Kubectl, condition: str, what: str) -> None:
    cluster("wait", f"--for={condition}", what, "--timeout=400s", seconds=410)


def test_a_deleted_pod_saves_although_a_shell_and_tee_are_around_it(jobs: Kubectl) -> None:
    wait_for(jobs, "jsonpath={.status.ready}=1", "job/deleted")
    found = jobs.get("pods", "-l", "job-name=deleted")["items"][0]["metadata"]["name"]
    with subprocess.Popen(
        [jobs.program, "logs", "-f", found, "-c", "pytorch"],
        env={**os.environ, "KUBECONFIG": str(jobs.kubeconfig)},
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout is not None
        try:
            assert any("training" in line for line in following.stdout)
            jobs("delete", "job", "deleted", "--wait=false")
            rest = following.stdout.read()
        finally:
            following.kill()
    assert "saved" in rest and "after" in rest


@pytest.mark.parametrize("form", FORMS)
def test_a_job_ends_when_its_trainer_does(jobs: Kubectl, form: Sidecar) -> None:
    name = f"ends-{form}"
    wait_for(jobs, "condition=Complete", f"job/{name}")
    said = jobs("logs", f"job/{name}", "-c", "pytorch")
    assert f"as {name}" in said and f"trained on {name}-" in said
    assert "Traceback" not in jobs("logs", f"job/{name}", "-c", "mwatch")


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_trainer_fails_the_job(jobs: Kubectl, form: Sidecar) -> None:
    wait_for(jobs, "condition=Failed", f"job/fails-{form}")


@pytest.mark.parametrize("form", FORMS)
def test_a_pytorchjob_of_two_pods_succeeds(jobs: Kubectl, form: Sidecar) -> None:
    wait_for(jobs, "condition=Succeeded", f"pytorchjob/pair-{form}")
    assert "trained" in jobs("logs", f"pair-{form}-worker-1", "-c", "pytorch")


@pytest.mark.parametrize("form", FORMS)
def test_a_trainer_that_is_started_again_in_its_pod_keeps_its_sidecar(
    jobs: Kubectl, form: Sidecar
) -> None:
    wait_for(jobs, "condition=Succeeded", f"pytorchjob/again-{form}")
    status = jobs.get("pod", f"again-{form}-worker-0")["status"]
    every = [*status["containerStatuses"], *status.get("initContainerStatuses", ())]
    restarts = {each["name"]: each["restartCount"] for each in every}
    assert (restarts["pytorch"], restarts["mwatch"]) == (1, 0)
