# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Single promises of the chart: devices and variables by cloud, queue, claims, curves, stages."""

from __future__ import annotations

from typing import Any

import pytest

from support.repository.chart_renders import (
    MEGATRON,
    arguments,
    only,
    pods,
    rendered,
    sets,
    trainer,
    values_file,
)
from support.repository.megatron_flags import pairs
from support.runs.megatron_runs import CONTINUED, OPTIONS

EFA = "vpc.amazonaws.com/efa"


def job_of(*words: str) -> dict[str, Any]:
    return only(rendered(MEGATRON, *words), "PyTorchJob")


def variables(job: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in trainer(job)["env"] if "value" in each}


@pytest.mark.parametrize(
    ("instance", "count"),
    [
        ("g5.8xlarge", None), ("p4d.24xlarge", 4), ("p4de.24xlarge", 4), ("p5.48xlarge", 32),
        ("p5e.48xlarge", 32), ("p5en.48xlarge", 16), ("p6-b200.48xlarge", 8),
        ("ml.p5en.48xlarge", 16),
    ],
)  # fmt: skip
def test_efa_devices_follow_from_the_instance_type(instance: str, count: int | None) -> None:
    gpus = 1 if instance.startswith("g5") else 8
    words = sets(
        "network.kind=efa", f"cluster.instanceType={instance}", f"training.gpusPerNode={gpus}"
    )
    job = job_of(*words)
    assert trainer(job)["resources"]["limits"].get(EFA) == count
    selector = pods(job)[0]["spec"]["nodeSelector"]
    assert selector["node.kubernetes.io/instance-type"] == instance


def test_an_instance_type_of_the_future_says_its_devices_itself() -> None:
    job = job_of(*values_file("eks"), *sets("cluster.instanceType=p9.x", "network.efaPerNode=64"))
    assert trainer(job)["resources"]["limits"][EFA] == 64


def test_on_efa_the_plugin_chooses() -> None:
    found = variables(job_of(*values_file("eks")))
    assert found["FI_EFA_USE_HUGE_PAGE"] == "0"
    forbidden = (
        "NCCL_PROTO",
        "NCCL_ALGO",
        "FI_PROVIDER",
        "FI_EFA_USE_DEVICE_RDMA",
        "NCCL_BUFFSIZE",
    )
    assert not [
        name for name in found if name in forbidden or name.startswith(("NCCL_IB", "RDMAV"))
    ]


def test_infiniband_has_its_variables_and_sharp_only_when_asked_for() -> None:
    found = variables(job_of(*values_file("aks")))
    assert found["NCCL_IB_PCI_RELAXED_ORDERING"] == "1"
    assert found["NCCL_TOPO_FILE"] == "/etc/ndv5-topo.xml"
    assert found["NCCL_SOCKET_IFNAME"] == "eth0"
    assert "NCCL_COLLNET_ENABLE" not in found
    sharp = job_of(*OPTIONS["sharp"])
    assert variables(sharp)["NCCL_COLLNET_ENABLE"] == "1"
    assert "--use-sharp" in arguments(sharp)


def test_another_plugin_of_infiniband_has_another_resource() -> None:
    job = job_of(*values_file("aks"), *sets("network.rdmaResource=rdma/shared_ib"))
    assert trainer(job)["resources"]["limits"]["rdma/shared_ib"] == 8


def test_hyperpod_takes_healthy_nodes_alone() -> None:
    selector = pods(job_of(*values_file("hyperpod")))[0]["spec"]["nodeSelector"]
    assert selector["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"


def test_queue_priority_and_topology() -> None:
    job = job_of(*OPTIONS["queue"], *sets("scheduling.priorityClass=training"))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    pod = pods(job)[0]
    rack = "cloud.provider.com/topology-rack"
    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] == rack
    assert pod["spec"]["priorityClassName"] == "training"


