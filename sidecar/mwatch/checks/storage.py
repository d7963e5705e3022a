# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Where the run saves, and whether a restart finds it again."""

from __future__ import annotations

from collections.abc import Iterator

from mwatch.checks.pods import LOAD, SAVE, has_arguments, mount_of, named, training, volume_of
from mwatch.model.check import Check, Level, Seen
from mwatch.model.workload import Replica, Workload

_LOST = {
    "emptyDir": "dies with its pod",
    "ephemeral": "dies with its pod",
    "hostPath": "is one node's own disk",
    "configMap": "cannot be written",
    "secret": "cannot be written",
}
_COMPOSER = ("composer", "llmfoundry")


def _save_load(workload: Workload) -> Iterator[Seen]:
    for each in _told(workload):
        path, save, load = each.container_path, each.text(*SAVE), each.text(*LOAD)
        has_save, has_load = _has(each, SAVE), _has(each, LOAD)
        if not has_save:
            yield Seen(path, "there is no --save: nothing to resume from", "give --save and --load")
        elif not has_load:
            yield Seen(
                path,
                "there is no --load: a restart begins at iteration 0 and saves over its past",
                "give --load the folder of --save",
            )
        elif save is not None and load is not None and save != load:
            yield Seen(
                path,
                f"--save {save} and --load {load} differ: a restart goes back to the old one",
                "make them equal, and name a first checkpoint by --pretrained-checkpoint",
            )


def _told(workload: Workload) -> list[Replica]:
    """One is enough where all pods have the same command."""
    found = [each for each in training(workload) if has_arguments(each)]
    return found[:1]


def _has(replica: Replica, flags: tuple[str, ...]) -> bool:
    return any(each in replica.arguments for each in flags)


def _volume(workload: Workload) -> Iterator[Seen]:
    for each in training(workload):
        save = each.text(*SAVE, "save_folder")
        if save is None or not save.startswith("/"):
            continue
        if mount_of(each, save) is None:
            yield Seen(
                each.container_path,
                f"{each.name} saves to {save}, which is on no volume: it dies with the container",
                "mount a volume that all pods share there",
            )
            continue
        if _is_each_pods_own(workload, each, save):
            yield Seen(
                each.container_path,
                f"{each.name} saves to {save} on a volume that each of its pods has for itself",
                "use a volume that all pods share (a claim with ReadWriteMany)",
            )
            continue
        volume = volume_of(each, save) or {}
        kind = next((key for key in _LOST if key in volume), None)
        if kind is not None:
            yield Seen(
                each.container_path,
                f"{each.name} saves to {save} on a volume of kind {kind}, which {_LOST[kind]}",
                "use a volume that all pods share (a claim with ReadWriteMany)",
            )


def _is_each_pods_own(workload: Workload, replica: Replica, path: str) -> bool:
    """A claim template of a StatefulSet with several pods."""
    mount = mount_of(replica, path) or {}
    claims = named(workload.spec.get("volumeClaimTemplates"))
    names = [(each.get("metadata") or {}).get("name") for each in claims]
    return mount.get("name") in names and replica.count != 1


def _autoresume(workload: Workload) -> Iterator[Seen]:
    """Composer's own default is off, whatever its log says."""
    for each in training(workload)[:1]:
        text = " ".join((*each.words, *each.scripts))
        if any(name in text for name in _COMPOSER) and each.text("autoresume") != "true":
            yield Seen(
                each.container_path,
                "autoresume is not set: a restart of Composer begins anew, or is refused",
                "give autoresume=true, a run_name and a save_folder",
            )


CHECKS = (
    Check("save-load", Level.ERROR, "--save and --load are given and equal", _save_load),
    Check("save-volume", Level.ERROR, "checkpoints lie on a shared volume", _volume),
    Check("autoresume", Level.ERROR, "Composer resumes after a restart", _autoresume),
)
