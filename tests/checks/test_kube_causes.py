# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Causes of Kubernetes, from objects of a real cluster (see
`tests/cluster/test_kube_causes.py`)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mwatch.checks.kube_causes import ALL, kube_causes, kube_phase
from mwatch.model.cause import Cause
from mwatch.model.finding import Severity
from mwatch.model.kube.facts import KubeEvent, KubeFacts, KubeWorkload, event_of
from mwatch.model.kube.job import KubeJob, job_of
from mwatch.model.kube.node import KubeNode, Taint, node_of
from mwatch.model.kube.pod import KubePod, pod_of
from mwatch.model.phase import JobPhase
from support.builders.kube import batch_job, pod, pytorch_job

RECORDED = Path(__file__).parents[1] / "data" / "kube"
NOW = 1_767_226_200.0  # ten minutes after the pods of `kube_builders` were made
QUEUED = KubeWorkload("w", "u", "1", "job-uid", True, False, "", "")


def recorded(name: str) -> KubeFacts:
    body = json.loads((RECORDED / f"{name}.json").read_text())
    job = next((job_of({"kind": "Job", **each}) for each in body["jobs"]), None)
    pods = tuple(map(pod_of, body["pods"]))
    return KubeFacts(
        now=body["at"] + 60.0,
        job=job,
        name="train",
        pods=tuple(pod for pod in pods if job is not None and pod.owner == job.uid),
        events=tuple(map(event_of, body["events"])),
        nodes=tuple(map(node_of, body["nodes"])),
    )


def facts(job: KubeJob | None = None, *pods: KubePod, **more: object) -> KubeFacts:
    whole = {"now": NOW, "job": job or pytorch_job(), "name": "train", "pods": pods, **more}
    return KubeFacts(**whole)  # type: ignore[arg-type]


def causes(seen: KubeFacts) -> list[Cause]:
    return [finding.cause for finding in kube_causes(seen)]


@pytest.mark.parametrize(
    "cause",
    [
        Cause.UNSCHEDULABLE, Cause.IMAGE, Cause.VOLUME, Cause.PREEMPTED, Cause.DRAINED,
        Cause.SUSPENDED, Cause.DELETED_BY_USER,
    ],
)  # fmt: skip
def test_each_cause_is_reported_from_what_a_cluster_stated(cause: Cause) -> None:
    (found,) = kube_causes(recorded(cause.value))
    assert found.cause is cause and found.detector == cause.value
    assert found.summary and found.fingerprint == f"kubernetes/{cause.value}"


@pytest.mark.parametrize("name", ["running", "crash"])
def test_pods_that_run_or_crash_are_no_cause_of_kubernetes(name: str) -> None:
    assert kube_causes(recorded(name)) == []


def test_there_is_one_function_for_each_cause() -> None:
    assert len({cause.__name__ for cause in ALL}) == 9


NO_SHELL = (
    "failed to create containerd task: failed to create shim task: runc create failed: "
    'exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown'
)
NOT_STARTED = {"exitCode": 128, "reason": "StartError", "message": NO_SHELL}
STATES: dict[str, dict[str, object]] = {
    "never again": {"state": {"terminated": NOT_STARTED}},
    "waits to try again": {
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": NOT_STARTED},
    },
    "cri-o": {
        "state": {
            "waiting": {
                "reason": "CreateContainerError",
                "message": "container create failed: executable file `/bin/sh` not found",
            }
        }
    },
}


def with_state(state: dict[str, object]) -> KubePod:
    return pod("train-0", status={"containerStatuses": [{"name": "pytorch", **state}]})


@pytest.mark.parametrize("state", STATES)
def test_an_image_without_a_shell_is_named_with_its_fix_however_long_ago(state: str) -> None:
    (found,) = kube_causes(facts(None, with_state(STATES[state]), now=NOW + 86_400))
    assert found.cause is Cause.IMAGE
    assert "train-0 cannot start: its image has no /bin/sh" in found.summary
    assert "mwatch uninject" in found.summary and "/bin/sh" in found.evidence[0].text


