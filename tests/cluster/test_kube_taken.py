# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Who took a pod of a PyTorchJob away, under the real operator: also when the pod is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster import kube_things as things
from cluster.kubectl import Kubectl
from cluster.test_kube_pytorchjob import TERM_IS_143, live, started
from mwatch.checks.kube_causes import kube_causes
from mwatch.fleet.cluster_view import FleetView
from mwatch.kube.access import Access
from mwatch.kube.resources import PODS
from mwatch.model.cause import Cause
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.job import KubeJob

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.timeout(900)]
CRASH = f"""
case "$HOSTNAME" in *worker*) until [ -e /tmp/crash ]; do sleep 1; done; exit 139;; esac
{TERM_IS_143}
"""
"""The worker crashes when it is told to: then somebody looks on."""


class Eyes:
    """What the controller's view of the cluster tells of one job."""

    def __init__(self, fleet: FleetView, job: KubeJob) -> None:
        self._fleet, self._job = fleet, job
        self.causes: list[Cause] = []

    def facts(self) -> KubeFacts | None:
        found = [each.facts for each in self._fleet.look()]
        return next((each for each in found if each.job and each.job.uid == self._job.uid), None)

    def is_replaced(self, old: set[str]) -> bool:
        """Whether another pod runs in the place of one of these; notes the causes meanwhile."""
        seen = self.facts()
        if seen is None:
            return False
        # On a busy machine a new pod's first mount may fail for a moment: nobody took that pod.
        found = [each.cause for each in kube_causes(seen)]
        self.causes += [each for each in found if each is not Cause.VOLUME]
        running = {pod.uid for pod in seen.pods if pod.phase == "Running" and not pod.is_deleting}
        return len(running) == 2 and running != old


@contextmanager
def watching(access: Access, job: KubeJob) -> Iterator[Eyes]:
    fleet = FleetView(access, job.namespace, time.time, watch_seconds=2.0)
    fleet.start()
    try:
        eyes = Eyes(fleet, job)
        things.wait_for(
            lambda: len((eyes.facts() or NOBODY).pods) == 2, "its pods", things.POD_SECONDS
        )
        yield eyes
    finally:
        fleet.close()


NOBODY = KubeFacts(0.0, None, "")


@pytest.mark.parametrize("forced", [False, True])
def test_a_person_who_deletes_one_pod(access: Access, cluster: Kubectl, forced: bool) -> None:
    job = started(access, "OnFailure")
    old = live(access, job.namespace)
    more = ("--grace-period=0", "--force") if forced else ("--wait=false",)
    with watching(access, job) as eyes:
        cluster("delete", "pod", "train-worker-0", f"--namespace={job.namespace}", *more)
        things.wait_for(lambda: eyes.is_replaced(old), "another pod", things.POD_SECONDS)
        assert set(eyes.causes) == {Cause.DELETED_BY_USER}
        seen = eyes.facts()
        assert seen is not None
        (found,) = kube_causes(seen)
        assert found.summary == "train-worker-0 was deleted, and not by mwatch"


def test_a_pod_that_a_drain_sent_away_and_that_is_gone(access: Access) -> None:
    job = started(access, "OnFailure")
    old = live(access, job.namespace)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": "train-worker-0"}}  # fmt: skip
    with watching(access, job) as eyes:
        access.call("POST", PODS.path(job.namespace, "train-worker-0", part="eviction"),
                    body=eviction)  # fmt: skip
        things.wait_for(lambda: eyes.is_replaced(old), "another pod", things.POD_SECONDS)
        assert set(eyes.causes) == {Cause.DRAINED}


def test_a_crashed_pod_that_the_operator_replaces_was_deleted_by_no_person(
    access: Access, cluster: Kubectl
) -> None:
    job = started(access, "ExitCode", CRASH)
    old = live(access, job.namespace)
    with watching(access, job) as eyes:
        inside = ("-n", job.namespace, "--", "sh", "-c", ": > /tmp/crash")
        cluster("exec", "train-worker-0", *inside)
        things.wait_for(lambda: eyes.is_replaced(old), "another pod", things.POD_SECONDS)
        assert eyes.causes == []
