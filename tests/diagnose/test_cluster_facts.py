# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a diagnosis takes from the ledger: which pods mwatch itself deletes, and which it does not.

The API server is a fake; the real one is asked in `tests/cluster`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import urllib3

from kube.fake_api import Reply, fake_api
from mwatch.checks.kube_causes import kube_causes
from mwatch.diagnose.cluster_facts import JobFacts, collect_facts
from mwatch.kube.access import Access, CallLimits
from mwatch.kube.connect import Connection
from mwatch.kube.jobs import FoundJob
from mwatch.model.cause import Cause
from mwatch.model.kube.gang import GangStep, Method
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.ledger import JobEntry, LedgerData, to_data
from mwatch.model.kube.restart_state import RestartState
from support.builders import kube

JOB = kube.pytorch_job()
UIDS = ("uid-train-0", "uid-train-1")
NAMESPACE = "/api/v1/namespaces/ns"


def body(name: str, *, deleting: bool = False) -> dict[str, Any]:
    about: dict[str, Any] = {
        "name": name, "namespace": "ns", "uid": f"uid-{name}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"uid": "job-uid", "controller": True}],
    }  # fmt: skip
    if deleting:
        about["deletionTimestamp"] = "2026-01-01T00:10:30Z"
    return {"metadata": about, "spec": {}, "status": {"phase": "Running"}}


def gathered(ledger: Mapping[str, str]) -> JobFacts:
    """A gang of two; its second pod is on its way out, and nobody has said why."""
    pods = [body("train-0"), body("train-1", deleting=True)]
    known = {
        f"{NAMESPACE}/pods": Reply(200, {"items": pods}),
        f"{NAMESPACE}/configmaps/mwatch-ledger": Reply(200, {"data": ledger}),
    }
    with fake_api(Reply(404, {}), by_path=known) as api:
        pool = urllib3.PoolManager()
        connection = Connection(api.address, pool, lambda: None, "ns")
        access = Access(connection, limits=CallLimits(call_seconds=5.0, tries=1))
        try:
            return collect_facts(access, FoundJob(JOB, {}), 1_780_000_000.0, seconds=5.0)
        finally:
            pool.clear()


def told(way: Method, uid: str = "job-uid") -> list[Cause]:
    """With a restart in the ledger that was done to these pods."""
    step = GangStep("i1", way, JobKind.PYTORCH_JOB, "ns", "train", "job-uid", UIDS, 1.0, 3,
                    state=RestartState.DONE)  # fmt: skip
    book = LedgerData({"PyTorchJob.train": JobEntry(uid, step=step)})
    return [each.cause for each in kube_causes(gathered(to_data(book)).kube)]


def test_a_pod_that_mwatch_deletes_is_no_persons_doing() -> None:
    assert told(Method.DELETE_PODS) == []


def test_a_pod_that_was_restarted_in_its_place_and_that_somebody_deletes_is_reported() -> None:
    assert told(Method.IN_PLACE) == [Cause.DELETED_BY_USER]


def test_an_entry_from_before_the_jobs_uid_was_known_is_of_this_job() -> None:
    assert told(Method.DELETE_PODS, uid="") == []


def test_what_was_done_to_another_job_of_that_name_says_nothing_of_this_one() -> None:
    assert told(Method.DELETE_PODS, uid="another") == [Cause.DELETED_BY_USER]


def test_without_a_ledger_nothing_is_ours() -> None:
    assert gathered({}).kube.ours == frozenset()
