# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The Service that lets pods of a PyTorchJob meet while the image of a sidecar cannot be pulled.

That the operator takes it as its own: `tests/cluster/test_inject_fails_open.py`.
"""

from __future__ import annotations

import json
from textwrap import indent
from typing import Any

import pytest

from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.whole import inject_text, uninject_text
from support.repository.manifest_files import (
    NATIVE,
    PLAIN,
    objects_in,
    text_of,
    unlisted_objects_in,
)

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
    service, job_object = objects_in(inject_text(text_of(FILE), FILE, PLAIN).text)[-2:]
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


YAML_JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: gpt}  # the long run
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          containers: [{name: pytorch, image: i, command: [torchrun, train.py]}]
"""
YAML_LIST = """\
# all of it
apiVersion: v1
kind: List
items:
  # the place
  - apiVersion: v1
    kind: Namespace
    metadata: {name: team}
  # the run
""" + indent(YAML_JOB, "    ").replace("    ", "  - ", 1)
OTHER_KIND = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: before}\n"
ONE, OTHER = job(Worker=2), job(Worker=2)
OTHER["metadata"]["name"] = "other"
LISTED = {"apiVersion": "v1", "kind": "List", "items": [ONE]}
FORMS = {
    "example": text_of(FILE).rstrip("\n"),
    "json": json.dumps(ONE, indent=2),
    "list": json.dumps(LISTED, indent=2),
    "two jobs": json.dumps({**LISTED, "items": [ONE, OTHER]}),
    "yaml": YAML_JOB.rstrip("\n"),
    "comments on top": f"# license\n\n# what it is\n{YAML_JOB}",
    "separator": f"---\n# what it is\n{YAML_JOB}",
    "directive": f"%YAML 1.2\n---\n{YAML_JOB}",
    "behind another": f"{OTHER_KIND}---\n{YAML_JOB}",
    "between others": f"{OTHER_KIND}# end\n---\n# run\n{YAML_JOB}---\n{OTHER_KIND}",
    "on the line of the separator": f"{OTHER_KIND}--- {json.dumps(ONE)}",
    "two documents": f"{YAML_JOB}# end\n---\n{YAML_JOB.replace('gpt', 'other')}",
    "yaml list": YAML_LIST,
}


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("form", FORMS)
def test_the_way_back_and_again(form: str, end: str) -> None:
    text = FORMS[form] + end
    once = inject_text(text, "f", PLAIN).text
    assert once.count("publishNotReadyAddresses") == (2 if form.startswith("two") else 1)
    assert inject_text(once, "f", PLAIN).text == once
    assert uninject_text(once, "f").text == text
    assert "publishNotReadyAddresses" not in inject_text(once, "f", NATIVE).text


@pytest.mark.parametrize("form", FORMS)
def test_the_service_is_created_before_the_operator_makes_its_own(form: str) -> None:
    """And after all that stood before the job, such as its namespace."""
    found = unlisted_objects_in(inject_text(FORMS[form], "f", PLAIN).text)
    titles = [f"{each['kind']}/{each['metadata']['name']}" for each in found]
    jobs = [each for each in titles if each.startswith("PyTorchJob/")]
    assert jobs
    for each in jobs:
        name = each.partition("/")[2]
        assert titles[titles.index(each) - 1] == f"Service/{name}-worker-0"


def test_the_other_job_keeps_its_service() -> None:
    once = inject_text(FORMS["two jobs"], "f", PLAIN).text
    left = json.loads(uninject_text(once, "f", ("gpt",)).text)["items"]
    assert [each["metadata"]["name"] for each in left] == ["gpt", "other-worker-0", "other"]


def test_a_service_of_the_user_stays() -> None:
    own = "apiVersion: v1\nkind: Service\nmetadata: {name: mine, annotations: {a: b}}\n"
    text = f"{own}---\n{text_of(FILE)}"
    assert uninject_text(inject_text(text, "f", PLAIN).text, "f").text == text
