# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A job by its name, whole, as a person names it; and what else is there when there is none.

What the CRD of a job keeps of an init container, by its schema: nothing is written to ask.

Asks the API server what it would keep of a native sidecar, by a dry run: nothing is made.

A CRD that does not know `restartPolicy` of an init container drops it without a word (the
training operator 1.7's does), and the sidecar becomes an init container that never ends.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.kube.access import ONCE, Access, CallLimits
from mwatch.kube.answer import CallOutcome
from mwatch.kube.errors import KubeError, NoPermission
from mwatch.kube.jobs import KINDS, complete
from mwatch.kube.listing import list_all
from mwatch.kube.resources import (
    CRDS,
    JOB_SETS,
    JOBS,
    OF_KIND,
    PYTORCH_JOBS,
    STATEFUL_SETS,
    ApiResource,
)
from mwatch.model.checks.running import KeptFields
from mwatch.model.kube.fields import items, part, text
from mwatch.model.kube.job import JobKind, KubeJob, job_of

_MAX_NAMES = 500
_NEAR = 3


class FoundJob(NamedTuple):
    job: KubeJob
    body: Mapping[str, Any]
    """The object, as the API server has it."""


def find_whole(
    access: Access, namespace: str, name: str, kind: JobKind | None = None
) -> FoundJob | None:
    """Of the first kind that has one. NoPermission where none was found, and there are kinds that
    we may not read."""
    problem: NoPermission | None = None
    for each in KINDS if kind is None else (kind,):
        resource = OF_KIND[each]
        try:
            answer = access.get(resource, namespace, name)
        except NoPermission as error:
            problem = problem or error
            continue
        if not answer.is_ok:
            continue
        body = {"apiVersion": resource.api_version, "kind": resource.kind, **answer.body}
        job = job_of(body)
        if job is not None:
            return FoundJob(complete(access, job), body)
    if problem is not None:
        raise problem
    return None


def job_names(access: Access, namespace: str | None) -> list[str]:
    """`NAME` of every job that there is, as far as we may see: for a hint, never for an action."""
    names: list[str] = []
    for kind in KINDS:
        try:
            listing = list_all(access, OF_KIND[kind], namespace)
        except KubeError:
            continue
        for body in listing.objects if listing is not None else ():
            names.append(str((body.get("metadata") or {}).get("name", "")))
    return list(dict.fromkeys(names))[:_MAX_NAMES]


def parse_job_name(text: str) -> tuple[JobKind | None, str]:
    """`pytorchjob/gpt` and `PyTorchJob/gpt` as kubectl takes them; InputError for another kind."""
    kind, slash, name = text.rpartition("/")
    if not slash:
        return None, name
    by_name = {each.value.lower(): each for each in JobKind}
    singular = kind.lower().partition(".")[0].removesuffix("s")
    if singular in by_name:
        return by_name[singular], name
    kinds = ", ".join(each.value for each in JobKind)
    raise InputError(f"{text}: mwatch knows no {kind}; it knows {kinds}")


def no_such_job(access: Access, namespace: str, name: str) -> InputError:
    known = job_names(access, namespace)
    near = difflib.get_close_matches(name, known, _NEAR, 0.5)
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif known:
        hint = f"there are: {', '.join(sorted(known)[:_NEAR])}; run mwatch status -n {namespace}"
    else:
        hint = "the namespace has no jobs; give another with -n, or run mwatch status -A"
    return InputError(f"no job is called {name} in namespace {namespace}; {hint}")


def kept_fields(access: Access, kind: JobKind) -> KeptFields | None:
    """By the schema, whose pod templates may lie anywhere."""
    resource = OF_KIND[kind]
    if kind in (JobKind.JOB, JobKind.STATEFUL_SET):
        return None
    answer = access.get(CRDS, None, f"{resource.plural}.{resource.group}", limits=ONCE)
    if not answer.is_ok:
        return None
    found = [
        fields
        for each in items(answer.body, "spec", "versions")
        if text(each, "name") == resource.version
        for fields in _init_fields(part(each, "schema", "openAPIV3Schema"))
    ]
    if not found:
        return None
    return KeptFields(
        all("restartPolicy" in each for each in found),
        all("restartPolicyRules" in each for each in found),
    )


def _init_fields(schema: Any) -> list[Mapping[str, Any]]:
    """The fields of each `initContainers` in it."""
    if isinstance(schema, list):
        return [one for each in schema for one in _init_fields(each)]
    if not isinstance(schema, dict):
        return []
    found = part(schema, "initContainers", "items", "properties")
    here = [found] if isinstance(found, dict) else []
    deeper = (each for key, each in schema.items() if key != "initContainers")
    return here + [one for each in deeper for one in _init_fields(each)]


_LIMITS = CallLimits(call_seconds=5.0, tries=2)
_NAME = "mwatch-dry-run"
_RUNTIMES = ApiResource("trainer.kubeflow.org", "v1alpha1", "trainingruntimes", "TrainingRuntime")
_IMAGE = "mwatch"


def keeps_native(access: Access, namespace: str, kind: str) -> bool | None:
    """None where the API server cannot say: it has no such kind, or an object of this name.

    NoPermission, Rejected and Unavailable as they come: who asks decides without an answer.
    """
    found = _PROBES.get(kind)
    if found is None:
        return None
    resource, spec, path = found
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": _NAME, "namespace": namespace},
        "spec": spec,
    }
    answer = access.call(
        "POST", resource.path(namespace), query={"dryRun": "All"}, body=body, limits=_LIMITS
    )
    if answer.outcome is not CallOutcome.OK:
        return None
    pod: Any = answer.body
    for step in path:
        pod = pod[step]
    return any(each.get("restartPolicy") == "Always" for each in pod.get("initContainers", ()))


def _pod(trainer: str, policy: str) -> dict[str, Any]:
    container = {"image": _IMAGE, "command": ["true"]}
    sidecar = {"name": "mwatch", **container, "restartPolicy": "Always"}
    return {
        "metadata": {"labels": {"app": _NAME}},
        "spec": {
            "restartPolicy": policy,
            "containers": [{"name": trainer, **container}],
            "initContainers": [sidecar],
        },
    }


def _jobset() -> dict[str, Any]:
    job = {"name": "node", "template": {"spec": {"template": _pod("node", "Never")}}}
    return {"replicatedJobs": [job]}


_OF_JOBSET: Sequence[str | int] = ("replicatedJobs", 0, "template", "spec", "template", "spec")
_WORKER = {"replicas": 1, "restartPolicy": "OnFailure", "template": _pod("pytorch", "OnFailure")}
_PROBES: Mapping[str, tuple[ApiResource, dict[str, Any], Sequence[str | int]]] = {
    "PyTorchJob": (
        PYTORCH_JOBS,
        {"pytorchReplicaSpecs": {"Worker": _WORKER}},
        ("spec", "pytorchReplicaSpecs", "Worker", "template", "spec"),
    ),
    "JobSet": (JOB_SETS, _jobset(), ("spec", *_OF_JOBSET)),
    "TrainJob": (
        _RUNTIMES,
        {"template": {"spec": _jobset()}},
        ("spec", "template", "spec", *_OF_JOBSET),
    ),
    "Job": (JOBS, {"template": _pod("main", "Never")}, ("spec", "template", "spec")),
    "StatefulSet": (
        STATEFUL_SETS,
        {
            "serviceName": _NAME,
            "selector": {"matchLabels": {"app": _NAME}},
            "template": _pod("main", "Always"),
        },
        ("spec", "template", "spec"),
    ),
}
