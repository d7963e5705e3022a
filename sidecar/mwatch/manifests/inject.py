# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Add mwatch to one job, and remove it again.

The changes are recorded in an annotation of the object. Injecting again first removes the earlier
changes: with the same request nothing changes, with a new image only the image does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.manifests import kinds, parts
from mwatch.manifests.containers import asks_for_gpus, launches, mount_above
from mwatch.manifests.edit import Editor, find, shortened, undo
from mwatch.manifests.facts import workload_of
from mwatch.manifests.kinds import Template
from mwatch.manifests.parts import InjectRequest, PodRun
from mwatch.manifests.shell_text import SHELLS, base_name
from mwatch.manifests.stream import RENDER
from mwatch.model.checks import OtherObject, Path, Replica, Tree
from mwatch.model.kube.fields import items

VERSION = 1
SAVE_FLAGS = ("--save", "--save-dir", "--save_dir", "save_folder")
_METADATA = ("metadata",)
_TEMPLATE_PLACES = {
    kinds.PYTORCHJOB: "spec.pytorchReplicaSpecs.Worker.template",
    kinds.JOBSET: "spec.replicatedJobs[].template.spec.template",
}
_MODES = ("observe", "act")
_POD_POLICIES = {name: name for name in ("Never", "OnFailure", "Always")} | {"ExitCode": "Never"}
"""The pod's restartPolicy by the job's: operators map ExitCode to Never."""
_DEFAULT_POLICY = "OnFailure"
"""Default of PyTorchJob and JobSet; a Job must set one, and a StatefulSet allows only one."""
_ENVSUBST = "fill it in first (envsubst < FILE) and give what comes out with -f -"
_HELM = re.compile(r"\{\{.*?\}\}")
_SHELL_STYLE = re.compile(r"\$(?:\{\w+\}|[A-Z_]\w*)", re.ASCII)
_WORDS = ("command", "args")
_ANYTHING = ("annotations", "data", "stringData", "postStart", "preStop", "exec")
Content = MutableMapping[str, Any]
Refuse = Callable[[Path, str], InputError]


class Pod(NamedTuple):
    template: Template
    replica: Replica
    trainer: Tree
    refuse: Refuse


class JobObject(NamedTuple):
    content: Content
    refuse: Refuse
    """Creates an error that names the line of a path."""
    others: Sequence[OtherObject] = ()


def inject(job: JobObject, request: InjectRequest) -> list[str]:
    """Change the object; return notes for the user. Raises InputError with the line."""
    remove(job)
    kind = kinds.kind_of(job.content) or ""
    for path, problem in unrendered(job.content):
        raise job.refuse(path, problem)
    mode, run = mode_of(job, request), run_of(job, kind)
    editor = Editor(job.content)
    notes = [] if run.name else ["without a fixed name there is no token: no restart in place"]
    pods = pods_of(job, kind, request)
    for pod in pods:
        refuse_taken_names(pod)
    for pod in pods:
        notes += add_to_pod(editor, pod, request, run, mode)
    mark(editor, job.content, request, mode)
    return notes


def remove(job: JobObject) -> bool:
    """Undo an earlier inject; False: there was none. Raises InputError if its record is damaged."""
    annotations = find(job.content, ("metadata", "annotations"))
    text = annotations.get(parts.INJECTED) if isinstance(annotations, MutableMapping) else None
    if text is None:
        return False
    path = ("metadata", "annotations", parts.INJECTED)
    try:
        record = json.loads(str(text))
        version, changes = record["version"], record["undo"]
    except (ValueError, KeyError, TypeError):
        raise job.refuse(
            path, "the record of an earlier inject is damaged; inject the original"
        ) from None
    if version != VERSION:
        raise job.refuse(path, f"injected by another mwatch (form {version}); use that one")
    del annotations[parts.INJECTED]
    undo(job.content, changes)
    return True


def mark(editor: Editor, content: Content, request: InjectRequest, mode: str) -> None:
    """Set label and annotations of the object; the record of all changes is written last."""
    editor.mapping((*_METADATA, "labels"))
    editor.put((*_METADATA, "labels", parts.WATCH_LABEL), "true")
    annotations = editor.mapping((*_METADATA, "annotations"))
    editor.put((*_METADATA, "annotations", parts.MODE), mode)
    record = {"version": VERSION, "sidecar": request.sidecar, "undo": shortened(editor.changes)}
    annotations[parts.INJECTED] = json.dumps(record, separators=(",", ":"))


