# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The 24 checks of a live job: what triggers each, what does not, and when it cannot be made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from msgspec import structs

from mwatch.checks import every
from mwatch.checks.every import ALL
from mwatch.checks.live import RUNNING, look
from mwatch.model.checks import (
    CheckLevel,
    CheckState,
    Claim,
    JobProgress,
    Outcome,
    Running,
)
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.node import HYPERPOD_HEALTH, KubeNode, Taint
from mwatch.model.observation import StoredCheckpoint, StoredCheckpoints
from mwatch.model.snapshot.pod import DataFile, Mount, PodFacts
from support.builders.job_manifests import (
    TRAIN,
    at_instance,
    job,
    limited,
    pod,
    probed,
    queued,
    rename,
    resumed,
    script,
    service,
    variable,
    with_policy,
)
from support.builders.kube import made
from support.builders.kube import pod as kube_pod
from support.repository.manifest_files import one_workload

NOW = 1_767_226_200.0
GB = 10**9
WHOLE = StoredCheckpoint(40, "complete", None, 100 * GB, NOW - 60.0)
BROKEN = StoredCheckpoint(50, "incomplete", "a shard is missing", 1, NOW - 30.0)
SHARED = Mount("/data/run", "/data", "lustre", False, 900 * GB, 1000 * GB)
VOLUME = PodFacts((DataFile("/data/a", 10, 5),), (SHARED,), "40")
REPORTED = JobProgress(
    iteration=45, total_iterations=1000, line_at=NOW - 2.0, line_seconds=1.0,
    line_pods=("gpt-worker-0",), read_pods=2, step_seconds=1.0, save_interval=10, attempts=1,
)  # fmt: skip
PODS = (kube_pod("gpt-master-0"), kube_pod("gpt-worker-0", node="n2"))


def running(content: dict[str, Any] | None = None, *others: dict[str, Any], **more: Any) -> Running:
    """A job that is well, and of which all was seen."""
    body = job() if content is None else content
    workload = one_workload(yaml.safe_dump_all([body, *others]))
    kube = made(workload.kind, body["spec"], creationTimestamp="2026-01-01T00:00:00Z")
    facts = KubeFacts(NOW, kube, "gpt", PODS, (), (KubeNode("n1"), KubeNode("n2")))
    well: dict[str, Any] = {
        "facts": facts,
        "workload": workload,
        "applied": workload,
        "progress": REPORTED,
        "pods": {"gpt-master-0": VOLUME},
        "stored": StoredCheckpoints("/data/run", (WHOLE,)),
        "arguments": {"--save": "/data/run", "--load": "/data/run"},
        "claims": (Claim("data", "lustre", "Retain"),),
        "services": ("tensorboard",),
        "keeps_sidecar": True,
    }
    return Running(**{**well, **more})


def with_job(spec: dict[str, Any] | None = None, **more: Any) -> Running:
    """`more`: fields of the job."""
    found = running()
    return replace(found, facts=replace(found.facts, job=replace(found.facts.job, **more)))  # type: ignore[type-var]


def with_nodes(*nodes: KubeNode) -> Running:
    found = running()
    return replace(found, facts=replace(found.facts, nodes=nodes))


def with_pods(pods: Any) -> Running:
    found = running()
    return replace(found, facts=replace(found.facts, pods=tuple(pods)))


def pod_facts(**more: Any) -> dict[str, PodFacts]:
    return {"gpt-master-0": structs.replace(VOLUME, **more)}


def pruned() -> dict[str, Any]:
    content = job()
    pod(content)["initContainers"] = [{"name": "mwatch", "image": "mwatch"}]
    return content


def one(found: Running, check: str) -> Outcome:
    (made_one,) = [each for each in look(found) if each.check == check]
    return made_one


