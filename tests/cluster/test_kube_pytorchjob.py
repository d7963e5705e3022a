# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Gang restarts of PyTorchJobs under the real training operator, and the traps around them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cluster import kube_things as things
from cluster.images import WAITER
from mwatch.gang.plan import GangFacts, plan
from mwatch.gang.restart import GangLimits, GangProgress, GangRestart
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import PODS, PYTORCH_JOBS
from mwatch.model.kube.gang import GangPlan, Method
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.pod import KubePod
from mwatch.remediate.node_avoidance import avoid_patch, keep_off

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.timeout(900)]
TERM_IS_143 = "trap 'exit 143' TERM; sleep 1000 & wait"
TERM_IS_0 = "trap 'exit 0' TERM; echo ready; sleep 1000 & wait"


def started(access: Access, policy: str, script: str = TERM_IS_143, **more: Any) -> KubeJob:
    """A master and a worker that run."""
    namespace = things.fresh_namespace(access)
    container = {
        "name": "pytorch", "image": WAITER, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
    }  # fmt: skip
    pod = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 5}}
    group = {"replicas": 1, "restartPolicy": policy, "template": pod}
    body = {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.kind,
        "metadata": {
            "name": "train",
            "labels": {"mwatch.dev/watch": "true"},
            "annotations": {"mwatch.dev/mode": "act", "mwatch.dev/injected": "1"},
        },
        "spec": {"pytorchReplicaSpecs": {"Master": group, "Worker": group}, **more},
    }
    assert access.create(PYTORCH_JOBS, namespace, body).is_ok
    things.wait_for(
        lambda: len(live(access, namespace)) == 2, "two pods that run", things.POD_SECONDS
    )
    job = find_job(access, namespace, "train")
    assert job is not None
    return job


def live(access: Access, namespace: str) -> set[str]:
    job = find_job(access, namespace, "train")
    pods = () if job is None else pods_of(access, job)
    return {pod.uid for pod in pods if pod.phase == "Running" and not pod.is_deleting}


def restart(access: Access, job: KubeJob) -> Method:
    """By the plan; the new gang runs, and the job has not ended."""
    pods = pods_of(access, job)
    wanted = plan(job, GangFacts(pods, 0.0))
    assert isinstance(wanted, GangPlan), wanted
    limits = GangLimits(look_seconds=0.2)
    gang = GangRestart(access, Ledger(access, job.namespace), may_act=lambda: True, limits=limits)
    step = gang.begin(wanted, id="i1", attempt=1, at=time.time())
    done = gang.advance(step, seconds=things.POD_SECONDS, now=time.time())
    assert done.progress is GangProgress.DONE, done
    old = {pod.uid for pod in pods}
    things.wait_for(
        lambda: len(live(access, job.namespace) - old) == 2, "the new gang", things.POD_SECONDS
    )
    after = find_job(access, job.namespace, "train")
    assert after is not None and after.finished == "" and not after.is_suspended
    assert not old & {pod.uid for pod in pods_of(access, after)}
    return wanted.way


def master_of(access: Access, job: KubeJob) -> KubePod:
    (pod,) = (each for each in pods_of(access, job) if each.replica_type == "master")
    return pod


def delete_master(access: Access, job: KubeJob) -> None:
    pod = master_of(access, job)
    access.delete(PODS, pod.namespace, pod.name, uid=pod.uid)


def is_ready(access: Access, pod: KubePod) -> bool:
    """It has said so: from then on it hears SIGTERM."""
    try:
        return b"ready" in access.page(PODS.path(pod.namespace, pod.name, part="log"), None, 30.0)
    except KubeError:
        return False


def ends(access: Access, job: KubeJob, how: str) -> None:
    """Waits until it has ended so."""

    def is_so() -> bool:
        found = find_job(access, job.namespace, "train")
        return found is not None and found.finished == how

    things.wait_for(is_so, f"the job's end: {how}", things.POD_SECONDS)


def test_a_gang_whose_pods_are_deleted_comes_back(access: Access) -> None:
    assert restart(access, started(access, "OnFailure")) is Method.DELETE_PODS


def test_exit_codes_from_128_on_bring_a_gang_back(access: Access) -> None:
    assert restart(access, started(access, "ExitCode")) is Method.DELETE_PODS


def test_a_deleted_pod_fails_a_job_with_never(access: Access) -> None:
    job = started(access, "Never")
    delete_master(access, job)
    ends(access, job, "Failed")


def test_a_job_with_never_is_suspended_and_resumed_instead(access: Access) -> None:
    assert restart(access, started(access, "Never")) is Method.SUSPEND_RESUME


def test_a_master_that_leaves_with_0_when_deleted_ends_the_job_as_succeeded(
    access: Access,
) -> None:
    job = started(access, "OnFailure", TERM_IS_0)
    master = master_of(access, job)
    things.wait_for(lambda: is_ready(access, master), "a master that hears signals")
    delete_master(access, job)
    ends(access, job, "Succeeded")


def test_without_mwatch_run_such_a_job_is_suspended_and_resumed_instead(access: Access) -> None:
    job = started(access, "OnFailure", TERM_IS_0)
    access.patch(
        PYTORCH_JOBS, job.namespace, job.name,
        {"metadata": {"annotations": {"mwatch.dev/injected": None}}},
    )  # fmt: skip
    bare = find_job(access, job.namespace, job.name)
    assert bare is not None
    assert restart(access, bare) is Method.SUSPEND_RESUME


def test_a_backoff_limit_of_0_survives_a_gang_restart(access: Access) -> None:
    job = started(access, "OnFailure", runPolicy={"backoffLimit": 0})
    assert restart(access, job) is Method.SUSPEND_RESUME


def test_the_new_gang_keeps_off_the_node_that_is_named(access: Access) -> None:
    job = started(access, "OnFailure")

    def found() -> KubeJob:
        newest = find_job(access, job.namespace, job.name)
        assert newest is not None
        return newest

    def is_kept_off() -> bool:
        """False where its operator has changed the job since it was read."""
        patch = avoid_patch(found(), "a-17", now=time.time(), until=time.time() + 600)
        return isinstance(patch, dict) and keep_off(access, found(), patch)

    things.wait_for(is_kept_off, "the affinity")
    restart(access, found())
    bodies = access.call("GET", PODS.path(job.namespace)).body["items"]
    assert all("a-17" in str(each["spec"]["affinity"]) for each in bodies)
