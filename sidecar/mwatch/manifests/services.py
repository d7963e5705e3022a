# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The Service through which pods of a PyTorchJob meet even if the sidecar container does not run.

The operator creates a Service for each pod, which contains the pod only while it is ready. While
the image of a plain sidecar cannot be pulled, no pod is ready, and the workers cannot resolve the
first one. So `inject` adds the Service of the first pod itself, with `publishNotReadyAddresses`.
The operator lists Services by labels and creates only missing ones (training-operator 1.4 to 1.9,
`GetServicesForJob` and `ReconcileServices`), so it adopts this one.

An annotation of the Service names the job and the form of the file before the change.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mwatch.manifests import kinds
from mwatch.manifests.parts import InjectRequest
from mwatch.manifests.plain_data import plain, tree
from mwatch.manifests.stream import Document, new_document
from mwatch.model.checks import Path, Tree
from mwatch.model.kube.fields import items, mapping, part
from mwatch.model.kube.pod import JOB_NAME, REPLICA_INDEX, REPLICA_TYPE

ADDED = "mwatch.dev/added-for"
_OPERATOR = {"training.kubeflow.org/operator-name": "pytorchjob-controller"}
_PORT = {"name": "pytorchjob-port", "port": 23456}
"""The port that the operator adds to a container without ports."""
_FIRST = ("Master", "Worker")
_LIST, _TOOK_HEAD = "list", "took head"
_SEPARATOR = "---\n"


def service_of(job: Tree, request: InjectRequest) -> dict[str, Any] | None:
    """The Service; None: the pods of this job need none, or its name is not known yet."""
    name = part(job, "metadata", "name")
    templates = {each.name: each for each in kinds.templates(job)}
    first = next((templates[each] for each in _FIRST if each in templates), None)
    is_alone = [each.pods for each in templates.values()] == [1]
    if kinds.kind_of(job) != kinds.PYTORCHJOB or request.sidecar != "container" or is_alone:
        return None
    if not name or first is None:
        return None
    kind = first.name.lower()
    of_job = _OPERATOR | {JOB_NAME: str(name)}
    of_pod = of_job | {REPLICA_TYPE: kind, REPLICA_INDEX: "0"}
    older = {"group-name": "kubeflow.org", "job-name": str(name)}  # operators before 1.7
    namespace = part(job, "metadata", "namespace")
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": f"{name}-{kind}-0",
            **({"namespace": str(namespace)} if namespace else {}),
            "labels": of_pod | older,
            "annotations": {ADDED: str(name)},
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": of_pod,
            "ports": _ports(first.spec) or [dict(_PORT)],
        },
    }


def _ports(pod: Tree) -> list[dict[str, Any]]:
    trainer = next((each for each in items(pod, "containers") if each.get("name") == "pytorch"), {})
    found = [(each.get("name"), each.get("containerPort")) for each in items(trainer, "ports")]
    return [
        {"name": str(name), "port": int(port)}
        for name, port in found
        if name and isinstance(port, int)
    ]


def with_service(
    documents: Sequence[Document], job: Document, path: Path, service: dict[str, Any], file: str
) -> list[Document]:
    """Insert the Service before the job: once the job exists, the operator creates its own Service,
    and kubectl cannot create this one. A JSON file with one object becomes a List."""
    if not path and len(documents) == 1 and job.is_json:
        _note(service, _LIST)
        whole = {"apiVersion": "v1", "kind": "List", "items": [plain(job.content)]}
        job.content, path = tree(whole), ("items", 0)
    if path:
        job.content["items"].insert(path[-1], tree(service))
        job.is_changed = True
        return list(documents)
    place = next(index for index, each in enumerate(documents) if each is job)
    head = _SEPARATOR
    if not job.head.startswith("---"):  # the first document: comments of the file stay on top
        _note(service, _TOOK_HEAD)
        head, job.head = job.head, head
    made = replace(new_document(service, file), head=head)
    return [*documents[:place], made, *documents[place:]]


def _note(service: dict[str, Any], before: str) -> None:
    annotations = service["metadata"]["annotations"]
    annotations[ADDED] = json.dumps({"job": annotations[ADDED], "before": before})


def without_services(documents: Sequence[Document], jobs: Collection[str] = ()) -> list[Document]:
    """Remove Services that an earlier `inject` added for these jobs, by default for all."""
    left: list[Document] = []
    taken: str | None = None
    for each in documents:
        job, before = _added_for(each.content)
        if job is None or (jobs and job not in jobs):
            if taken is not None:
                each.head = taken + each.head.removeprefix(_SEPARATOR)
            _take_out(each, jobs)
            left.append(each)
            taken = None
        else:
            taken = each.head if before == _TOOK_HEAD else None
    return left


def _take_out(document: Document, jobs: Collection[str]) -> None:
    """Remove Services from a List, which becomes a single object again if it was one."""
    listed = document.content.get("items") if isinstance(document.content, Mapping) else None
    if not isinstance(listed, list):
        return
    was_single = False
    for index in reversed(range(len(listed))):
        job, before = _added_for(listed[index])
        if job is not None and (not jobs or job in jobs):
            document.is_changed = True
            was_single |= before == _LIST
            del listed[index]
    if was_single and len(listed) == 1:
        document.content = listed[0]


def _added_for(content: Any) -> tuple[str | None, str]:
    text = mapping(content, "metadata", "annotations").get(ADDED)
    if text is None or content.get("kind") != "Service":
        return None, ""
    try:
        note = json.loads(str(text))
        return str(note["job"]), str(note["before"])
    except (ValueError, KeyError, TypeError):
        return str(text), ""