def mode_of(job: JobObject, request: InjectRequest) -> str:
    given = find(job.content, ("metadata", "annotations", parts.MODE))
    mode = request.mode or given or _MODES[0]
    if mode not in _MODES:
        path = ("metadata", "annotations", parts.MODE)
        raise job.refuse(path, f"{parts.MODE} is {mode!r}; it can be {' or '.join(_MODES)}")
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
    """The pod templates that train. Raises InputError if it is unclear which container trains."""
    seen = workload_of(job.content, job.others, container=request.container)
    templates = kinds.templates(job.content)
    if not templates or seen is None:
        place = _TEMPLATE_PLACES.get(kind, "spec.template")
        raise job.refuse(("spec",), f"the {kind} has no pod template; put one at {place}")
    pairs = list(zip(templates, seen.replicas, strict=True))
    if kind == kinds.JOBSET and len(pairs) > 1:
        pairs = [each for each in pairs if trains(each[0])] or pairs
    return [_pod(job, kind, template, replica, request) for template, replica in pairs]


def _pod(
    job: JobObject, kind: str, template: Template, replica: Replica, request: InjectRequest
) -> Pod:
    path = (*template.path, "spec", "containers")
    names = (str(each.get("name")) for each in items(template.spec, "containers"))
    found = ", ".join(names) or "none"
    if replica.container is None and kind == kinds.PYTORCHJOB and request.container is None:
        problem = f"{template.name} has no container named 'pytorch' (found: {found}), and the "
        raise job.refuse(path, problem + "operator accepts no other; rename the one that trains")
    if replica.container is None:
        problem = f"{template.name}: cannot tell which container trains (found: {found}); "
        raise job.refuse(path, problem + "name it by --container")
    return Pod(template, replica, replica.container, job.refuse)


def trains(template: Template) -> bool:
    """Whether a pod looks like training: GPUs, or a launcher in the command."""
    containers = items(template.spec, "containers")
    return any(asks_for_gpus(each) or launches(each) for each in containers)


def refusal_at(refuse: Refuse, above: tuple[str | int, ...]) -> Refuse:
    return lambda path, problem: refuse((*above, *path), problem)


def add_to_pod(
    editor: Editor,
    pod: Pod,
    request: InjectRequest,
    run: PodRun,
    mode: str,
    *,
    with_prefix: bool = True,
) -> list[str]:
    """Add volume, wrapper, prefix and sidecar; return notes for the user. Raises InputError if the
    template cannot be used."""
    steps = (*pod.template.steps, "spec")
    guaranteed = parts.is_guaranteed(pod.template.spec)
    grace = _grace(editor, pod)
    checkpoints, notes = _checkpoints(pod, request)
    if with_prefix:
        _prefix_command(editor, pod, parts.launch(request, mode, grace))
    _equip_trainer(editor, pod, request, run, mode)
    editor.mapping((*pod.template.steps, "metadata"))
    editor.mapping((*pod.template.steps, "metadata", "labels"))
    editor.put((*pod.template.steps, "metadata", "labels", parts.WATCH_LABEL), "true")
    for volume in parts.volumes(request, run):
        editor.add((*steps, "volumes"), volume)
    is_copied = request.wrapper == "image"
    if is_copied:
        copy = parts.copy_container(request, pod.trainer, guaranteed)
        editor.add((*steps, "initContainers"), copy, first=0)
    sidecar = parts.sidecar_container(request, run, mode, pod.trainer, checkpoints, guaranteed)
    if request.sidecar == "native":
        # Before the user's own init containers, so that they are watched too.
        editor.add((*steps, "initContainers"), sidecar, first=int(is_copied))
    else:
        editor.add((*steps, "containers"), sidecar)
    return notes


def refuse_taken_names(pod: Pod) -> None:
    """Raise InputError if the pod uses one of mwatch's names; call this before any change."""
    spec = pod.template.spec
    for key, taken in (
        ("containers", {parts.SIDECAR, parts.COPY}),
        ("initContainers", {parts.SIDECAR, parts.COPY}),
        ("volumes", {parts.VOLUME, parts.WRAPPER, parts.TOKEN_VOLUME}),
    ):
        for index, each in enumerate(items(spec, key)):
            if each.get("name") in taken:
                problem = f"{key} has a {each.get('name')!r} that inject did not put there; "
                path = (*pod.template.path, "spec", key, index)
                raise pod.refuse(path, problem + "take it away or give it another name")


