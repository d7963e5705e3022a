# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Why the plan goes the way it does: what the real controllers make of pods that are deleted."""

from __future__ import annotations

import time

import pytest

from cluster import kube_things as things
from cluster.test_kube_causes import facts, new_job, running
from mwatch.gang.plan import GangFacts, plan
from mwatch.gang.restart import GangLimits, GangProgress, GangRestart
from mwatch.kube.access import Access
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import PODS
from mwatch.model.kube.gang import GangPlan, Method

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.timeout(900)]


def test_a_job_counts_a_deleted_pod_as_failed(access: Access) -> None:
    where = new_job(access, backoffLimit=0)
    running(access, where)
    (pod,) = facts(access, *where).pods
    access.delete(PODS, pod.namespace, pod.name, uid=pod.uid)
    things.wait_for(
        lambda: _finished(access, where) == "Failed", "the job's end", things.POD_SECONDS
    )


def test_a_job_is_restarted_by_suspend_and_counts_nothing(access: Access) -> None:
    where = new_job(access, backoffLimit=0, parallelism=2, completions=2)
    running(access, where, 2)
    job = find_job(access, *where)
    assert job is not None
    old = {pod.uid for pod in pods_of(access, job)}
    wanted = plan(job, GangFacts(pods_of(access, job), 0.0, is_asked=True))
    assert isinstance(wanted, GangPlan) and wanted.way is Method.SUSPEND_RESUME
    limits = GangLimits(look_seconds=0.1)
    gang = GangRestart(access, Ledger(access, where[0]), may_act=lambda: True, limits=limits)
    step = gang.begin(wanted, id="i1", attempt=1, at=time.time())

    done = gang.advance(step, seconds=things.POD_SECONDS, now=time.time())

    assert done.progress is GangProgress.DONE, done
    running(access, where, 2)
    again = find_job(access, *where)
    assert again is not None and not again.finished and again.failed_pods == 0
    assert not old & {pod.uid for pod in pods_of(access, again)}


def _finished(access: Access, where: tuple[str, str]) -> str:
    job = find_job(access, *where)
    return "" if job is None else job.finished
