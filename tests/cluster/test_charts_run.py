# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the chart megatron-training renders, run for real: the small GPT instead of the large one.

The first install finds no data and says so; with the data there it trains; taken away it saves, and
the next install goes on from there to its end. On a cluster made here the image holds a shell, and
Python comes from this machine: that is all that is added to what the chart wrote.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.training import READER, SECONDS, Training
from cluster.training_job import SAVE, Trainer
from cluster.yard import Yard
from support.repository.chart_renders import MEGATRON, only, pods, rendered, sets

pytestmark = pytest.mark.timeout(1800)
NAME = "chart"
PREFIX = "corpus/tiny_text_document"
INTERVAL = 10
ITERATIONS = 300
"""Far more than it takes before the job is taken away, also for a test that gets little time."""
_DOCUMENTS, _TOKENS = 64, 80


def words(yard: Yard) -> list[str]:
    trainer = yard.trainer
    found = sets(
        "model.size=custom", "model.numLayers=1", "model.hiddenSize=32",
        "model.numAttentionHeads=4", "model.seqLength=64",
        "training.script=-m mwatch_gpt", "training.nodes=2", "training.gpusPerNode=1",
        "training.microBatchSize=2", "training.globalBatchSize=4", "training.logInterval=1",
        f"training.iterations={ITERATIONS}",
        "optimizer.warmupFraction=null", "training.evalInterval=1000", "training.evalIterations=1",
        'training.extraArguments=["--distributed-backend","gloo","--min-step-seconds","0.1"]',
        "parallelism.distributedOptimizer=false", "parallelism.overlap=false",
        f'dataset.prefixes=["/data/{PREFIX}"]', f"checkpoints.saveInterval={INTERVAL}",
        "checkpoints.async=false", "storage.data.claim=checkpoints", "storage.sharedMemory=64Mi",
        "cluster.gpuResource=", "resources.gracePeriodSeconds=60", "tensorboard.enabled=false",
        "mwatch.mode=act",
    )  # fmt: skip
    repository, _, tag = trainer.image.rpartition(":")
    found += sets(f"image.repository={repository}", f"image.tag={tag}")
    found += sets(f"mwatch.image={yard.image}")
    if trainer.mounted:
        path = f"{Path(trainer.python).parent}:/usr/local/bin:/usr/bin:/bin"
        found += sets(
            f"image.workingDir={trainer.search}", f"training.extraEnvironment.PATH={path}"
        )
        found += ["--set-string", "training.extraEnvironment.OMP_NUM_THREADS=1"]
    return found


def on_this_machine(job: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    """With folders of the node in the containers that are made of the training image."""
    for pod in pods(job):
        spec = pod["spec"]
        containers = [*spec["containers"], *spec["initContainers"]]
        ours = [each for each in containers if each["name"] in ("pytorch", "data")]
        for number, path in enumerate(trainer.mounted):
            name = f"machine-{number}"
            spec["volumes"].append({"name": name, "hostPath": {"path": path}})
            for each in ours:
                mount = {"name": name, "mountPath": path, "readOnly": True}
                each["volumeMounts"].append(mount)
        if trainer.mounted:
            path = f"{Path(trainer.python).parent}{os.pathsep}/usr/bin:/bin"
            data = next(each for each in ours if each["name"] == "data")
            data["env"].append({"name": "PATH", "value": path})
    return job


def install(yard: Yard) -> Training:
    objects = rendered(MEGATRON, *words(yard), name=NAME, namespace=yard.namespace)
    job = only(objects, "PyTorchJob")
    on_this_machine(job, yard.trainer)
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    yard.cluster("apply", "-f", "-", given=given)
    return Training(yard.cluster, yard.namespace, "pytorchjob", NAME)


def put(yard: Yard, path: str, data: bytes) -> None:
    script = f"mkdir -p {SAVE}/corpus && base64 -d > {SAVE}/{path}"
    text = base64.b64encode(data).decode()
    yard.cluster("exec", "-i", READER, "-n", yard.namespace, "--", "sh", "-c", script, given=text)


def put_data(yard: Yard) -> None:
    """As Megatron's builder writes it: tokens of two bytes, one document for each sequence."""
    tokens = [(7 * place) % 200 for place in range(_DOCUMENTS * _TOKENS)]
    put(yard, f"{PREFIX}.bin", struct.pack(f"<{len(tokens)}H", *tokens))
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, _DOCUMENTS, _DOCUMENTS + 1)
    index += struct.pack(f"<{_DOCUMENTS}i", *[_TOKENS] * _DOCUMENTS)
    index += struct.pack(f"<{_DOCUMENTS}q", *(2 * _TOKENS * each for each in range(_DOCUMENTS)))
    index += struct.pack(f"<{_DOCUMENTS + 1}q", *range(_DOCUMENTS + 1))
    put(yard, f"{PREFIX}.idx", index)


def ended(job: Training) -> bool:
    conditions = job.object().get("status", {}).get("conditions", [])
    return any(each["type"] == "Succeeded" and each["status"] == "True" for each in conditions)


@pytest.fixture(scope="module")
def job(yard: Yard) -> Iterator[Training]:
    started = install(yard)
    yield started
    yard.end(started)


def test_missing_data_is_reported_in_a_sentence_before_the_trainer_starts(job: Training) -> None:
    missing = f"data: /data/{PREFIX}.idx: No such file or directory; each .bin needs its .idx"
    job.wait(lambda: missing in job.log(job.pod("master"), "data"), missing, SECONDS)
    assert job.runs() == []


def test_with_the_data_it_trains(job: Training, yard: Yard) -> None:
    put_data(yard)
    job.wait_past(2 * INTERVAL, 2 * SECONDS)  # the kubelet may wait minutes before it tries again
    assert job.begun() == 1
    assert job.checkpoints()[:2] == [INTERVAL, 2 * INTERVAL]
    assert "data: 1 named files are there" in job.log(job.pod("worker"), "data")


def test_taken_away_it_saves_and_installed_again_it_goes_on(job: Training, yard: Yard) -> None:
    """`helm uninstall` is a SIGTERM, at which Megatron saves, and so does the small GPT."""
    printed = job.iteration()
    yard.cluster("delete", "pytorchjob", NAME, "-n", yard.namespace, "--wait=true")
    mine = ("pods", "-n", yard.namespace, "-l", f"training.kubeflow.org/job-name={NAME}")
    job.wait(lambda: not yard.cluster.get(*mine)["items"], "all pods gone", SECONDS)
    saved = job.checkpoints()[-1]
    assert saved >= printed, "it was saved when the signal came, and not at the last interval"
    again = install(yard)
    again.wait(lambda: ended(again), f"the end at iteration {ITERATIONS}", 2 * SECONDS)
    assert again.begun() == saved + 1
    assert again.iteration() == ITERATIONS
    assert again.checkpoints()[-1] == ITERATIONS
