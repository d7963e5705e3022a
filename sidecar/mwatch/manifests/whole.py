# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Inject, uninject and checks for a whole file: select the jobs in it and change them.

A Job or StatefulSet is often not a training job (data preparation, a database): among several jobs
it is selected only if it looks like training, or by name. A TrainJob cannot add a container, so its
runtime must contain the sidecar. A runtime in the same file is changed; otherwise a new runtime is
added after the job, because a runtime of the cluster is shared with other jobs. A PyTorchJob with
several pods may get a Service (`services.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.manifests import image_reference, kinds, parts
from mwatch.manifests.containers import mount_above
from mwatch.manifests.edit import Editor
from mwatch.manifests.facts import NODE, STEP_LABEL, node_template, overrides, workload_of
from mwatch.manifests.inject import (
    SAVE_FLAGS,
    Content,
    JobObject,
    Pod,
    add_to_pod,
    inject,
    mark,
    mode_of,
    refusal_at,
    refuse_taken_names,
    remove,
    run_of,
    trains,
    unrendered,
)
from mwatch.manifests.parts import InjectRequest, PodRun
from mwatch.manifests.services import service_of, with_service, without_services
from mwatch.manifests.stream import Document, new_document, read
from mwatch.model.checks import OtherObject, Path, Replica, Tree, Workload
from mwatch.model.kube.fields import items, mapping, part

_API = "trainer.kubeflow.org/v1alpha1"
_REF = ("spec", "runtimeRef")
_MAX_RESTARTS = 3


def inject_trainjob(
    job: JobObject, runtimes: Sequence[JobObject], request: InjectRequest
) -> tuple[list[str], Content | None]:
    """Return notes for the user, and a new runtime, if needed, to add after the job. Raises
    InputError with the line."""
    remove(job)
    for path, problem in unrendered(job.content):
        raise job.refuse(path, problem)
    mode, run = mode_of(job, request), run_of(job, kinds.TRAINJOB)
    if run.name is None:
        raise job.refuse(("metadata",), "a TrainJob needs a metadata.name: its runtime is named so")
    run = PodRun(run.name, kinds.RUN_LABELS[kinds.RUNTIMES[0]])
    editor = Editor(job.content)
    workload = workload_of(job.content, job.others)
    assert workload is not None and workload.replicas, "a TrainJob always has one template"
    replica = workload.replicas[0]
    wanted = part(job.content, *_REF, "name")
    own = next((each for each in runtimes if _name(each.content) == wanted), None)
    trainer = mapping(job.content, "spec", "trainer")
    if own is None and not trainer.get("image"):
        problem = f"the runtime {wanted} is not in this file, and ours has no training image; "
        raise job.refuse(("spec",), problem + "give the job a spec.trainer.image")
    runtime = _new_runtime(job, run, mode) if own is None else None
    target = own.content if own is not None else runtime or {}
    _equip(JobObject(target, (own or job).refuse), replica, request, run, mode, trainer)
    if trainer.get("command"):
        template = node_template(target)
        grace = part(template and template.spec, "terminationGracePeriodSeconds")
        seconds = grace if isinstance(grace, int) else parts.GRACE_SECONDS
        launch = parts.launch(request, mode, seconds)
        editor.prefix(("spec", "trainer", "command"), launch)
    if runtime is not None:
        editor.mapping(_REF)
        editor.put((*_REF, "apiGroup"), _API.partition("/")[0])
        editor.put((*_REF, "kind"), runtime["kind"])
        editor.put((*_REF, "name"), _name(runtime))
    notes = _show_checkpoints(editor, job, replica, request)
    mark(editor, job.content, request, mode)
    return notes, runtime


def _equip(
    target: JobObject,
    replica: Replica,
    request: InjectRequest,
    run: PodRun,
    mode: str,
    trainer: Tree,
) -> None:
    """Add mwatch to the runtime's template; also the prefix if the runtime has the command."""
    remove(target)
    template = node_template(target.content)
    containers = [] if template is None else items(template.spec, "containers")
    container = next((each for each in containers if each.get("name") == NODE), None)
    if template is None or container is None:
        raise target.refuse(("spec",), "the runtime has no container named 'node'; name it so")
    editor = Editor(target.content)
    has_own = bool(trainer.get("command"))
    if not has_own and not container.get("command"):
        problem = "neither the job nor its runtime has a command to wrap; give the job a "
        raise target.refuse(("spec",), problem + "spec.trainer.command: [torchrun, ...]")
    pod = Pod(template, replica, container, target.refuse)
    refuse_taken_names(pod)
    plain = request._replace(checkpoints=None)
    add_to_pod(editor, pod, plain, run, mode, with_prefix=not has_own)
    mark(editor, target.content, request, mode)


def _new_runtime(job: JobObject, run: PodRun, mode: str) -> Content:
    """A runtime of the kind that the job refers to."""
    namespace = part(job.content, "metadata", "namespace")
    kind = str(part(job.content, *_REF, "kind") or kinds.RUNTIMES[1])
    is_inside = kind == kinds.RUNTIMES[0]
    parts_of_name = [parts.SIDECAR, None if is_inside else namespace, run.name]
    gang = {"failurePolicy": {"maxRestarts": _MAX_RESTARTS, "restartStrategy": "BlockingRecreate"}}
    container = {"name": NODE, "image": str(part(job.content, "spec", "trainer", "image"))}
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    node = {
        "name": NODE,
        "template": {
            "metadata": {"labels": {STEP_LABEL: "trainer"}},
            "spec": {"backoffLimit": 0, "template": pod},
        },
    }
    inside = {"namespace": str(namespace)} if is_inside and namespace else {}
    return {
        "apiVersion": str(job.content.get("apiVersion", _API)),
        "kind": kind,
        "metadata": {
            "name": "-".join(str(each) for each in parts_of_name if each),
            **inside,
            "labels": {"trainer.kubeflow.org/framework": "torch"},
        },
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
            # In mode act, one pod that exits for a restart must restart the whole gang.
            "template": {"spec": {**(gang if mode == "act" else {}), "replicatedJobs": [node]}},
        },
    }


def _show_checkpoints(
    editor: Editor, job: JobObject, replica: Replica, request: InjectRequest
) -> list[str]:
    """Mount the checkpoints for the sidecar in the override that mounts them for the trainer."""
    save = request.checkpoints or replica.text(*SAVE_FLAGS)
    for steps, override in overrides(job.content):
        for each in items(override, "containers"):
            mount = mount_above(each, save) if save and each.get("name") == NODE else None
            if mount is not None:
                key = "initContainers" if request.sidecar == "native" else "containers"
                shown = {
                    "name": parts.SIDECAR,
                    "env": [{"name": "MWATCH_SAVE", "value": save}],
                    "volumeMounts": [parts.checkpoint_mount(mount)],
                }
                editor.add((*steps, key), shown)
                return []
    return ["the sidecar cannot see the checkpoints: no override of the job mounts their volume"]


def _name(content: Any) -> str:
    return str(part(content, "metadata", "name"))


_ALWAYS = (kinds.PYTORCHJOB, kinds.JOBSET, kinds.TRAINJOB)


class ManifestResult(NamedTuple):
    text: str
    objects: tuple[Content, ...]
    jobs: tuple[str, ...]
    """The changed jobs, such as `PyTorchJob/gpt`."""
    notes: tuple[str, ...]


class Object(NamedTuple):
    document: Document
    path: Path
    """Path inside the document; empty except for items of a List."""
    content: Content

    @property
    def kind(self) -> str:
        return str(self.content.get("kind"))

    @property
    def name(self) -> str:
        metadata = mapping(self.content, "metadata")
        return str(metadata.get("name") or metadata.get("generateName") or "")

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}"


def inject_text(text: str, file: str, request: InjectRequest) -> ManifestResult:
    """Add mwatch to the jobs of a file. Raises InputError with file and line."""
    image_reference.parse(request.image)
    documents = without_services(read(text, file), request.only)
    objects = list(_objects(documents))
    chosen, notes = _chosen(objects, file, request.only)
    runtimes = [each for each in objects if kinds.kind_of(each.content) in kinds.RUNTIMES]
    for each in chosen:
        job = _job(each, objects)
        if each.kind == kinds.TRAINJOB:
            others = [_job(one, objects) for one in runtimes]
            found, runtime = inject_trainjob(job, others, request)
            if runtime is not None:  # replaces the one of an earlier inject
                name = _name(runtime)
                documents = [one for one in documents if _runtime_name(one) != name]
                documents.append(new_document(runtime, file))
            for one in runtimes:
                one.document.is_changed |= one.name == part(each.content, *_REF, "name")
        else:
            found = inject(job, request)
        notes += [f"{each.title}: {note}" for note in found]
        each.document.is_changed = True
    for each in reversed(chosen):  # inserting into a List moves the later items
        service = service_of(each.content, request)
        if service is not None:
            documents = with_service(documents, each.document, each.path, service, file)
    return _result(documents, [each.title for each in chosen], notes)


def uninject_text(text: str, file: str, only: Sequence[str] = ()) -> ManifestResult:
    """Undo inject; a file without mwatch yields a note, not an error."""
    documents = without_services(read(text, file), only)
    objects = list(_objects(documents))
    changed: list[str] = []
    for each in objects:
        if only and each.name not in only:
            continue
        reference = part(each.content, *_REF, "name")
        if kinds.kind_of(each.content) and remove(_job(each, objects)):
            each.document.is_changed = True
            changed.append(each.title)
        if part(each.content, *_REF, "name") != reference:
            documents = [one for one in documents if _runtime_name(one) != reference]
    notes = [] if changed else ["there is nothing of mwatch in it"]
    return _result(documents, changed, notes)


def workloads(text: str, file: str, container: str | None = None) -> list[Workload]:
    """The jobs of a file, for the checks. Raises InputError if it cannot be parsed."""
    documents = read(text, file)
    objects = list(_objects(documents))
    found: list[Workload] = []
    for each in objects:
        lines = {
            path[len(each.path) :]: line
            for path, line in each.document.lines().items()
            if path[: len(each.path)] == each.path
        }
        others = _others(each, objects)
        seen = workload_of(each.content, others, lines, container)
        if seen is not None and (seen.kind in _ALWAYS or _trains(each)):
            for path, problem in unrendered(each.content):
                raise each.document.refusal((*each.path, *path), problem)
            found.append(seen)
    return found


def _objects(documents: Sequence[Document]) -> Iterator[Object]:
    for document in documents:
        content = document.content
        if not isinstance(content, Mapping):
            continue
        items = content.get("items")
        if content.get("kind") == "List" and isinstance(items, Sequence):
            for index, each in enumerate(items):
                if isinstance(each, Mapping):
                    yield Object(document, ("items", index), each)  # type: ignore[arg-type]
        else:
            yield Object(document, (), content)  # type: ignore[arg-type]


def _chosen(
    objects: Sequence[Object], file: str, only: Sequence[str]
) -> tuple[list[Object], list[str]]:
    jobs = [each for each in objects if kinds.kind_of(each.content) in kinds.JOBS]
    if only:
        missing = [name for name in only if name not in {each.name for each in jobs}]
        if missing:
            known = ", ".join(each.name for each in jobs) or "none"
            raise InputError(f"{file}: no job is called {missing[0]} (there are: {known})")
        return [each for each in jobs if each.name in only], []
    if not jobs:
        raise _no_job(objects, file)
    sure = [each for each in jobs if each.kind in _ALWAYS or _trains(each)]
    if not sure and len(jobs) == 1:
        sure = jobs
    if not sure:
        names = ", ".join(each.title for each in jobs)
        raise InputError(f"{file}: none of {names} looks like training; name one by --only")
    left = [each for each in jobs if each not in sure]
    note = "unchanged: it does not look like training (name it with --only if it is)"
    return sure, [f"{each.title}: {note}" for each in left]


def _no_job(objects: Sequence[Object], file: str) -> InputError:
    known = ", ".join(kinds.JOBS)
    if not objects:
        return InputError(f"{file}:1: the file holds no object; give the manifest of a {known}")
    first = objects[0]
    line = first.document.lines().get((*first.path, "kind"), first.document.first_line)
    found = ", ".join(dict.fromkeys(each.kind for each in objects))
    return InputError(f"{file}:{line}: has no job that mwatch knows (found: {found}); use {known}")


def _trains(each: Object) -> bool:
    return any(trains(template) for template in kinds.templates(each.content))


def _job(each: Object, objects: Sequence[Object]) -> JobObject:
    refuse = refusal_at(each.document.refusal, each.path)
    return JobObject(each.content, refuse, _others(each, objects))


def _others(each: Object, objects: Sequence[Object]) -> tuple[OtherObject, ...]:
    return tuple(
        OtherObject(one.kind, one.name, one.content, one.document.first_line)
        for one in objects
        if one is not each
    )


def _runtime_name(document: Document) -> str | None:
    if kinds.kind_of(document.content) not in kinds.RUNTIMES:
        return None
    return _name(document.content)


def _result(
    documents: Sequence[Document], jobs: Sequence[str], notes: Sequence[str]
) -> ManifestResult:
    text = ""
    for each in documents:
        text += "\n" if text and not text.endswith("\n") else ""
        text += each.text()
    objects = tuple(each.content for each in documents if isinstance(each.content, Mapping))
    return ManifestResult(text, objects, tuple(jobs), tuple(notes))  # type: ignore[arg-type]
