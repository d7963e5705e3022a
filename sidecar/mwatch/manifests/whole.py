# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A whole file: which objects in it are jobs, and what becomes of each.

A PyTorchJob, JobSet or TrainJob trains. A Job or StatefulSet is often something else (data
preparation, a store): beside others it is taken only where it looks like training, or by name.

Adds mwatch to a TrainJob. It cannot name a new container, so its runtime must hold ours.

A runtime in the same stream is changed. Else one of our own is written behind the job, and the
job refers to it: a cluster's runtime is shared, and whoever changes it changes other jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.manifests import kinds, names, parts
from mwatch.manifests.containers import mount_above, named
from mwatch.manifests.edit import Editor
from mwatch.manifests.facts import workload_of
from mwatch.manifests.inject import (
    Content,
    JobObject,
    inject,
    mark,
    mode_of,
    refusal_at,
    remove,
    run_of,
    trains,
)
from mwatch.manifests.parts import InjectRequest, PodRun
from mwatch.manifests.pod import SAVE_FLAGS, Pod, add_to_pod, refuse_strangers
from mwatch.manifests.stream import Document, new_document, read
from mwatch.manifests.trainjob_view import NODE, STEP_LABEL, node_template, overrides, trainer_of
from mwatch.manifests.unrendered import unrendered
from mwatch.model.checks.workload import OtherObject, Path, Replica, Workload

_API = "trainer.kubeflow.org/v1alpha1"
_REF = ("spec", "runtimeRef")
_MAX_RESTARTS = 3


class Injected(NamedTuple):
    notes: list[str]
    runtime: Content | None
    """To be written behind the job; None: the job's own was changed."""


def inject_trainjob(
    job: JobObject, runtimes: Sequence[JobObject], request: InjectRequest
) -> Injected:
    """InputError, with the line."""
    remove(job)
    for path, words in unrendered(job.content):
        raise job.refuse(path, words)
    mode, run = mode_of(job, request), run_of(job, kinds.TRAINJOB)
    if run.name is None:
        raise job.refuse(("metadata",), "a TrainJob needs a metadata.name: its runtime is named so")
    run = PodRun(run.name, kinds.RUN_LABELS[kinds.RUNTIMES[0]])
    editor = Editor(job.content)
    replica = _replica(job)
    wanted = kinds.at(job.content, (*_REF, "name"))
    own = next((each for each in runtimes if _name(each.content) == wanted), None)
    trainer = trainer_of(job.content)
    if own is None and not trainer.get("image"):
        words = f"the runtime {wanted} is not in this file, and ours has no training image; "
        raise job.refuse(("spec",), words + "give the job a spec.trainer.image")
    runtime = _new_runtime(job, run, mode) if own is None else None
    target = own.content if own is not None else runtime or {}
    reported = _equip(JobObject(target, (own or job).refuse), replica, request, run, mode, trainer)
    if trainer.get("command"):
        launch = parts.launch(request, mode, _grace(target))
        editor.prefix(("spec", "trainer", "command"), launch)
    if runtime is not None:
        _refer(editor, runtime)
    reported += _show_checkpoints(editor, job, replica, request)
    mark(editor, job.content, request, mode)
    return Injected(reported, runtime)


def _replica(job: JobObject) -> Replica:
    seen = workload_of(job.content, job.others)
    assert seen is not None and seen.replicas, "a TrainJob is always seen as one template"
    return seen.replicas[0]


def _equip(
    target: JobObject,
    replica: Replica,
    request: InjectRequest,
    run: PodRun,
    mode: str,
    trainer: Any,
) -> list[str]:
    """Puts ours into the runtime's template; the prefix where the command is the runtime's."""
    remove(target)
    template = node_template(target.content)
    container = next(
        (each for each in named(template.spec.get("containers")) if each.get("name") == NODE), None
    ) if template is not None else None  # fmt: skip
    if template is None or container is None:
        raise target.refuse(("spec",), "the runtime has no container named 'node'; name it so")
    editor = Editor(target.content)
    has_own = bool(trainer.get("command"))
    if not has_own and not container.get("command"):
        words = "neither the job nor its runtime has a command to wrap; give the job a "
        raise target.refuse(("spec",), words + "spec.trainer.command: [torchrun, ...]")
    pod = Pod(template, replica, container, target.refuse)
    refuse_strangers(pod)
    plain = request._replace(checkpoints=None)
    add_to_pod(editor, pod, plain, run, mode, with_prefix=not has_own)
    mark(editor, target.content, request, mode)
    return []


def _grace(runtime: Content) -> int:
    template = node_template(runtime)
    given = None if template is None else template.spec.get("terminationGracePeriodSeconds")
    return given if isinstance(given, int) else parts.GRACE_SECONDS


def _new_runtime(job: JobObject, run: PodRun, mode: str) -> Content:
    """One of the same kind as the one that the job refers to."""
    namespace = kinds.at(job.content, ("metadata", "namespace"))
    kind = str(kinds.at(job.content, (*_REF, "kind")) or kinds.RUNTIMES[1])
    is_inside = kind == kinds.RUNTIMES[0]
    parts_of_name = [names.SIDECAR, None if is_inside else namespace, run.name]
    trainer = trainer_of(job.content)
    gang = {"failurePolicy": {"maxRestarts": _MAX_RESTARTS, "restartStrategy": "BlockingRecreate"}}
    container = {"name": NODE, "image": str(trainer.get("image"))}
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
            # One pod that exits for a restart restarts all of them; observing changes nothing.
            "template": {"spec": {**(gang if mode == "act" else {}), "replicatedJobs": [node]}},
        },
    }


