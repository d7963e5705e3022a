# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of each kind as one shape."""

from __future__ import annotations

import pytest

from mwatch.model.kube.job import JobKind, job_of, with_jobset
from support.builders.kube import (
    batch_job,
    body,
    job_set,
    made,
    pytorch_job,
    stateful_set,
    template,
)


def test_a_pytorchjob_reports_its_groups() -> None:
    job = pytorch_job("ExitCode", workers=3, gpus=8, run_policy={"backoffLimit": 2})
    assert job.kind is JobKind.PYTORCH_JOB and job.key == "PyTorchJob/ns/train"
    assert [(group.name, group.pods, group.restart_policy) for group in job.groups] == [
        ("Master", 1, "ExitCode"),
        ("Worker", 3, "ExitCode"),
    ]
    assert job.pods_wanted == 4 and job.backoff_limit == 2
    assert job.groups[0].requests == {"nvidia.com/gpu": 8.0}
    assert job.is_watched and job.mode == "act" and job.queue == ""


def test_a_jobset_counts_the_pods_of_all_its_jobs() -> None:
    spec = {
        "replicatedJobs": [
            {"name": "node", "replicas": 2,
             "template": {"spec": {"parallelism": 4, "template": template()}}},
            {"name": "driver", "template": {"spec": {"template": template()}}},
        ],
        "failurePolicy": {"maxRestarts": 5},
    }  # fmt: skip
    job = made("JobSet", spec, {"restarts": 4, "restartsCountTowardsMax": 1})
    assert [(group.pods, group.jobs, group.backoff_limit) for group in job.groups] == [
        (8, 2, 6),
        (1, 1, 6),
    ]
    assert job.failure_policy is not None and job.failure_policy.restarts == 1


def test_a_trainjob_is_restarted_as_its_jobset_is() -> None:
    bare = made("TrainJob", {"runtimeRef": {"name": "mwatch"}, "suspend": True})
    assert bare.is_suspended and bare.pods_wanted == 0
    job = with_jobset(bare, job_set(0, {"maxRestarts": 3}))
    assert job.kind is JobKind.TRAIN_JOB and job.pods_wanted == 2
    assert job.failure_policy is not None and job.failure_policy.max_restarts == 3


@pytest.mark.parametrize(
    ("kind", "condition", "finished"),
    [
        ("PyTorchJob", "Succeeded", "Succeeded"),
        ("PyTorchJob", "Failed", "Failed"),
        ("PyTorchJob", "Running", ""),
        ("JobSet", "Completed", "Succeeded"),
        ("JobSet", "Failed", "Failed"),
        ("TrainJob", "Complete", "Succeeded"),
        ("Job", "Complete", "Succeeded"),
        ("Job", "Failed", "Failed"),
        ("Job", "SuccessCriteriaMet", ""),
    ],
)
def test_each_kind_has_its_own_word_for_the_end(kind: str, condition: str, finished: str) -> None:
    status = {"conditions": [{"type": condition, "status": "True"}]}
    assert made(kind, {}, status).finished == finished
    status = {"conditions": [{"type": condition, "status": "False"}]}
    assert made(kind, {}, status).finished == ""


def test_a_job_has_six_retries_where_it_says_nothing() -> None:
    assert batch_job().backoff_limit == 6
    assert batch_job(0).backoff_limit == 0


def test_a_stateful_set_without_replicas_is_stopped_only_where_mwatch_stopped_it() -> None:
    assert not stateful_set(0).is_suspended
    assert stateful_set(0, annotations={"mwatch.dev/replicas": "4"}).is_suspended


def test_other_kinds_are_not_jobs_and_broken_ones_have_nothing() -> None:
    assert job_of({"kind": "Deployment"}) is None
    assert job_of({}) is None
    empty = job_of({"kind": "PyTorchJob", "metadata": None, "spec": "no", "status": []})
    assert empty is not None and empty.groups == () and empty.name == ""
    odd = job_of(body("PyTorchJob", {"pytorchReplicaSpecs": {"Master": None}}))
    assert odd is not None and odd.pods_wanted == 1
