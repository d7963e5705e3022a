# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Gang restarts of JobSets under JobSet's real controller, by its own failure policy or not."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cluster import kube_things as things
from cluster.images import WAITER
from mwatch.gang.plan import GangFacts, plan
from mwatch.gang.restart import GangLimits, GangProgress, GangRestart
from mwatch.kube.access import Access
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import JOB_SETS
from mwatch.model.kube.gang import GangPlan, Method
from mwatch.model.kube.job import KubeJob

pytestmark = [pytest.mark.usefixtures("jobsets"), pytest.mark.timeout(900)]


def started(access: Access, **policy: Any) -> KubeJob:
    """Two pods that run. All that the webhook would fill in is written out."""
    namespace = things.fresh_namespace(access)
    container = {
        "name": "node", "image": WAITER, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap 'exit 143' TERM; sleep 1000 & wait"],
    }  # fmt: skip
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
    }
    job = {
        "parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 0,
        "template": {"spec": pod},
    }  # fmt: skip
    body = {
        "apiVersion": JOB_SETS.api_version,
        "kind": JOB_SETS.kind,
        "metadata": {
            "name": "train",
            "labels": {"mwatch.dev/watch": "true"},
            "annotations": {"mwatch.dev/mode": "act", "mwatch.dev/injected": "1"},
        },
        "spec": {
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
            "successPolicy": {"operator": "All", "targetReplicatedJobs": []},
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "failurePolicy": {"restartStrategy": "Recreate", **policy},
        },
    }
    assert access.create(JOB_SETS, namespace, body).is_ok
    things.wait_for(
        lambda: len(live(access, namespace)) == 2, "two pods that run", things.POD_SECONDS
    )
    found = find_job(access, namespace, "train")
    assert found is not None
    return found


def live(access: Access, namespace: str) -> set[str]:
    job = find_job(access, namespace, "train")
    pods = () if job is None else pods_of(access, job)
    return {pod.uid for pod in pods if pod.phase == "Running" and not pod.is_deleting}


@pytest.mark.parametrize(
    ("policy", "way", "deleted"),
    [({"maxRestarts": 3}, Method.FAIL_ONE, 1), ({"maxRestarts": 0}, Method.SUSPEND_RESUME, 0)],
)
def test_a_jobset_comes_back_whole(
    access: Access, policy: dict[str, int], way: Method, deleted: int
) -> None:
    job = started(access, **policy)
    pods = pods_of(access, job)
    wanted = plan(job, GangFacts(pods, 0.0))
    assert isinstance(wanted, GangPlan) and wanted.way is way
    # However long JobSet takes, it is to remove the other pod itself.
    limits = GangLimits(look_seconds=0.2, fail_one_seconds=2 * things.POD_SECONDS)
    gang = GangRestart(access, Ledger(access, job.namespace), may_act=lambda: True, limits=limits)
    step = gang.begin(wanted, id="i1", attempt=1, at=time.time())

    done = gang.advance(step, seconds=things.POD_SECONDS, now=time.time())

    assert (done.progress, done.deleted) == (GangProgress.DONE, deleted), done
    old = {pod.uid for pod in pods}
    things.wait_for(
        lambda: len(live(access, job.namespace) - old) == 2, "the new gang", things.POD_SECONDS
    )
    after = find_job(access, job.namespace, "train")
    assert after is not None and after.finished == "" and not after.is_suspended
    assert after.failure_policy is not None and after.failure_policy.restarts == deleted
