# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Adds mwatch to a TrainJob. It cannot name a new container, so its runtime must hold ours.

A runtime in the same stream is changed. Else one of our own is written behind the job, and the
job refers to it: a cluster's runtime is shared, and whoever changes it changes other jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from mwatch.manifests import kinds, names, parts
from mwatch.manifests.containers import mount_above, named
from mwatch.manifests.edit import Editor
from mwatch.manifests.facts import workload_of
from mwatch.manifests.inject import Content, Job, mark, mode_of, remove, run_of
from mwatch.manifests.parts import Run, Wish
from mwatch.manifests.pod import SAVE_FLAGS, Pod, add_to_pod, refuse_strangers
from mwatch.manifests.trainjob_view import NODE, STEP_LABEL, node_template, overrides, trainer_of
from mwatch.manifests.unrendered import unrendered
from mwatch.model.workload import Replica

_API = "trainer.kubeflow.org/v1alpha1"
_REF = ("spec", "runtimeRef")
_MAX_RESTARTS = 3


class Injected(NamedTuple):
    said: list[str]
    runtime: Content | None
    """To be written behind the job; None: the job's own was changed."""


def inject_trainjob(job: Job, runtimes: Sequence[Job], wish: Wish) -> Injected:
    """InputError, with the line."""
    remove(job)
    for path, words in unrendered(job.content):
        raise job.refuse(path, words)
    mode, run = mode_of(job, wish), run_of(job, kinds.TRAINJOB)
    if run.name is None:
        raise job.refuse(("metadata",), "a TrainJob needs a metadata.name: its runtime is named so")
    run = Run(run.name, kinds.RUN_LABELS[kinds.RUNTIMES[0]])
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
    said = _equip(Job(target, (own or job).refuse), replica, wish, run, mode, trainer)
    if trainer.get("command"):
        launch = parts.launch(wish, mode, _grace(target))
        editor.prefix(("spec", "trainer", "command"), launch)
    if runtime is not None:
        _refer(editor, runtime)
    said += _show_checkpoints(editor, job, replica, wish)
    mark(editor, job.content, wish, mode)
    return Injected(said, runtime)


def _replica(job: Job) -> Replica:
    seen = workload_of(job.content, job.others)
    assert seen is not None and seen.replicas, "a TrainJob is always seen as one template"
    return seen.replicas[0]


def _equip(
    target: Job, replica: Replica, wish: Wish, run: Run, mode: str, trainer: Any
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
    plain = wish._replace(checkpoints=None)
    add_to_pod(editor, pod, plain, run, mode, with_prefix=not has_own)
    mark(editor, target.content, wish, mode)
    return []


def _grace(runtime: Content) -> int:
    template = node_template(runtime)
    given = None if template is None else template.spec.get("terminationGracePeriodSeconds")
    return given if isinstance(given, int) else parts.GRACE_SECONDS


def _new_runtime(job: Job, run: Run, mode: str) -> Content:
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


def _show_checkpoints(editor: Editor, job: Job, replica: Replica, wish: Wish) -> list[str]:
    """The sidecar gets the checkpoints' volume in the override that gives it to the trainer."""
    save = wish.checkpoints or replica.text(*SAVE_FLAGS)
    for steps, override in overrides(job.content):
        for each in named(override.get("containers")):
            mount = mount_above(each, save) if save and each.get("name") == NODE else None
            if mount is not None:
                key = "initContainers" if wish.sidecar == "native" else "containers"
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