Case = tuple[int, str, Callable[[], Running]]
SPEAKS: list[Case] = [
    (1, "world-size", lambda: running(job(pipeline_model_parallel_size="8"))),
    (1, "batch", lambda: running(job(global_batch_size="511"))),
    (1, "heads", lambda: running(job(num_attention_heads="18"))),
    (1, "layers", lambda: running(job(num_layers="25"))),
    (2, "sidecar-kept", lambda: running(pruned())),
    (2, "sidecar-kept", lambda: running(keeps_sidecar=False)),
    (3, "container-name", lambda: running(rename(job(), "megatron"))),
    (4, "data-files", lambda: running(pods=pod_facts(data=(DataFile("/d", 9, None),)))),
    (4, "data-files", lambda: running(pods=pod_facts(data=(DataFile("/d", 0, 5),)))),
    (4, "data-files", lambda: running(lists={
        "--train-data-path": ("1", "/d/a", "1", "/d/b"), "--valid-data-path": ("1", "/d/b")})),
    (4, "data-files", lambda: running(lists={"--train-data-path": ()})),
    (5, "data-prefix", lambda: running(pods=pod_facts(data=(DataFile("/d", None, None),)))),
    (6, "save-load", lambda: running(job(save=None))),
    (6, "running-save-load", lambda: running(arguments={"--num-layers": "4"})),
    (6, "running-save-load", lambda: running(arguments={"--save": "/a"})),
    (6, "running-save-load", lambda: running(arguments={"--save": "/a", "--load": "/b"})),
    (6, "save-volume", lambda: running(job(save="/local", load="/local"))),
    (6, "save-mount", lambda: running(
        pods=pod_facts(mounts=(structs.replace(SHARED, kind="overlay"),)))),
    (6, "save-space", lambda: running(
        pods=pod_facts(mounts=(structs.replace(SHARED, free_bytes=150 * GB),)))),
    (6, "save-space", lambda: running(
        stored=StoredCheckpoints("/data/run", ()),
        pods=pod_facts(mounts=(structs.replace(SHARED, free_bytes=GB),)),
        arguments={"--save": "/data/run", "--num-layers": "96", "--hidden-size": "12288"})),
    (7, "tracker", lambda: running(pods=pod_facts(tracker=None))),
    (7, "tracker", lambda: running(
        pods=pod_facts(tracker="50"), stored=StoredCheckpoints("/data/run", (WHOLE, BROKEN)))),
    (7, "tracker", lambda: running(
        stored=StoredCheckpoints("/data/run", (structs.replace(WHOLE, written_at=NOW - 7200.0),)))),
    (8, "backoff-limit", lambda: running(limited(1))),
    (9, "restart-policy", lambda: running(with_policy("Never"))),
    (10, "exit-code", lambda: running(script(job(), f"{TRAIN} 2>&1 | tee /tmp/log"))),
    (11, "first-process", lambda: running(script(job(), f"set -e\n{TRAIN}"))),
    (12, "readiness-probe", lambda: running(probed("readinessProbe"))),
    (13, "network-variables", lambda: running(variable(job(), "NCCL_DEBUG", "INFO"))),
    (14, "network-devices", lambda: running(at_instance("ml.p5.48xlarge", 16))),
    (15, "selector", lambda: running(job(), service({"job-name": "gpt"}))),
    (16, "tensorboard", lambda: running(job(tensorboard_dir="/data/tb"), services=("etcd",))),
    (17, "queue", lambda: running(queued("kueue.x-k8s.io/queue-name"))),
    (18, "auto-resume", lambda: running(resumed("act"))),
    (19, "nodes", lambda: with_nodes(KubeNode("n1"), KubeNode("n2", is_ready=False))),
    (19, "nodes", lambda: with_nodes(KubeNode("n1"))),
    (19, "nodes", lambda: with_nodes(
        KubeNode("n1"), KubeNode("n2", labels={HYPERPOD_HEALTH: "UnschedulablePendingReboot"}))),
    (19, "nodes", lambda: with_nodes(
        KubeNode("n1"), KubeNode("n2", taints=(Taint("sick", "", "NoExecute", None),)))),
    (20, "reclaim", lambda: running(claims=(Claim("data", "azurelustre", "Delete"),))),
    (21, "pod-rendezvous-id", lambda: running(
        rendezvous={"gpt-master-0": "gpt-aaa", "gpt-worker-0": "gpt-bbb"})),
    (22, "last-rank", lambda: running(progress=REPORTED._replace(line_at=NOW - 900.0))),
    (22, "last-rank", lambda: running(progress=REPORTED._replace(line_at=None, iteration=None))),
    (23, "random-start", lambda: running(
        progress=REPORTED._replace(random_start="will start from random", attempts=2))),
    (24, "early-success", lambda: with_job(finished="Succeeded")),
]  # fmt: skip
FINE: list[tuple[str, Callable[[], Running]]] = [
    ("sidecar-kept", running),
    ("data-files", lambda: running(lists={
        "--train-data-path": ("1.0", "/d/a"), "--valid-data-path": ("1.0", "/d/b")})),
    ("data-prefix", running),
    ("running-save-load", running),
    ("save-mount", running),
    ("save-space", running),
    ("tracker", running),
    ("nodes", running),
    ("reclaim", running),
    ("tensorboard", lambda: running(job(tensorboard_dir="/data/tb"))),
    ("pod-rendezvous-id", lambda: running(rendezvous={"a": "x", "b": "x"})),
    ("last-rank", running),
    ("last-rank", lambda: running(progress=REPORTED._replace(line_at=None))),
    ("random-start", lambda: running(
        stored=StoredCheckpoints("/data/run", ()),
        progress=REPORTED._replace(random_start="will start from random"))),
    ("early-success", running),
    ("early-success", lambda: running(progress=REPORTED._replace(is_done=True))),
]  # fmt: skip
UNCHECKED: list[tuple[str, Callable[[], Running]]] = [
    ("sidecar-kept", lambda: running(keeps_sidecar=None)),
    ("data-files", lambda: running(pods={})),
    ("data-prefix", lambda: running(pods={})),
    ("data-prefix", lambda: running(pods=pod_facts(data=(DataFile("/d", None, None, True),)))),
    ("running-save-load", lambda: running(arguments={})),
    ("save-mount", lambda: running(pods={})),
    ("save-space", lambda: running(pods={})),
    ("save-space", lambda: running(stored=None)),
    ("tracker", lambda: running(stored=None)),
    ("nodes", lambda: replace(running(), facts=replace(running().facts, nodes=None))),
    ("reclaim", lambda: running(claims=None)),
    ("reclaim", lambda: running(claims=(Claim("data", "lustre", ""),))),
    ("tensorboard", lambda: running(job(tensorboard_dir="/data/tb"), services=None)),
    ("pod-rendezvous-id", lambda: with_pods(())),
    ("last-rank", lambda: running(progress=JobProgress())),
    ("last-rank", lambda: running(
        progress=REPORTED._replace(line_at=None, iteration=None, read_pods=1))),
    ("random-start", lambda: running(progress=JobProgress())),
    ("early-success", lambda: replace(with_job(finished="Succeeded"), progress=JobProgress())),
    ("misplaced-policy", lambda: running(applied=None)),
]  # fmt: skip


