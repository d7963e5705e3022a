# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Each check of a manifest: what makes it speak, and what comes near and does not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from job_manifests import (
    TRAIN,
    at_instance,
    change,
    composer,
    container,
    elastic,
    job,
    jobset,
    limited,
    local_disk,
    probed,
    queued,
    rename,
    rendezvous,
    resumed,
    saving,
    script,
    service,
    variable,
    with_policy,
    without_shm,
)
from manifest_files import one_workload, text_of
from mwatch.checks.every import ALL, look
from mwatch.model.check import Found, Level


def found(content: dict[str, Any], *others: dict[str, Any]) -> list[Found]:
    return look(one_workload(yaml.safe_dump_all([content, *others])))


def ids(content: dict[str, Any], *others: dict[str, Any]) -> set[str]:
    return {each.check for each in found(content, *others)}


def test_a_good_job_has_nothing_to_find() -> None:
    assert found(job()) == []


def test_every_check_has_its_own_name_and_is_tested_here() -> None:
    names = [each.id for each in ALL]
    assert len(set(names)) == len(names)
    assert {case[0] for case in FIRES} == set(names)
    assert {case[0] for case in NEAR} == set(names)


FIRES: list[tuple[str, dict[str, Any]]] = [
    ("container-name", rename(job(), "megatron")),
    ("readiness-probe", probed("readinessProbe")),
    ("world-size", job(pipeline_model_parallel_size="8")),
    ("world-size", job(context_parallel_size="4")),
    ("batch", job(global_batch_size="511")),
    ("batch", job(micro_batch_size="3")),
    ("heads", job(num_attention_heads="18")),
    ("layers", job(num_layers="25")),
    ("save-load", job(save=None)),
    ("save-load", job(load=None)),
    ("save-load", job(load="/data/other")),
    ("save-volume", job(save="/local", load="/local")),
    ("save-volume", local_disk()),
    ("autoresume", composer("save_folder=/data/a")),
    ("backoff-limit", limited(1)),
    ("restart-policy", with_policy("Never")),
    ("restart-policy", with_policy("ExitCode")),
    ("misplaced-policy", change(job(), lambda it: it["spec"].update(ttlSecondsAfterFinished=60))),
    ("auto-resume", resumed("act")),
    ("queue", queued("kueue.x-k8s.io/queue-name")),
    ("elastic", elastic(1, 64)),
    ("jobset-gang", jobset("OnFailure", 0)),
    ("jobset-gang", jobset("Never", 6)),
    ("exit-code", script(job(), f"{TRAIN} 2>&1 | tee /tmp/log\nEXIT_CODE=$?\nexit $EXIT_CODE")),
    ("exit-code", script(job(), f"cd /data; {TRAIN}; echo done")),
    ("exit-code", script(job(), f"{TRAIN} || true")),
    ("exit-code", script(job(), f"{TRAIN} \\\n  --bf16\necho finished\n")),
    ("first-process", script(job(), f"set -e\n{TRAIN}")),
    ("grace-period", saving(None)),
    ("grace-period", saving(30)),
    ("network-variables", variable(job(), "NCCL_DEBUG", "INFO")),
    ("network-variables", variable(job(), "NCCL_ALGO", "Ring")),
    ("network-variables", variable(job(), "TRITON_CACHE_DIR", "/data/triton")),
    ("network-variables", variable(at_instance("p5.48xlarge", 32), "NCCL_SOCKET_IFNAME", "eth0")),
    ("network-devices", at_instance("ml.p5.48xlarge", 16)),
    ("network-devices", change(job(), lambda it: container(it).update(
        resources={"limits": {"nvidia.com/gpu": 8, "rdma/ib": 1}}))),
    ("shared-memory", without_shm()),
    ("rendezvous-id", rendezvous("a", "b")),
    ("undefined-variable", variable(job(), "ADDRESS", "$(PYTORCHJOB_NAME)-master-0")),
    ("rendezvous-store", elastic(2, 2, "etcd")),
    ("rendezvous-store", variable(job(), "PET_RDZV_BACKEND", "etcd-v2")),
    ("rendezvous-store", script(job(), TRAIN.replace("torchrun", "torchrun --rdzv-backend etcd"))),
]  # fmt: skip
NEAR: list[tuple[str, dict[str, Any]]] = [
    ("container-name", job()),
    ("readiness-probe", probed("livenessProbe")),
    ("world-size", job(pipeline_model_parallel_size="4")),
    ("world-size", job(tensor_model_parallel_size="$(TP)")),
    ("batch", job(global_batch_size="510")),
    ("batch", job(global_batch_size="511", rampup_batch_size="16")),
    ("heads", job(num_attention_heads="20")),
    ("layers", job(num_layers="25", decoder_first_pipeline_num_layers="12")),
    ("save-load", job(save="/data/x", load="/data/x")),
    ("save-volume", job(save="$(WHERE)", load="$(WHERE)")),
    ("autoresume", composer("save_folder=/data/a", "autoresume=true", "run_name=a")),
    ("backoff-limit", limited(2)),
    ("restart-policy", with_policy("ExitCode", is_wrapped=True)),
    ("misplaced-policy", change(job(), lambda it: it["spec"].update(nprocPerNode="8"))),
    ("auto-resume", resumed("observe")),
    ("queue", queued("team.example/queue-name")),
    ("elastic", elastic(2, 2)),
    ("jobset-gang", jobset("Never", 0)),
    ("exit-code", script(job(), f"set -eo pipefail\n{TRAIN} 2>&1 | tee /tmp/log")),
    ("exit-code", script(job(), f"{TRAIN} 2>&1 | tee l\ncode=${{PIPESTATUS[0]}}\nexit $code")),
    ("exit-code", script(job(), f"set -e; {TRAIN}; echo done")),
    ("exit-code", script(job(), f"echo begin; {TRAIN}")),
    ("exit-code", script(job(), f"{TRAIN}\ncode=$?\necho $code\nexit $code")),
    ("exit-code", script(job(), f"{TRAIN} && echo done")),
    ("exit-code", script(job(), f"echo 'torchrun | tee'; {TRAIN}")),
    ("exit-code", script(job(), f"cat > x.py <<EOF\ntorchrun; echo\nEOF\n{TRAIN}")),
    ("first-process", script(job(), f"set -e\nexec {TRAIN}")),
    ("grace-period", saving(300)),
    ("network-variables", variable(job(), "NCCL_SOCKET_IFNAME", "eth0")),
    ("network-variables", variable(job(), "TRITON_CACHE_DIR", "/tmp/triton")),
    ("network-devices", at_instance("ml.p5.48xlarge", 32)),
    ("network-devices", at_instance("p5en.48xlarge", 16)),
    ("shared-memory", without_shm(host_ipc=True)),
    ("rendezvous-id", rendezvous("a", "a")),
    ("undefined-variable", variable(variable(job(), "NAME", "gpt"), "ADDRESS", "$(NAME)-0")),
    ("undefined-variable", variable(job(), "TEXT", "$$(NAME)")),
    ("rendezvous-store", elastic(2, 2, "c10d")),
    ("rendezvous-store", variable(job(), "PET_RDZV_BACKEND", "c10d")),
]
FIRES.append(("selector", job()))
NEAR.append(("selector", job()))
OTHERS = {
    "fires": [service({"job-name": "gpt"})],
    "near": [service({"training.kubeflow.org/job-name": "gpt"}), service({"job-name": "data"})],
}