def test_pods_that_want_to_be_near_each_other_find_each_other() -> None:
    job = job_of(*OPTIONS["placement"])
    affinity = pods(job)[0]["spec"]["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["labelSelector"]["matchLabels"] == {"training.kubeflow.org/job-name": "gpt"}


def test_policies_are_where_the_operator_reads_them() -> None:
    policy = job_of(*OPTIONS["limits"])["spec"]["runPolicy"]
    assert policy == {
        "cleanPodPolicy": "None",
        "ttlSecondsAfterFinished": 3600,
        "activeDeadlineSeconds": 86400,
        "backoffLimit": 100,
        "suspend": True,
    }


def test_claims_survive_an_uninstall() -> None:
    objects = rendered(MEGATRON, *OPTIONS["claims"])
    claims = [each for each in objects if each["kind"] == "PersistentVolumeClaim"]
    assert [each["metadata"]["name"] for each in claims] == ["data", "checkpoints"]
    for each in claims:
        assert each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert each["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("stage", ["train", "convert"])
def test_a_claim_for_both_is_one_volume(stage: str) -> None:
    """Of two volumes with one claim the second is never mounted, and the pod never starts."""
    words = [*CONTINUED, *sets(f"continued.stage={stage}", "storage.data.claim=checkpoints")]
    objects = rendered(MEGATRON, *words)
    kind = "Job" if stage == "convert" else "PyTorchJob"
    (job,) = [each for each in objects if each["kind"] == kind]
    templates = [job["spec"]["template"]] if kind == "Job" else pods(job)
    for template in templates:
        spec = template["spec"]
        claims = [each for each in spec["volumes"] if "persistentVolumeClaim" in each]
        assert [each["name"] for each in claims] == ["checkpoints"]
        mounts = spec["containers"][0]["volumeMounts"]
        used = {each["mountPath"]: each["name"] for each in mounts}
        assert used["/data"] == used["/checkpoints"] == "checkpoints"


def test_the_service_of_the_curves_selects_their_pods_and_not_the_trainers() -> None:
    objects = rendered(MEGATRON)
    selector = only(objects, "Service")["spec"]["selector"].items()
    shown = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    trained = pods(only(objects, "PyTorchJob"))[0]["metadata"]["labels"].items()
    assert selector <= shown
    assert not selector <= trained
    (folder,) = dict(pairs(arguments(only(objects, "PyTorchJob"))))["--tensorboard-dir"]
    container = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert f"--logdir={folder}" in container["command"]


def test_one_node_has_no_worker() -> None:
    assert list(job_of()["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_continued_pre_training_has_three_stages() -> None:
    convert = rendered(MEGATRON, *CONTINUED, *sets("continued.stage=convert"))
    (job,) = convert
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert "/checkpoints/gpt-base" in container["command"]
    assert "--target-tensor-parallel-size=4" in container["command"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    train = dict(pairs(arguments(job_of(*CONTINUED))))
    assert train["--pretrained-checkpoint"] == ["/checkpoints/gpt-base"]
    assert "--finetune" not in train
    handover = job_of(*CONTINUED, *sets("continued.stage=handover"))
    words = dict(pairs(arguments(handover)))
    assert words["--ckpt-convert-save"] == ["/checkpoints/gpt-handover"]
    assert "--async-save" not in words
    assert "mwatch.dev/watch" not in handover["metadata"]["labels"]


def test_scrape_annotations_only_when_asked_for() -> None:
    assert "annotations" not in pods(job_of())[0]["metadata"]
    pod = pods(job_of(*OPTIONS["annotations"]))[0]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "9401"


@pytest.mark.parametrize("option", ["handover", "must exist"])
def test_a_job_that_needs_a_checkpoint_fails_without_one(option: str) -> None:
    (data,) = [
        each
        for each in pods(job_of(*OPTIONS[option]))[0]["spec"]["initContainers"]
        if each["name"] == "data"
    ]
    names = {each["name"]: each["value"] for each in data["env"]}
    assert names["MUST_EXIST"] == "/checkpoints/gpt"
    assert ("DATA_FOLDER" in names) is (option != "handover"), "a hand-over reads no data"
