# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorchJobs in a queue of the real Kueue: `suspend` is Kueue's, and mwatch keeps away from it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cluster import kube_things as things
from cluster import kueue
from cluster.images import WAITER
from cluster.kubectl import Kubectl
from mwatch.gang.plan import GangFacts, plan
from mwatch.gang.restart import GangLimits, GangProgress, GangRestart
from mwatch.kube.access import Access
from mwatch.kube.jobs import find_job, pods_of, workload_for
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import PYTORCH_JOBS
from mwatch.model.kube.gang import GangPlan, GangRefusal, Method, Reason
from mwatch.model.kube.job import KubeJob

pytestmark = [pytest.mark.usefixtures("queues"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def namespace(access: Access, cluster: Kubectl) -> str:
    """With a queue that has room for one job of two pods."""
    made = things.fresh_namespace(access)
    cluster.apply(*kueue.queue(made, "gpus", pods=2))
    return made


def make(cluster: Kubectl, namespace: str, name: str) -> None:
    """Suspended, as Kueue's webhook would make it."""
    container = {
        "name": "pytorch", "image": WAITER, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap 'exit 143' TERM; sleep 1000 & wait"],
        "resources": {"requests": {"cpu": "100m"}},
    }  # fmt: skip
    pod = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 5}}
    group = {"replicas": 1, "restartPolicy": "OnFailure", "template": pod}
    body: dict[str, Any] = {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"mwatch.dev/watch": "true", "kueue.x-k8s.io/queue-name": "gpus"},
            "annotations": {"mwatch.dev/mode": "act", "mwatch.dev/injected": "1"},
        },
        "spec": {
            "runPolicy": {"suspend": True},
            "pytorchReplicaSpecs": {"Master": group, "Worker": group},
        },
    }
    cluster.apply(body)


def job_of(access: Access, namespace: str, name: str) -> KubeJob:
    found = find_job(access, namespace, name)
    assert found is not None
    return found


def running(access: Access, namespace: str, name: str) -> set[str]:
    pods = pods_of(access, job_of(access, namespace, name))
    return {pod.uid for pod in pods if pod.phase == "Running" and not pod.is_deleting}


def planned(access: Access, job: KubeJob) -> GangPlan | GangRefusal:
    pods = pods_of(access, job)
    return plan(job, GangFacts(pods, 0.0, workload=workload_for(access, job)))


def test_an_admitted_job_is_restarted_by_its_pods_and_stays_admitted(
    access: Access, cluster: Kubectl, namespace: str
) -> None:
    make(cluster, namespace, "first")
    things.wait_for(
        lambda: len(running(access, namespace, "first")) == 2, "two pods", things.POD_SECONDS
    )
    job = job_of(access, namespace, "first")
    before = running(access, namespace, "first")
    wanted = planned(access, job)
    assert isinstance(wanted, GangPlan) and wanted.way is Method.DELETE_PODS, wanted
    limits = GangLimits(look_seconds=0.2)
    gang = GangRestart(access, Ledger(access, namespace), may_act=lambda: True, limits=limits)
    step = gang.begin(wanted, id="i1", attempt=1, at=time.time())
    done = gang.advance(step, seconds=things.POD_SECONDS, now=time.time())
    assert done.progress is GangProgress.DONE, done
    things.wait_for(
        lambda: len(running(access, namespace, "first") - before) == 2,
        "the new gang",
        things.POD_SECONDS,
    )
    work = workload_for(access, job_of(access, namespace, "first"))
    assert work is not None and work.is_admitted and not work.evicted


def test_kueue_takes_back_what_somebody_else_does_to_suspend(
    access: Access, cluster: Kubectl, namespace: str
) -> None:
    """Why mwatch restarts a queued job by its pods."""
    patch = '{"spec":{"runPolicy":{"suspend":true}}}'
    words = ("patch", "pytorchjob", "first", "-n", namespace, "--type=merge", "-p", patch)
    cluster(*words)
    things.wait_for(
        lambda: not job_of(access, namespace, "first").is_suspended,
        "suspend false again",
        things.POD_SECONDS,
    )


def test_a_job_that_waits_in_the_queue_is_left_alone(
    access: Access, cluster: Kubectl, namespace: str
) -> None:
    make(cluster, namespace, "second")
    things.wait_for(
        lambda: workload_for(access, job_of(access, namespace, "second")) is not None,
        "its Workload",
        things.POD_SECONDS,
    )
    job = job_of(access, namespace, "second")
    found = planned(access, job)
    assert isinstance(found, GangRefusal) and found.why in (
        Reason.SUSPENDED,
        Reason.NO_PODS,
        Reason.QUEUED,
    )
    assert job.is_suspended and pods_of(access, job) == ()
