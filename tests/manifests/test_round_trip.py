# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What stays as it was: comments, other objects, what people changed; and the way back."""

from __future__ import annotations

import json

import pytest

from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text, uninject_text
from support.repository.manifest_files import (
    FILES,
    NATIVE,
    PLAIN,
    injected,
    named,
    objects_in,
    pods_of,
    text_of,
)


@pytest.mark.parametrize("name", FILES)
def test_every_comment_stays(name: str) -> None:
    after = injected(name).text
    comments = [line.partition("#")[2] for line in text_of(name).splitlines() if "#" in line]
    assert [each for each in comments if each not in after] == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("wish", [NATIVE, PLAIN], ids=["native", "container"])
def test_to_inject_twice_is_to_inject_once_and_uninject_gives_the_bytes_back(
    name: str, wish: InjectRequest
) -> None:
    once = injected(name, wish).text
    assert inject_text(once, name, wish).text == once
    assert uninject_text(once, name).text == text_of(name)


def test_to_inject_again_takes_the_new_wishes() -> None:
    first = injected("hyperpod.yaml").text
    second = inject_text(first, "f", PLAIN._replace(image="mwatch:new")).text
    assert second == injected("hyperpod.yaml", PLAIN._replace(image="mwatch:new")).text
    assert "mwatch:test" not in second


def test_what_a_person_changed_in_between_stays() -> None:
    text = injected("hyperpod.yaml").text.replace("replicas: 2", "replicas: 4")
    text = text.replace("value: efa", "value: tcp")
    back = uninject_text(text, "f").text
    wanted = text_of("hyperpod.yaml").replace("replicas: 2", "replicas: 4")
    assert back == wanted.replace("value: efa", "value: tcp")


def test_uninject_of_what_was_never_injected_changes_nothing_and_says_so() -> None:
    result = uninject_text(text_of("aks.yaml"), "f")
    assert result.text == text_of("aks.yaml")
    assert result.notes == ("there is nothing of mwatch in it",)


def test_json_stays_json_and_a_list_is_looked_into() -> None:
    items = objects_in(text_of("hyperpod.yaml"))
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2)
    after = json.loads(inject_text(text, "f", NATIVE).text)
    assert after["items"][0] == items[0]
    assert "mwatch.dev/injected" in after["items"][1]["metadata"]["annotations"]
    back = json.loads(uninject_text(json.dumps(after), "f").text)
    assert back["items"] == items


def test_a_document_may_begin_on_the_line_of_its_separator() -> None:
    pod = "{containers: [{name: a, image: i, command: [torchrun]}]}"
    spec = f"{{template: {{spec: {pod}}}}}"
    text = f"--- {{apiVersion: batch/v1, kind: Job, metadata: {{name: a}}, spec: {spec}}}\n"
    once = inject_text(text, "f", NATIVE).text
    assert once.startswith("--- {apiVersion: batch/v1")
    assert uninject_text(once, "f").text == text


def test_a_trainjob_names_a_runtime_that_is_written_behind_it() -> None:
    job, runtime = objects_in(injected("trainjob.yaml").text)
    assert job["spec"]["runtimeRef"] == {
        "name": runtime["metadata"]["name"],
        "apiGroup": "trainer.kubeflow.org",
        "kind": "ClusterTrainingRuntime",
    }
    assert job["spec"]["trainer"]["command"][-5:-3] == ["--", "torchrun"]
    override = job["spec"]["podTemplateOverrides"][0]["spec"]["initContainers"][0]
    assert override["name"] == "mwatch"
    assert override["volumeMounts"] == [{"name": "ckpt", "mountPath": "/ckpt", "readOnly": True}]
    assert "failurePolicy" not in runtime["spec"]["template"]["spec"]
    acting = inject_text(text_of("trainjob.yaml"), "f", NATIVE._replace(mode="act")).text
    policy = objects_in(acting)[1]["spec"]["template"]["spec"]["failurePolicy"]
    assert policy["restartStrategy"] == "BlockingRecreate"


def test_a_runtime_of_the_same_file_is_changed_and_the_job_still_names_it() -> None:
    runtime, job = objects_in(injected("trainjob-with-runtime.yaml").text)
    assert job["spec"]["runtimeRef"]["name"] == "own"
    (pod,) = pods_of(injected("trainjob-with-runtime.yaml").text, "TrainingRuntime")
    assert named(pod["containers"], "node")["command"][4:6] == ["--", "torchrun"]
    assert runtime["metadata"]["labels"]["mwatch.dev/watch"] == "true"


def test_a_python_of_the_users_choice() -> None:
    wish = NATIVE._replace(python="/opt/conda/bin/python")
    (pod,) = pods_of(inject_text(text_of("hyperpod.yaml"), "f", wish).text, "PyTorchJob")
    assert (
        "; wrap /opt/conda/bin/python /mwatch/" in named(pod["containers"], "pytorch")["command"][2]
    )


def test_a_job_that_does_not_train_is_left_alone_unless_it_is_named() -> None:
    pod = "{containers: [{name: main, image: i, command: [python, tokenize.py]}]}"
    prepare = (
        "apiVersion: batch/v1\nkind: Job\nmetadata: {name: prepare}\n"
        f"spec: {{template: {{spec: {pod}}}}}\n---\n"
    )
    text = prepare + text_of("hyperpod.yaml")
    result = inject_text(text, "f", NATIVE)
    assert result.text.startswith(prepare)
    assert result.jobs == ("PyTorchJob/megatron",)
    assert any("prepare" in each and "--only" in each for each in result.notes)
    named_one = inject_text(text, "f", NATIVE._replace(only=("prepare",)))
    assert named_one.jobs == ("Job/prepare",)
    assert named_one.text.endswith(text_of("hyperpod.yaml"))
