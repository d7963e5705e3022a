# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the chart megatron-training renders, run for real: the small GPT instead of the large one.

The first install finds no data and says so; with the data there it trains to its end, and the next
install goes on where that one ended. On a cluster made here the image holds a shell, and Python
comes from this machine: that is all that is added to what the chart wrote.
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

from chart_renders import MEGATRON, only, pods, rendered, sets
from cluster.training import READER, Training
from cluster.training_job import SAVE, Trainer
from cluster.yard import Yard

pytestmark = pytest.mark.timeout(600)
NAME = "chart"
PREFIX = "corpus/tiny_text_document"
INTERVAL = 20
SHORT, LONG = 60, 100
_DOCUMENTS, _TOKENS = 64, 80


def words(yard: Yard, iterations: int) -> list[str]:
    trainer = yard.trainer
    found = sets(
        "model.size=custom", "model.numLayers=1", "model.hiddenSize=32",
        "model.numAttentionHeads=4", "model.seqLength=64",
        "training.script=-m mwatch_gpt", "training.nodes=2", "training.gpusPerNode=1",
        "training.microBatchSize=2", "training.globalBatchSize=4", "training.logInterval=1",
        f"training.iterations={iterations}", "optimizer.decayIterations=1000",
        "optimizer.warmupFraction=null", "training.evalInterval=1000", "training.evalIterations=1",
        'training.extraArguments=["--distributed-backend","gloo"]',
        "parallelism.distributedOptimizer=false", "parallelism.overlap=false",
        f'dataset.prefixes=["/data/{PREFIX}"]', f"checkpoints.saveInterval={INTERVAL}",
        "checkpoints.async=false", "storage.data.claim=checkpoints", "storage.sharedMemory=64Mi",
        "cluster.gpuResource=", "resources.gracePeriodSeconds=20", "tensorboard.enabled=false",
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


def install(yard: Yard, iterations: int) -> Training:
    objects = rendered(MEGATRON, *words(yard, iterations), name=NAME, namespace=yard.namespace)
    job = only(objects, "PyTorchJob")
    on_this_machine(job, yard.trainer)
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    yard.cluster("apply", "-f", "-", given=given)
    return Training(yard.cluster, yard.namespace, "pytorchjob", NAME)


def put(yard: Yard, path: str, data: bytes) -> None:
    script = f"mkdir -p {SAVE}/corpus && busybox base64 -d > {SAVE}/{path}"
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
def first(yard: Yard) -> Iterator[Training]:
    started = install(yard, SHORT)
    yield started
    yard.end(started)


def test_missing_data_is_said_in_a_sentence_before_the_trainer_starts(first: Training) -> None:
    missing = f"data: /data/{PREFIX}.idx: No such file or directory; each .bin needs its .idx"
    first.wait(lambda: missing in first.log(first.pod("master"), "data"), missing, 180)
    assert first.runs() == []


def test_with_the_data_it_trains_to_its_end(first: Training, yard: Yard) -> None:
    put_data(yard)
    first.wait(lambda: ended(first), f"the end at iteration {SHORT}", 400)
    assert first.iteration() == SHORT
    assert first.checkpoints() == [20, 40, 60]
    assert "data: 1 named files are there" in first.log(first.pod("worker"), "data")


def test_the_next_install_goes_on_where_the_last_one_ended(first: Training, yard: Yard) -> None:
    yard.cluster("delete", "pytorchjob", NAME, "-n", yard.namespace, "--wait=true")
    first.wait(lambda: not first.pods(), "all pods gone", 120)
    again = install(yard, LONG)
    again.wait(lambda: ended(again), f"the end at iteration {LONG}", 300)
    assert again.begun() == SHORT + 1
    assert again.iteration() == LONG
