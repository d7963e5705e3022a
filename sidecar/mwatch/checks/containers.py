# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of containers, references and storage: names, probes, variables, save folder."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mwatch.checks.pods import (
    LOAD,
    SAVE,
    at,
    containers,
    has_arguments,
    mount_of,
    named,
    training,
    volume_of,
)
from mwatch.model.checks import Check, CheckHit, CheckLevel, Replica, Workload

_OPERATOR = re.compile(
    r"MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|PYTHONUNBUFFERED|PET_\w+|JOB_COMPLETION_INDEX"
)
"""Variables that the operator, or the controller of Jobs, adds after the user's own."""
_SERVICE = re.compile(r"[A-Z0-9_]+_(?:SERVICE_(?:HOST|PORT\w*)|PORT(?:_\w+)?)")
"""Variables that Kubernetes sets for each Service of the namespace, before all others."""
_REFERENCE = re.compile(r"(?<!\$)\$\((\w+)\)", re.ASCII)
_SELECTORS = (
    ("Service", ("spec", "selector")),
    ("PodMonitor", ("spec", "selector", "matchLabels")),
    ("ServiceMonitor", ("spec", "selector", "matchLabels")),
    ("NetworkPolicy", ("spec", "podSelector", "matchLabels")),
    ("PodDisruptionBudget", ("spec", "selector", "matchLabels")),
)
_LOST = {
    "emptyDir": "dies with its pod",
    "ephemeral": "dies with its pod",
    "hostPath": "is one node's own disk",
    "configMap": "cannot be written",
    "secret": "cannot be written",
}
_COMPOSER = ("composer", "llmfoundry")


def _name(workload: Workload) -> Iterator[CheckHit]:
    if workload.kind != "PyTorchJob":
        return
    for each in workload.replicas:
        found = [str(one.get("name")) for one in named(each.pod.get("containers"))]
        reported = ", ".join(found) or "none"
        if "pytorch" not in found:
            what = f"{each.name} has no container named 'pytorch' (found: {reported})"
            fix = "rename the one that trains: the operator accepts no other name"
            yield CheckHit((*each.path, "spec", "containers"), what, fix)


def _readiness(workload: Workload) -> Iterator[CheckHit]:
    if _keeps_names(workload):
        return
    is_sure = workload.kind == "PyTorchJob"
    unless = "" if is_sure else " (unless its Service has publishNotReadyAddresses)"
    for each in workload.replicas:
        for key, index, container in containers(each):
            if "readinessProbe" in container:
                yield CheckHit(
                    (*each.path, "spec", key, index, "readinessProbe"),
                    f"{container.get('name')} has a readinessProbe: while it fails, the pod's DNS "
                    f"name is gone, and ranks cannot meet{unless}",
                    "take it away",
                    None if is_sure else CheckLevel.WARNING,
                )


def _keeps_names(workload: Workload) -> bool:
    """Whether unready pods keep their DNS names, as the Service of a JobSet allows by default."""
    if workload.kind in ("JobSet", "TrainJob"):
        return at(workload.spec, "network", "publishNotReadyAddresses") is not False
    services = (each.content for each in workload.others if each.kind == "Service")
    return any(at(each, "spec", "publishNotReadyAddresses") is True for each in services)


CONTAINER_CHECKS = (
    Check("container-name", CheckLevel.ERROR, "a PyTorchJob's container is named pytorch", _name),
    Check("readiness-probe", CheckLevel.ERROR, "no container has a readinessProbe", _readiness),
)


def _selector(workload: Workload) -> Iterator[CheckHit]:
    if workload.kind != "PyTorchJob":
        return
    for other in workload.others:
        for kind, keys in _SELECTORS:
            label = at(other.content, *keys, "job-name") if other.kind == kind else None
            if label is not None and label == workload.name:
                yield CheckHit(
                    ("metadata", "name"),
                    f"{other.kind} {other.name} (line {other.line}) selects job-name="
                    f"{workload.name}, a label that no pod of a PyTorchJob has",
                    "select training.kubeflow.org/job-name",
                )


def _rendezvous(workload: Workload) -> Iterator[CheckHit]:
    ids = {each.name: each.environment.get("RDZV_ID") for each in training(workload)}
    if len(ids) > 1 and len(set(ids.values())) > 1:
        message = ", ".join(f"{name} {value or 'none'}" for name, value in ids.items())
        what = f"RDZV_ID differs between the pods ({message}): they never meet"
        fix = "give all of them the same"
        yield CheckHit((*training(workload)[-1].container_path, "env"), what, fix)


