# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Each check of a manifest: what triggers it, and what comes near and does not."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from mwatch.checks.every import ALL, look
from mwatch.model.checks import CheckLevel, Problem
from support.builders.job_manifests import (
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
    probed_jobset,
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
from support.repository.manifest_files import one_workload, text_of


def found(content: dict[str, Any], *others: dict[str, Any]) -> list[Problem]:
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


PARSING = (
    "usage()\n{\ncat << EOF\nusage: x\nEOF\n}\nparse() {\n  while [[ $1 ]]; do\n"
    "    case $(grep -o = <<< $1 | wc -l) in\n      1 ) a+=($1) ;;\n      * ) usage; exit 1\n"
    "    esac\n    shift\n  done\n}\nparse $@\n"
)
SIXTEEN = f"exec {TRAIN} --tensor-model-parallel-size {{}}"
BRANCHED = f"TP=1\nif [ $SIZE = big ]; then\n  TP=48\nfi\n{SIXTEEN.format('$TP')}"
FIRES: list[tuple[str, dict[str, Any]]] = [
    ("container-name", rename(job(), "megatron")),
    ("readiness-probe", probed("readinessProbe")),
    ("readiness-probe", probed_jobset(publishes=False)),
    ("world-size", job(pipeline_model_parallel_size="8")),
    ("world-size", job(context_parallel_size="4")),
    ("world-size", script(job(), BRANCHED.replace("TP=48", "TP=32").replace("TP=1", "TP=32"))),
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
    ("jobset-gang", jobset("Never", 0, failure={})),
    ("jobset-gang", jobset("Never", 0, failure={"maxRestarts": 0})),
    ("exit-code", script(job(), f"{TRAIN} 2>&1 | tee /tmp/log\nEXIT_CODE=$?\nexit $EXIT_CODE")),
    ("exit-code", script(job(), f"cd /data; {TRAIN}; echo done")),
    ("exit-code", script(job(), f"{TRAIN} || true")),
    ("exit-code", script(job(), f"{PARSING}{TRAIN}\nif [ $X ]; then\n  ls\nfi\necho bye\n")),
    ("exit-code", script(job(), f"{TRAIN} \\\n  --bf16\necho finished\n")),
    ("first-process", script(job(), f"set -e\n{TRAIN}")),
    ("first-process", script(job(), f"{TRAIN} 2>&1")),
    ("first-process", script(job(), f"{TRAIN} | cat")),
    ("first-process", script(job(), "bash /scripts/train.sh")),
    ("exit-code", script(job(), f"{TRAIN}\nif [ -d /x ]; then\n  cp -r /x /y\nfi\n")),
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
    ("readiness-probe", probed_jobset(publishes=True)),
    ("world-size", job(pipeline_model_parallel_size="4")),
    ("world-size", job(tensor_model_parallel_size="$(TP)")),
    ("world-size", script(job(), BRANCHED)),
    (
        "world-size",
        script(job(), f"if [ $A ]; then\n{SIXTEEN.format(1)}\nelse\n{SIXTEEN.format(48)}\nfi"),
    ),
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
    ("jobset-gang", jobset("Never", 6, pods=1)),
    ("jobset-gang", jobset("OnFailure", 2**31 - 1, failure={"restartStrategy": "InPlaceRestart"})),
    ("exit-code", script(job(), f"set -eo pipefail\n{TRAIN} 2>&1 | tee /tmp/log")),
    ("exit-code", script(job(), f"{TRAIN} 2>&1 | tee l\ncode=${{PIPESTATUS[0]}}\nexit $code")),
    ("exit-code", script(job(), f"set -e; {TRAIN}; echo done")),
    ("exit-code", script(job(), f"echo begin; {TRAIN}")),
    ("exit-code", script(job(), f"{TRAIN}\ncode=$?\necho $code\nexit $code")),
    ("exit-code", script(job(), f"{TRAIN} && echo done")),
    ("exit-code", script(job(), f"echo 'torchrun | tee'; {TRAIN}")),
    ("exit-code", script(job(), f"cat > x.py <<EOF\ntorchrun; echo\nEOF\n{TRAIN}")),
    ("first-process", script(job(), f"set -e\nexec {TRAIN}")),
    ("first-process", script(job(), f"# a comment\n{TRAIN}\n")),
    ("first-process", script(job(), f"trap 'kill 0' SIGTERM\n{TRAIN} &\nwait\n")),
    ("exit-code", script(job(), f"if ! {TRAIN}; then echo failed; exit 1; fi")),
    ("exit-code", script(job(), f"train() {{\n  {TRAIN}\n}}\ntrain\n")),
    ("exit-code", script(job(), f"train()\n{{\n  {TRAIN}\n}}\ntrain\n")),
    ("exit-code", script(job(), f"{PARSING}train() {{ {TRAIN}; }}\ntrain\n")),
    ("exit-code", script(job(), f"for i in 1 2; do {TRAIN} && exit 0; done; exit 1")),
    ("grace-period", saving(300)),
    ("network-variables", variable(job(), "NCCL_SOCKET_IFNAME", "eth0")),
    ("network-variables", variable(job(), "TRITON_CACHE_DIR", "/tmp/triton")),
    ("network-devices", at_instance("ml.p5.48xlarge", 32)),
    ("network-devices", at_instance("p5en.48xlarge", 16)),
    ("shared-memory", without_shm(host_ipc=True)),
    ("rendezvous-id", rendezvous("a", "a")),
    ("undefined-variable", variable(variable(job(), "NAME", "gpt"), "ADDRESS", "$(NAME)-0")),
    ("undefined-variable", variable(job(), "TEXT", "$$(NAME)")),
    ("undefined-variable", variable(job(), "STORE", "$(ETCD_SERVICE_HOST):2379")),
    (
        "undefined-variable",
        change(
            variable(job(), "A", "$(OF_A_SECRET)"),
            lambda it: container(it).update(envFrom=[{"secretRef": {"name": "s"}}]),
        ),
    ),
    (
        "undefined-variable",
        change(
            job(), lambda it: container(it)["command"].append("--node-rank=$(JOB_COMPLETION_INDEX)")
        ),
    ),
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
    output = [each for each in found(content, *others) if each.check == check]
    assert output, ids(content, *others)
    for each in output:
        assert each.what and each.fix and each.line is not None
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
    assert (first.level, last.level) == (CheckLevel.ERROR, CheckLevel.INFO)
    text = yaml.safe_dump(content)
    lines = text.splitlines()
    assert first.line is not None and "backoffLimit" in lines[first.line - 1]


def test_the_numbers_are_reported() -> None:
    (output,) = [each for each in found(job(pipeline_model_parallel_size="8"))]
    assert output.what == "the world size 16 is not divisible by TP 4 x PP 8 x CP 1 = 32"
    (batch,) = found(job(global_batch_size="511"))
    assert batch.what == "the global batch 511 is not divisible by micro batch 1 x DP 2"


def test_a_field_that_no_policy_has_is_not_to_be_put_into_one() -> None:
    content = change(job(), lambda it: it["spec"].update(worldSize=2, backoffLimit=4))
    fixes = {each.what.split()[0]: each.fix for each in found(content)}
    assert fixes["backoffLimit"] == "put it at spec.runPolicy.backoffLimit"
    assert fixes["worldSize"].startswith("take it away")


def test_an_elastic_job_that_is_no_megatron_is_not_warned_of_layouts() -> None:
    content = change(elastic(1, 3), lambda it: it["spec"]["pytorchReplicaSpecs"].pop("Master"))
    container(content).update(command=["torchrun", "imagenet.py"], args=[])
    (output,) = [each.what for each in found(content) if each.check == "elastic"]
    assert "Megatron" not in output and "the first worker that succeeds ends the job" in output


def test_bash_that_may_give_way_is_not_accused() -> None:
    (output, *_) = [each.what for each in found(script(job(), f"cd /x && {TRAIN}"))]
    assert "may stay process 1 (bash before 5.1 does)" in output


def test_a_store_of_the_same_file_is_reported() -> None:
    store = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "etcd"}}
    (output,) = [each for each in found(elastic(2, 2, "etcd"), store)]
    assert "the etcd at etcd (a Deployment of this file)" in output.what
