# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Adds mwatch to one job, and takes it away again.

What was changed is noted in an annotation of the object. To inject again is to take it away and
to add it anew: with the same wishes nothing changes, with a new image only the image does.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping, Sequence
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.manifests import kinds, names
from mwatch.manifests.containers import asks_for_gpus, launches, named
from mwatch.manifests.edit import Editor, find, shortened, undo
from mwatch.manifests.facts import workload_of
from mwatch.manifests.kinds import Template
from mwatch.manifests.parts import InjectRequest, PodRun
from mwatch.manifests.pod import Pod, Refuse, add_to_pod, refuse_strangers
from mwatch.manifests.unrendered import unrendered
from mwatch.model.checks.workload import OtherObject, Replica

VERSION = 1
_METADATA = ("metadata",)
_MODES = ("observe", "act")
Content = MutableMapping[str, Any]


class JobObject(NamedTuple):
    """An object to change, with the way to say what is wrong with it."""

    content: Content
    refuse: Refuse
    others: Sequence[OtherObject] = ()


def inject(job: JobObject, request: InjectRequest) -> list[str]:
    """Changes the object; what the user should know. InputError, with the line."""
    remove(job)
    kind = kinds.kind_of(job.content) or ""
    for path, words in unrendered(job.content):
        raise job.refuse(path, words)
    mode, run = mode_of(job, request), run_of(job, kind)
    editor = Editor(job.content)
    reported = [] if run.name else ["without a fixed name there is no token: no restart in place"]
    pods = pods_of(job, kind, request)
    for pod in pods:
        refuse_strangers(pod)
    for pod in pods:
        reported += add_to_pod(editor, pod, request, run, mode)
    mark(editor, job.content, request, mode)
    return reported


def remove(job: JobObject) -> bool:
    """Whether there was anything of ours. InputError where the note cannot be read."""
    annotations = find(job.content, ("metadata", "annotations"))
    text = annotations.get(names.INJECTED) if isinstance(annotations, MutableMapping) else None
    if text is None:
        return False
    path = ("metadata", "annotations", names.INJECTED)
    try:
        note = json.loads(str(text))
        version, notes = note["version"], note["undo"]
    except (ValueError, KeyError, TypeError):
        raise job.refuse(
            path, "the note of an earlier inject is damaged; inject the original"
        ) from None
    if version != VERSION:
        raise job.refuse(path, f"injected by another mwatch (form {version}); use that one")
    del annotations[names.INJECTED]
    undo(job.content, notes)
    return True


def mark(editor: Editor, content: Content, request: InjectRequest, mode: str) -> None:
    """Label and annotations of the object; the note of what was changed comes last."""
    editor.mapping((*_METADATA, "labels"))
    editor.put((*_METADATA, "labels", names.WATCH_LABEL), "true")
    annotations = editor.mapping((*_METADATA, "annotations"))
    editor.put((*_METADATA, "annotations", names.MODE), mode)
    note = {"version": VERSION, "sidecar": request.sidecar, "undo": shortened(editor.notes)}
    annotations[names.INJECTED] = json.dumps(note, separators=(",", ":"))


def mode_of(job: JobObject, request: InjectRequest) -> str:
    given = find(job.content, ("metadata", "annotations", names.MODE))
    mode = request.mode or given or _MODES[0]
    if mode not in _MODES:
        path = ("metadata", "annotations", names.MODE)
        raise job.refuse(path, f"{names.MODE} is {mode!r}; it can be {' or '.join(_MODES)}")
    return str(mode)


def run_of(job: JobObject, kind: str) -> PodRun:
    name = find(job.content, ("metadata", "name"))
    if not name and not find(job.content, ("metadata", "generateName")):
        raise job.refuse(("metadata",), f"the {kind} has no name; give it a metadata.name")
    label = kinds.RUN_LABELS.get(kind)
    if not name and label is None:
        raise job.refuse(("metadata",), f"a {kind} with generateName cannot be watched; name it")
    return PodRun(str(name) if name else None, label)


def pods_of(job: JobObject, kind: str, request: InjectRequest) -> list[Pod]:
    """The templates that train. InputError where a container cannot be told."""
    seen = workload_of(job.content, job.others, container=request.container)
    templates = kinds.templates(job.content)
    if not templates or seen is None:
        raise job.refuse(("spec",), f"the {kind} has no pod template; {_fix(kind)}")
    pairs = list(zip(templates, seen.replicas, strict=True))
    if kind == kinds.JOBSET and len(pairs) > 1:
        pairs = [each for each in pairs if trains(each[0])] or pairs
    return [_pod(job, kind, template, replica, request) for template, replica in pairs]


def _pod(
    job: JobObject, kind: str, template: Template, replica: Replica, request: InjectRequest
) -> Pod:
    path = (*template.path, "spec", "containers")
    containers = named(template.spec.get("containers"))
    found = ", ".join(str(each.get("name")) for each in containers) or "none"
    if replica.container is None and kind == kinds.PYTORCHJOB and request.container is None:
        words = f"{template.name} has no container named 'pytorch' (found: {found}), and the "
        raise job.refuse(path, words + "operator accepts no other; rename the one that trains")
    if replica.container is None:
        words = f"{template.name}: cannot tell which container trains (found: {found}); "
        raise job.refuse(path, words + "name it by --container")
    return Pod(template, replica, replica.container, job.refuse)


def trains(template: Template) -> bool:
    """Whether a pod looks like training: GPUs, or a launcher in the command."""
    return any(
        asks_for_gpus(each) or launches(each) for each in named(template.spec.get("containers"))
    )


def _fix(kind: str) -> str:
    if kind == kinds.PYTORCHJOB:
        return "put one at spec.pytorchReplicaSpecs.Worker.template"
    if kind == kinds.JOBSET:
        return "put one at spec.replicatedJobs[].template.spec.template"
    return "put one at spec.template"


def refusal_at(refuse: Refuse, above: tuple[str | int, ...]) -> Refuse:
    """For an object inside another one."""

    def refused(path: tuple[str | int, ...], words: str) -> InputError:
        return refuse((*above, *path), words)

    return refused