def test_other_failures_to_start_and_what_a_program_wrote_do_not_name_the_shell() -> None:
    other = {**NOT_STARTED, "message": 'exec: "torchrun": executable file not found in $PATH'}
    printed = {**NOT_STARTED, "reason": "Error"}
    for each in (other, printed):
        assert kube_causes(facts(None, with_state({"state": {"terminated": each}}))) == []


def test_a_crash_loop_an_oom_and_an_eviction_for_memory_are_left_to_the_others() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    loop = {
        "containerStatuses": [
            {"name": "pytorch", "restartCount": 4, "lastState": ended,
             "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        ]
    }  # fmt: skip
    evicted = {
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
        "conditions": [
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
        ],
    }
    crashed = pod("train-0", status=loop)
    assert causes(facts(None, crashed, pod("train-1", phase="Failed", status=evicted))) == []
    assert (crashed.restarts, crashed.containers[0].exit_code) == (4, 137)


def disrupted(by: str, **more: object) -> KubePod:
    output = {"type": "DisruptionTarget", "status": "True", "reason": by, "message": "so it is"}
    return pod("train-0", deleting=True, status={"conditions": [output], **more})


def test_a_pod_that_a_taint_drives_off_is_drained_or_lost_as_its_node_is() -> None:
    gone = disrupted("DeletionByTaintManager")
    kept = pod("train-1")
    fixed = KubeNode("n1", taints=(Taint("maintenance", "", "NoExecute", None),))
    lost = KubeNode("n1", is_ready=False)
    assert causes(facts(None, gone, kept, nodes=(fixed,))) == [Cause.DRAINED]
    assert causes(facts(None, gone, kept, nodes=(lost,))) == []
    assert causes(facts(None, gone, kept, nodes=None)) == []


def test_a_node_that_shuts_down_drains_its_pods() -> None:
    text = "Pod was terminated in response to imminent node shutdown."
    gone = disrupted("TerminationByKubelet", reason="Terminated", message=text)
    assert causes(facts(None, gone, pod("train-1"))) == [Cause.DRAINED]


def test_a_pod_that_is_deleted_by_nobody_we_know_is_deleted_by_a_person() -> None:
    one, two = pod("train-0", deleting=True), pod("train-1", deleting=True)
    (found,) = kube_causes(facts(None, one, pod("train-1")))
    assert found.cause is Cause.DELETED_BY_USER and found.severity is Severity.INFO
    assert found.summary == "train-0 was deleted, and not by mwatch"
    assert found.culprit is not None and found.culprit.pod == "train-0"
    assert found.since_time == 1_767_226_200.0, "when it was asked for, not when its grace ends"
    (found,) = kube_causes(facts(None, one, two))
    assert found.summary == "all 2 pods of train were deleted, and not by mwatch"
    assert causes(facts(None, one, two, ours=frozenset({one.uid, two.uid}))) == []
    done = replace(pytorch_job(), finished="Succeeded")
    assert causes(facts(done, one, two)) == []
    lost = (KubeNode("n1", is_ready=False),)
    assert causes(facts(None, one, two, nodes=lost)) == []


def test_a_pod_that_is_gone_is_judged_by_how_it_was_when_it_left() -> None:
    here = pod("train-1")
    forced = pod("train-0")  # at once: nobody ever saw it on its way out
    assert causes(facts(None, here, left=(forced,))) == [Cause.DELETED_BY_USER]
    drained, preempted = map(disrupted, ("EvictionByEvictionAPI", "PreemptionByScheduler"))
    assert causes(facts(None, here, left=(drained,))) == [Cause.DRAINED]
    assert causes(facts(None, here, left=(preempted,))) == [Cause.PREEMPTED]
    assert causes(facts(None, here, left=(disrupted("DeletionByPodGC"),))) == []
    assert causes(facts(None, here, left=(forced,), ours=frozenset({forced.uid}))) == []


def test_what_the_jobs_own_controller_deletes_no_person_has_deleted() -> None:
    one, here = pod("train-0", deleting=True), pod("train-1")
    crashed = pod("train-1", phase="Failed")
    assert causes(facts(None, pod("train-0", phase="Failed", deleting=True), here)) == []
    assert causes(facts(None, one, crashed)) == [], "a gang that is replaced after a crash"
    assert causes(facts(None, here, left=(crashed, one))) == []
    suspended = replace(pytorch_job(), is_suspended=True)
    assert causes(facts(suspended, left=(one,))) == [Cause.SUSPENDED]
    output = KubeEvent("PyTorchJob", "train", "job-uid", "SuccessfulDeletePod",
                     "Deleted pod: train-0", False, NOW, 1)  # fmt: skip
    assert causes(facts(None, one, here, events=(output,))) == []
    other = output._replace(text="Deleted pod: train-01")
    before = output._replace(at=1_767_225_500.0)
    assert causes(facts(None, one, here, events=(other, before))) == [Cause.DELETED_BY_USER]


def test_kueue_that_takes_a_job_off_its_nodes_has_preempted_it() -> None:
    job = pytorch_job(run_policy={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "q"})
    work = QUEUED._replace(evicted="Preempted", evicted_text="to make room")
    found = kube_causes(facts(job, workload=work))
    assert [each.cause for each in found] == [Cause.PREEMPTED]
    assert "to make room" in found[0].summary and found[0].severity is Severity.WARNING


def test_a_job_that_waits_in_its_queue_is_queued_and_not_suspended() -> None:
    job = pytorch_job(run_policy={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "q"})
    seen = facts(job, workload=QUEUED)
    assert causes(seen) == [] and kube_phase(seen) is JobPhase.QUEUED
    stopped = facts(job, workload=QUEUED._replace(is_active=False))
    assert causes(stopped) == [Cause.SUSPENDED] and kube_phase(stopped) is None


def test_a_pod_behind_a_scheduling_gate_is_queued() -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    waits = pod(phase="Pending", node="", status={"conditions": [gated]})
    seen = facts(batch_job(pods=1), waits)
    assert causes(seen) == [] and kube_phase(seen) is JobPhase.QUEUED


def test_pods_that_are_not_there_yet_are_being_scheduled() -> None:
    assert kube_phase(facts(None, pod())) is JobPhase.SCHEDULING
    assert kube_phase(facts(None, pod(), pod("train-1"))) is None
    assert kube_phase(facts(replace(pytorch_job(), finished="Failed"))) is None


def event(
    reason: str, text: str, kind: str = "Pod", name: str = "train-0", age: float = 1.0
) -> KubeEvent:
    return KubeEvent(kind, name, "", reason, text, True, NOW - age, 1)


def test_a_mount_that_failed_and_then_went_well_is_history() -> None:
    output = event("FailedMount", "timed out")
    waits = pod(phase="Pending")
    assert causes(facts(None, waits, pod("train-1"), events=(output,))) == [Cause.VOLUME]
    assert causes(facts(None, pod(), pod("train-1"), events=(output,))) == []
    old = event("FailedMount", "timed out", age=3600.0)
    assert causes(facts(None, waits, pod("train-1"), events=(old,))) == []


def test_a_pod_whose_image_is_missing_has_its_volumes() -> None:
    """Only after the mounts the kubelet asks for the image, while the Event stays for an hour."""
    failed = event("FailedMount", 'object "team"/"kube-root-ca.crt" not registered')
    state = {"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}
    status = {"phase": "Pending", "containerStatuses": [{"name": "pytorch", **state}]}
    waits = pod("train-0", status=status)
    assert waits.phase == "Pending"
    assert causes(facts(None, waits, pod("train-1"), events=(failed,))) == [Cause.IMAGE]


def test_a_quota_that_lets_no_pod_in_is_no_room() -> None:
    output = event("FailedCreate", "pods is forbidden: exceeded quota: team", "PyTorchJob", "train")
    assert causes(facts(None, pod(), events=(output,))) == [Cause.UNSCHEDULABLE]
    assert causes(facts(None, pod(), pod("train-1"), events=(output,))) == []