def _prefix_command(editor: Editor, pod: Pod, words: Sequence[str]) -> None:
    command, above = pod.trainer.get("command"), pod.replica.container_path
    name = f"container {pod.trainer.get('name')!r}"
    if isinstance(command, str):
        problem = f"the command of {name} is one text, and Kubernetes takes a list; write "
        raise pod.refuse((*above, "command"), problem + json.dumps(command.split())[:120])
    if not command:
        problem = f"{name} has no command, so what its image starts cannot be wrapped; "
        raise pod.refuse(above, problem + "give it a command: [torchrun, ...]")
    if not all(isinstance(each, str) for each in command):
        problem = f"the command of {name} is not a list of strings; put numbers in quotes"
        raise pod.refuse((*above, "command"), problem)
    editor.prefix((*_steps(pod), "command"), words)


def _equip_trainer(
    editor: Editor, pod: Pod, request: InjectRequest, run: PodRun, mode: str
) -> None:
    steps = _steps(pod)
    taken = {each.get("name") for each in items(pod.trainer, "env")}
    policy = _POD_POLICIES.get(pod.template.restart_policy or "", _DEFAULT_POLICY)
    for variable in parts.trainer_variables(request, run, mode, policy):
        if variable["name"] not in taken:
            editor.add((*steps, "env"), variable)
    editor.add((*steps, "volumeMounts"), parts.volume_mount())
    if request.wrapper == "configmap":
        editor.add((*steps, "volumeMounts"), parts.wrapper_mount())
    if run.name is not None:
        editor.add((*steps, "volumeMounts"), parts.token_mount())


def _steps(pod: Pod) -> tuple[str, ...]:
    return (*pod.template.steps, "spec", "containers", f"[{pod.trainer.get('name')}]")


def _grace(editor: Editor, pod: Pod) -> int:
    """Set the grace period, unless the user has set one, and return it."""
    given = pod.template.spec.get("terminationGracePeriodSeconds")
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    saves = "--exit-signal-handler" in pod.replica.arguments
    seconds = parts.SAVE_GRACE_SECONDS if saves else parts.GRACE_SECONDS
    editor.put((*pod.template.steps, "spec", "terminationGracePeriodSeconds"), seconds)
    return seconds


def _checkpoints(
    pod: Pod, request: InjectRequest
) -> tuple[list[tuple[str, Mapping[str, Any]]], list[str]]:
    """The save folder with its mount, if found; otherwise notes for the user."""
    save = request.checkpoints or pod.replica.text(*SAVE_FLAGS)
    where = f"{pod.template.name}:"
    if save is None:
        return [], [f"{where} no save folder was found in the command; name it by --checkpoints"]
    if not save.startswith("/"):
        folder = pod.trainer.get("workingDir")
        if folder is None:
            return [], [f"{where} the save folder {save} is relative; name it by --checkpoints"]
        save = f"{str(folder).rstrip('/')}/{save}"
    mount = mount_above(pod.trainer, save)
    if mount is None:
        return [], [f"{where} {save} is on no volume: the sidecar cannot see the checkpoints"]
    if "subPathExpr" in mount:
        return [], [f"{where} the volume of {save} has a subPathExpr: the sidecar does not get it"]
    return [(save, parts.checkpoint_mount(mount))], []


def unrendered(content: Any) -> Iterator[tuple[Path, str]]:
    """Placeholders that were not filled in, each with its path and the fix: Helm's `{{ }}` and
    envsubst's `$VAR`. A shell script may contain both; elsewhere Kubernetes expands only `$(VAR)`,
    in commands and variables."""
    for path, text in _texts(content, ()):
        if _HELM.search(text):
            yield path, f"{text[:40]!r} is a template's placeholder; {RENDER}"
        elif found := _placeholder(path, text):
            yield path, f"{found.group(0)} is a placeholder for envsubst; {_ENVSUBST}"


def _placeholder(path: Path, text: str) -> re.Match[str] | None:
    """Match `$VAR`. The value of a variable may contain a dollar, so there the whole must match."""
    if path[-1] == "value":
        return _SHELL_STYLE.fullmatch(text)
    return _SHELL_STYLE.search(text)


def _texts(node: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(node, Mapping):
        is_shell = _is_shell(node)
        for key, value in node.items():
            if isinstance(key, Mapping):
                yield path, "{{ }}"  # YAML parses `{{ }}` as a mapping used as a key
                continue
            if key in _ANYTHING or (key in _WORDS and is_shell):
                continue
            yield from _texts(value, (*path, str(key)))
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            yield from _texts(value, (*path, index))
    elif isinstance(node, str):
        yield path, node


def _is_shell(container: Mapping[Any, Any]) -> bool:
    command = container.get("command")
    if isinstance(command, str) or not isinstance(command, Sequence) or not command:
        return False
    return any(base_name(str(each)) in SHELLS for each in command[:8])
