# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The Service that lets pods of a PyTorchJob meet while the image of a sidecar cannot be pulled.

That the operator takes it as its own: `tests/cluster/test_inject_fails_open.py`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text, uninject_text
from support.repository.manifest_files import NATIVE, PLAIN, objects_in, text_of

FILE = "hyperpod.yaml"
OF_POD = {
    "training.kubeflow.org/operator-name": "pytorchjob-controller",
    "training.kubeflow.org/job-name": "megatron",
    "training.kubeflow.org/replica-type": "worker",
    "training.kubeflow.org/replica-index": "0",
}


def job(**replicas: int) -> dict[str, Any]:
    container = {"name": "pytorch", "image": "i", "command": ["torchrun", "train.py"]}
    specs = {
        name: {"replicas": count, "template": {"spec": {"containers": [dict(container)]}}}
        for name, count in replicas.items()
    }
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "gpt", "namespace": "team"},
        "spec": {"pytorchReplicaSpecs": specs},
    }


def services(content: dict[str, Any], wish: InjectRequest = PLAIN) -> list[dict[str, Any]]:
    text = inject_text(json.dumps(content), "job.json", wish).text
    found = json.loads(text)
    return [each for each in found.get("items", [found]) if each["kind"] == "Service"]


def test_the_first_pod_gets_a_service_that_has_it_before_it_is_ready() -> None:
    job_object, service = objects_in(inject_text(text_of(FILE), FILE, PLAIN).text)[-2:]
    assert job_object["kind"] == "PyTorchJob" and service["kind"] == "Service"
    assert service["metadata"]["name"] == "megatron-worker-0"
    assert OF_POD.items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"] == OF_POD
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True


def test_a_master_is_the_first_pod() -> None:
    (service,) = services(job(Worker=3, Master=1))
    assert service["metadata"]["name"] == "gpt-master-0"
    assert service["metadata"]["namespace"] == "team"
    assert service["spec"]["selector"]["training.kubeflow.org/replica-type"] == "master"
    assert service["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 23456}]


def test_its_ports_are_those_of_the_container() -> None:
    content = job(Worker=2)
    pod = content["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    pod["containers"][0]["ports"] = [{"name": "meet", "containerPort": 29500}, {"name": "odd"}]
    (service,) = services(content)
    assert service["spec"]["ports"] == [{"name": "meet", "port": 29500}]


def test_there_is_none_where_none_is_needed_or_the_name_is_not_known() -> None:
    assert services(job(Master=1)) == []
    assert services(job(Worker=2), NATIVE) == [], "a native sidecar holds the pod back anyway"
    unnamed = job(Worker=2)
    unnamed["metadata"] = {"generateName": "gpt-"}
    assert services(unnamed) == []


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("form", ["yaml", "json", "list", "two jobs"])
def test_the_way_back_and_again(form: str, end: str) -> None:
    one, other = job(Worker=2), job(Worker=2)
    other["metadata"]["name"] = "other"
    listed = {"apiVersion": "v1", "kind": "List", "items": [one]}
    text = {
        "yaml": text_of(FILE).rstrip("\n"),
        "json": json.dumps(one, indent=2),
        "list": json.dumps(listed, indent=2),
        "two jobs": json.dumps({**listed, "items": [one, other]}),
    }[form] + end
    once = inject_text(text, "f", PLAIN).text
    assert once.count("publishNotReadyAddresses") == (2 if form == "two jobs" else 1)
    assert inject_text(once, "f", PLAIN).text == once
    assert uninject_text(once, "f").text == text
    assert "publishNotReadyAddresses" not in inject_text(once, "f", NATIVE).text


def test_the_other_job_keeps_its_service() -> None:
    one, other = job(Worker=2), job(Worker=2)
    other["metadata"]["name"] = "other"
    listed = {"apiVersion": "v1", "kind": "List", "items": [one, other]}
    once = inject_text(json.dumps(listed), "f", PLAIN).text
    left = json.loads(uninject_text(once, "f", ("gpt",)).text)["items"]
    assert [each["metadata"]["name"] for each in left] == ["gpt", "other", "other-worker-0"]


def test_a_service_of_the_user_stays() -> None:
    own = "apiVersion: v1\nkind: Service\nmetadata: {name: mine, annotations: {a: b}}\n"
    text = f"{own}---\n{text_of(FILE)}"
    assert uninject_text(inject_text(text, "f", PLAIN).text, "f").text == text