def test_each_of_the_24_checks_of_the_reference_is_made_and_tested() -> None:
    assert {row for row, _, _ in SPEAKS} == set(range(1, 25))
    of_running = {each.id for each in RUNNING}
    assert {check for _, check, _ in SPEAKS} <= {each.id for each in ALL} | of_running
    assert of_running == {check for _, check, _ in SPEAKS} & of_running
    assert of_running == {check for check, _ in FINE}
    assert of_running == {check for check, _ in UNCHECKED} - {"misplaced-policy"}


def test_a_job_that_is_well_has_nothing_to_find() -> None:
    every = look(running())
    assert [each for each in every if each.state is not CheckState.FINE] == []
    assert len({each.check for each in every}) == len(every) == len(ALL) + len(RUNNING)


@pytest.mark.parametrize(("row", "check", "case"), SPEAKS)
def test_it_speaks(row: int, check: str, case: Callable[[], Running]) -> None:
    found = one(case(), check)
    assert found.state is CheckState.FOUND
    assert all(each.what and each.fix for each in found.found)


@pytest.mark.parametrize(("check", "case"), FINE)
def test_it_stays_quiet(check: str, case: Callable[[], Running]) -> None:
    assert one(case(), check).state is CheckState.FINE


@pytest.mark.parametrize(("check", "case"), UNCHECKED)
def test_what_cannot_be_seen_is_not_taken_for_well(check: str, case: Callable[[], Running]) -> None:
    found = one(case(), check)
    assert found.state is CheckState.NOT_OBSERVABLE
    assert found.why


def test_why_it_was_not_seen_is_reported() -> None:
    refused = "storageclasses is forbidden"
    found = one(running(claims=None, unavailable={"claims": refused}), "reclaim")
    assert found.why == refused


def test_a_ttl_at_the_wrong_level_is_found_in_what_was_applied() -> None:
    applied = job()
    applied["spec"]["ttlSecondsAfterFinished"] = 60
    spoilt = one_workload(yaml.safe_dump(applied))
    found = one(running(applied=spoilt), "misplaced-policy")
    assert "ttlSecondsAfterFinished" in found.found[0].what


def test_arguments_that_nobody_saw_are_not_taken_for_right() -> None:
    hidden = running(script(job(), "exec bash /opt/train.sh"))
    assert one(hidden, "world-size").state is CheckState.NOT_OBSERVABLE


def test_the_worst_comes_first() -> None:
    found = every.look(running(variable(limited(1), "NCCL_DEBUG", "INFO")).workload)
    assert [each.level for each in found] == [CheckLevel.ERROR, CheckLevel.WARNING]