@pytest.mark.parametrize(("check", "content"), FIRES, ids=[each[0] for each in FIRES])
def test_it_speaks(check: str, content: dict[str, Any]) -> None:
    others = OTHERS["fires"] if check == "selector" else []
    said = [each for each in found(content, *others) if each.check == check]
    assert said, ids(content, *others)
    for each in said:
        assert each.what and each.mend and each.line is not None
        assert each.job.endswith("/gpt")


@pytest.mark.parametrize(("check", "content"), NEAR, ids=[each[0] for each in NEAR])
def test_it_stays_quiet(check: str, content: dict[str, Any]) -> None:
    others = OTHERS["near"] if check == "selector" else []
    assert check not in ids(content, *others)


def test_a_claim_of_each_pod_is_no_shared_volume_unless_there_is_one_pod() -> None:
    text = text_of("statefulset.yaml")
    assert "save-volume" in {each.check for each in look(one_workload(text))}
    alone = one_workload(text.replace("replicas: 4", "replicas: 1"))
    assert "save-volume" not in {each.check for each in look(alone)}


def test_the_worst_comes_first_and_names_its_line() -> None:
    content = limited(1)
    content["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "a"}
    first, *_, last = found(variable(content, "NCCL_DEBUG", "INFO"))
    assert (first.level, last.level) == (Level.ERROR, Level.INFO)
    text = yaml.safe_dump(content)
    lines = text.splitlines()
    assert first.line is not None and "backoffLimit" in lines[first.line - 1]


def test_the_numbers_are_told() -> None:
    (said,) = [each for each in found(job(pipeline_model_parallel_size="8"))]
    assert said.what == "the world size 16 does not divide by TP 4 x PP 8 x CP 1 = 32"
    (batch,) = found(job(global_batch_size="511"))
    assert batch.what == "the global batch 511 does not divide by micro batch 1 x DP 2"


def test_a_store_of_the_same_file_is_told() -> None:
    store = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "etcd"}}
    (said,) = [each for each in found(elastic(2, 2, "etcd"), store)]
    assert "the etcd at etcd (a Deployment of this file)" in said.what
