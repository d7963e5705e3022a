# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which container of a pod trains, and what is known of its command, environment and mounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mwatch.manifests.names import PYZ, SIDECAR
from mwatch.manifests.shell_text import LAUNCHERS
from mwatch.model.checks.workload import Tree

_USUAL = ("pytorch", "node", "trainer", "training", "megatron")


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []


def named(value: Any) -> list[Tree]:
    """The items of a list that are mappings: containers, volumes, mounts, variables."""
    return [each for each in listed(value) if isinstance(each, Mapping)]


def trainer_of(spec: Tree, wanted: str | None) -> Tree | None:
    """By its name, else the only one, the one with GPUs, the one that launches, a usual name."""
    containers = [each for each in named(spec.get("containers")) if each.get("name") != SIDECAR]
    if wanted is not None:
        return next((each for each in containers if each.get("name") == wanted), None)
    if len(containers) == 1:
        return containers[0]
    for fits in (asks_for_gpus, launches, lambda each: each.get("name") in _USUAL):
        found = [each for each in containers if fits(each)]
        if len(found) == 1:
            return found[0]
    return None


def asks_for_gpus(container: Tree) -> bool:
    return any(gpus_of(container, where) for where in ("limits", "requests"))


def gpus_of(container: Tree, where: str = "limits") -> int | None:
    return amount(container, "nvidia.com/gpu", where) or amount(container, "amd.com/gpu", where)


def amount(container: Tree, resource: str, where: str = "limits") -> int | None:
    """Of a countable resource; None: not asked for, or no plain number."""
    resources = container.get("resources")
    given = resources.get(where) if isinstance(resources, Mapping) else None
    value = given.get(resource) if isinstance(given, Mapping) else None
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else None


def launches(container: Tree) -> bool:
    return LAUNCHERS.search(" ".join(words_of_container(container))) is not None


def words_of_container(container: Tree) -> tuple[str, ...]:
    """Command and arguments; our own prefix is left out."""
    given = (*listed(container.get("command")), *listed(container.get("args")))
    words = [str(each) for each in given]
    if any(PYZ in each for each in words[:3]) and "--" in words:
        return tuple(words[words.index("--") + 1 :])
    return tuple(words)


def is_wrapped(container: Tree) -> bool:
    words = [str(each) for each in listed(container.get("command"))]
    return any(PYZ in each or "mwatch-run" in each for each in words)


def environment_of(container: Tree) -> dict[str, str]:
    """Literal values; those from elsewhere (a field, a Secret) are not in the text."""
    pairs = ((each.get("name"), each.get("value")) for each in named(container.get("env")))
    return {str(name): str(value) for name, value in pairs if name and value is not None}


def mount_above(container: Tree, path: str) -> Tree | None:
    """The mount that holds a path: the deepest one."""
    held = [each for each in named(container.get("volumeMounts")) if _holds(each, path)]
    return max(held, key=lambda each: len(str(each.get("mountPath"))), default=None)


def _holds(mount: Tree, path: str) -> bool:
    point = str(mount.get("mountPath", "")).rstrip("/")
    return bool(point) and (path == point or path.startswith(point + "/"))


def volume_named(spec: Tree, name: str) -> Tree | None:
    return next((each for each in named(spec.get("volumes")) if each.get("name") == name), None)
