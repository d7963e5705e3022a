# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Adds mwatch to one pod template: volume, copy of the wrapper, prefix, sidecar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mwatch.errors import InputError
from mwatch.manifests import names, parts
from mwatch.manifests.containers import mount_above, named
from mwatch.manifests.edit import Editor
from mwatch.manifests.kinds import Template
from mwatch.manifests.parts import InjectRequest, PodRun
from mwatch.model.checks.workload import Path, Replica, Tree

Refuse = Callable[[Path, str], InputError]
_POLICIES = {"Never": "Never", "ExitCode": "Never", "OnFailure": "OnFailure", "Always": "Always"}
"""Of the pod: an operator makes its ExitCode a Never there."""
_DEFAULT_POLICY = "OnFailure"
"""Of PyTorchJob and JobSet; a Job must say, and a StatefulSet knows one alone."""
SAVE_FLAGS = ("--save", "--save-dir", "--save_dir", "save_folder")


class Pod(NamedTuple):
    """One template with what is known of it."""

    template: Template
    replica: Replica
    trainer: Tree
    refuse: Refuse


def add_to_pod(
    editor: Editor,
    pod: Pod,
    request: InjectRequest,
    run: PodRun,
    mode: str,
    *,
    with_prefix: bool = True,
) -> list[str]:
    """What the user should know. InputError where the template cannot be used."""
    steps = (*pod.template.steps, "spec")
    guaranteed = parts.is_guaranteed(pod.template.spec)
    grace = _grace(editor, pod)
    checkpoints, reported = _checkpoints(pod, request)
    if with_prefix:
        _prefix_command(editor, pod, parts.launch(request, mode, grace))
    _equip_trainer(editor, pod, request, run, mode)
    editor.mapping((*pod.template.steps, "metadata"))
    editor.mapping((*pod.template.steps, "metadata", "labels"))
    editor.put((*pod.template.steps, "metadata", "labels", names.WATCH_LABEL), "true")
    for volume in parts.volumes(run):
        editor.add((*steps, "volumes"), volume)
    copy = parts.copy_container(request, pod.trainer, guaranteed)
    editor.add((*steps, "initContainers"), copy, first=0)
    sidecar = parts.sidecar_container(request, run, mode, pod.trainer, checkpoints, guaranteed)
    if request.sidecar == "native":
        # Before the user's own init containers, so that these are watched too.
        editor.add((*steps, "initContainers"), sidecar, first=1)
    else:
        editor.add((*steps, "containers"), sidecar)
    return reported


def refuse_strangers(pod: Pod) -> None:
    """Names of ours that somebody else has given; to be asked before any change."""
    spec = pod.template.spec
    for key, taken in (
        ("containers", {names.SIDECAR, names.COPY}),
        ("initContainers", {names.SIDECAR, names.COPY}),
        ("volumes", {names.VOLUME, names.TOKEN_VOLUME}),
    ):
        for index, each in enumerate(named(spec.get(key))):
            if each.get("name") in taken:
                raise pod.refuse(
                    (*pod.template.path, "spec", key, index),
                    f"{key} has a {each.get('name')!r} that inject did not put there; "
                    "take it away or give it another name",
                )


def _prefix_command(editor: Editor, pod: Pod, words: Sequence[str]) -> None:
    command = pod.trainer.get("command")
    name = pod.trainer.get("name")
    if isinstance(command, str):
        raise pod.refuse(
            (*pod.replica.container_path, "command"),
            f"the command of container {name!r} is one text, and Kubernetes takes a list; write "
            f"{json.dumps(command.split())[:120]}",
        )
    if not command:
        raise pod.refuse(
            pod.replica.container_path,
            f"container {name!r} has no command, so what its image starts cannot be wrapped; "
            "give it a command: [torchrun, ...]",
        )
    if not all(isinstance(each, str) for each in command):
        raise pod.refuse(
            (*pod.replica.container_path, "command"),
            f"the command of container {name!r} is not a list of strings; put numbers in quotes",
        )
    editor.prefix((*_steps(pod), "command"), words)


def _equip_trainer(
    editor: Editor, pod: Pod, request: InjectRequest, run: PodRun, mode: str
) -> None:
    steps = _steps(pod)
    taken = {each.get("name") for each in named(pod.trainer.get("env"))}
    policy = _POLICIES.get(pod.template.restart_policy or "", _DEFAULT_POLICY)
    for variable in parts.trainer_variables(request, run, mode, policy):
        if variable["name"] not in taken:
            editor.add((*steps, "env"), variable)
    editor.add((*steps, "volumeMounts"), parts.volume_mount())
    if run.name is not None:
        editor.add((*steps, "volumeMounts"), parts.token_mount())


def _steps(pod: Pod) -> tuple[str, ...]:
    return (*pod.template.steps, "spec", "containers", f"[{pod.trainer.get('name')}]")


def _grace(editor: Editor, pod: Pod) -> int:
    """The user's own stays."""
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
    """The save folder with its mount, if it can be told; and what to say where it cannot."""
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