def _undefined(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        if (each.container or {}).get("envFrom"):
            continue  # the variables of envFrom are not in this file
        names = [str(one.get("name")) for one in named((each.container or {}).get("env"))]
        for index, variable in enumerate(named((each.container or {}).get("env"))):
            for name in _references(str(variable.get("value", ""))):
                if name not in names[:index]:
                    yield _not_given(each, name, str(variable.get("name")))
        for word in each.words:
            for name in _references(word) if not each.scripts else ():
                if name not in names and not _OPERATOR.fullmatch(name):
                    yield _not_given(each, name, "the command")


def _references(text: str) -> list[str]:
    return [each for each in _REFERENCE.findall(text) if not _SERVICE.fullmatch(each)]


def _not_given(replica: Replica, name: str, where: str) -> CheckHit:
    return CheckHit(
        (*replica.container_path, "env"),
        f"{replica.name}: $({name}) in {where} is not defined before it, and stays as it is",
        f"define {name} in env, above",
    )


REFERENCE_CHECKS = (
    Check("selector", CheckLevel.INFO, "selectors name labels that pods have", _selector),
    Check("rendezvous-id", CheckLevel.ERROR, "all pods have one RDZV_ID", _rendezvous),
    Check("undefined-variable", CheckLevel.WARNING, "variables are defined where used", _undefined),
)


def _save_load(workload: Workload) -> Iterator[CheckHit]:
    for each in [one for one in training(workload) if has_arguments(one)][:1]:
        path, save, load = each.container_path, each.text(*SAVE), each.text(*LOAD)
        if each.arguments.keys().isdisjoint(SAVE):
            yield CheckHit(
                path, "there is no --save: nothing to resume from", "give --save and --load"
            )
        elif each.arguments.keys().isdisjoint(LOAD):
            what = "there is no --load: a restart begins at iteration 0 and saves over its past"
            yield CheckHit(path, what, "give --load the folder of --save")
        elif save is not None and load is not None and save != load:
            what = f"--save {save} and --load {load} differ: a restart goes back to the old one"
            fix = "make them equal, and name a first checkpoint by --pretrained-checkpoint"
            yield CheckHit(path, what, fix)


def _volume(workload: Workload) -> Iterator[CheckHit]:
    for each in training(workload):
        save = each.text(*SAVE, "save_folder")
        if save is None or not save.startswith("/"):
            continue
        if mount_of(each, save) is None:
            what = f"{each.name} saves to {save}, which is on no volume: it dies with the container"
            yield CheckHit(each.container_path, what, "mount a volume that all pods share there")
            continue
        if _is_each_pods_own(workload, each, save):
            what = f"{each.name} saves to {save} on a volume that each of its pods has for itself"
            fix = "use a volume that all pods share (a claim with ReadWriteMany)"
            yield CheckHit(each.container_path, what, fix)
            continue
        volume = volume_of(each, save) or {}
        kind = next((key for key in _LOST if key in volume), None)
        if kind is not None:
            what = f"{each.name} saves to {save} on a volume of kind {kind}, which {_LOST[kind]}"
            fix = "use a volume that all pods share (a claim with ReadWriteMany)"
            yield CheckHit(each.container_path, what, fix)


def _is_each_pods_own(workload: Workload, replica: Replica, path: str) -> bool:
    """Whether the path is on a claim template of a StatefulSet with several pods."""
    mount = mount_of(replica, path) or {}
    claims = named(workload.spec.get("volumeClaimTemplates"))
    names = [(each.get("metadata") or {}).get("name") for each in claims]
    return mount.get("name") in names and replica.count != 1


def _autoresume(workload: Workload) -> Iterator[CheckHit]:
    """Composer does not resume by default, whatever its log says."""
    for each in training(workload)[:1]:
        text = " ".join((*each.words, *each.scripts))
        if any(name in text for name in _COMPOSER) and each.text("autoresume") != "true":
            what = "autoresume is not set: a restart of Composer starts from scratch or is refused"
            fix = "give autoresume=true, a run_name and a save_folder"
            yield CheckHit(each.container_path, what, fix)


STORAGE_CHECKS = (
    Check("save-load", CheckLevel.ERROR, "--save and --load are given and equal", _save_load),
    Check("save-volume", CheckLevel.ERROR, "checkpoints lie on a shared volume", _volume),
    Check("autoresume", CheckLevel.ERROR, "Composer resumes after a restart", _autoresume),
)