def _refer(editor: Editor, runtime: Content) -> None:
    editor.mapping(_REF)
    editor.put((*_REF, "apiGroup"), _API.partition("/")[0])
    editor.put((*_REF, "kind"), runtime["kind"])
    editor.put((*_REF, "name"), _name(runtime))


def _show_checkpoints(
    editor: Editor, job: JobObject, replica: Replica, request: InjectRequest
) -> list[str]:
    """The sidecar gets the checkpoints' volume in the override that gives it to the trainer."""
    save = request.checkpoints or replica.text(*SAVE_FLAGS)
    for steps, override in overrides(job.content):
        for each in named(override.get("containers")):
            mount = mount_above(each, save) if save and each.get("name") == NODE else None
            if mount is not None:
                key = "initContainers" if request.sidecar == "native" else "containers"
                shown = {
                    "name": names.SIDECAR,
                    "env": [{"name": "MWATCH_SAVE", "value": save}],
                    "volumeMounts": [parts.checkpoint_mount(mount)],
                }
                editor.add((*steps, key), shown)
                return []
    return ["the sidecar cannot see the checkpoints: no override of the job mounts their volume"]


def _name(content: Any) -> str:
    return str(kinds.at(content, ("metadata", "name")))


_ALWAYS = (kinds.PYTORCHJOB, kinds.JOBSET, kinds.TRAINJOB)


class ManifestResult(NamedTuple):
    text: str
    objects: tuple[Content, ...]
    jobs: tuple[str, ...]
    """Those that were changed: `PyTorchJob/gpt`."""
    notes: tuple[str, ...]
    """What the user should know."""


class Object(NamedTuple):
    document: Document
    path: Path
    """Inside the document: items of a List have one."""
    content: Content

    @property
    def kind(self) -> str:
        return str(self.content.get("kind"))

    @property
    def name(self) -> str:
        metadata = self.content.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        return str(metadata.get("name") or metadata.get("generateName") or "")

    @property
    def title(self) -> str:
        return f"{self.kind}/{self.name}"


def inject_text(text: str, file: str, request: InjectRequest) -> ManifestResult:
    """InputError, with file and line, where it cannot be done."""
    documents = read(text, file)
    objects = list(_objects(documents))
    chosen, reported = _chosen(objects, file, request.only)
    runtimes = [each for each in objects if kinds.kind_of(each.content) in kinds.RUNTIMES]
    for each in chosen:
        job = _job(each, objects)
        if each.kind == kinds.TRAINJOB:
            done = inject_trainjob(job, [_job(one, objects) for one in runtimes], request)
            _drop_runtime(documents, done.runtime)
            if done.runtime is not None:
                documents.append(new_document(done.runtime, file))
            for one in runtimes:
                one.document.is_changed |= one.name == kinds.at(
                    each.content, ("spec", "runtimeRef", "name")
                )
            reported += [f"{each.title}: {words}" for words in done.notes]
        else:
            reported += [f"{each.title}: {words}" for words in inject(job, request)]
        each.document.is_changed = True
    return _result(documents, [each.title for each in chosen], reported)


def uninject_text(text: str, file: str, only: Sequence[str] = ()) -> ManifestResult:
    """What inject wrote, without it; nothing of ours in it is no error, but is said."""
    documents = read(text, file)
    objects = list(_objects(documents))
    changed: list[str] = []
    for each in objects:
        if only and each.name not in only:
            continue
        reference = kinds.at(each.content, ("spec", "runtimeRef", "name"))
        if kinds.kind_of(each.content) and remove(_job(each, objects)):
            each.document.is_changed = True
            changed.append(each.title)
        if kinds.at(each.content, ("spec", "runtimeRef", "name")) != reference:
            documents = [one for one in documents if _runtime_name(one) != reference]
    reported = [] if changed else ["there is nothing of mwatch in it"]
    return _result(documents, changed, reported)


def workloads(text: str, file: str, container: str | None = None) -> list[Workload]:
    """The jobs of a file, for the checks. InputError where it cannot be read."""
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
            for path, words in unrendered(each.content):
                raise each.document.refusal((*each.path, *path), words)
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
    words = "unchanged: it does not look like training (name it with --only if it is)"
    return sure, [f"{each.title}: {words}" for each in left]


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


def _drop_runtime(documents: list[Document], runtime: Content | None) -> None:
    """One that an earlier inject wrote: it is written anew."""
    name = kinds.at(runtime, ("metadata", "name"))
    documents[:] = [each for each in documents if runtime is None or _runtime_name(each) != name]


def _runtime_name(document: Document) -> str | None:
    if kinds.kind_of(document.content) not in kinds.RUNTIMES:
        return None
    return str(kinds.at(document.content, ("metadata", "name")))


def _result(
    documents: Sequence[Document], jobs: Sequence[str], reported: Sequence[str]
) -> ManifestResult:
    parts: list[str] = []
    for each in documents:
        if parts and not parts[-1].endswith("\n"):
            parts.append("\n")
        parts.append(each.text())
    objects = tuple(each.content for each in documents if isinstance(each.content, Mapping))
    return ManifestResult("".join(parts), objects, tuple(jobs), tuple(reported))  # type: ignore[arg-type]
