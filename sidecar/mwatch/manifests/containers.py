# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Find the container of a pod that trains, and its command, environment and mounts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mwatch.manifests.parts import PYZ, SIDECAR
from mwatch.manifests.shell_text import LAUNCHERS
from mwatch.model.checks import Tree
from mwatch.model.kube.fields import items, part, text

_USUAL_NAMES = ("pytorch", "node", "trainer", "training", "megatron")
_GPUS = ("nvidia.com/gpu", "amd.com/gpu")


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []


def trainer_of(spec: Tree, wanted: str | None) -> Tree | None:
    """The trainer: by the wanted name, else the only container, the one with GPUs, the one with a
    launcher, or the one with a usual name."""
    containers = [each for each in items(spec, "containers") if each.get("name") != SIDECAR]
    if wanted is not None:
        return next((each for each in containers if each.get("name") == wanted), None)
    if len(containers) == 1:
        return containers[0]
    for fits in (asks_for_gpus, launches, lambda each: each.get("name") in _USUAL_NAMES):
        found = [each for each in containers if fits(each)]
        if len(found) == 1:
            return found[0]
    return None


def asks_for_gpus(container: Tree) -> bool:
    kinds = ((where, gpu) for where in ("limits", "requests") for gpu in _GPUS)
    amounts = (str(part(container, "resources", where, gpu)) for where, gpu in kinds)
    return any(each.isascii() and each.isdigit() and int(each) for each in amounts)


def launches(container: Tree) -> bool:
    return LAUNCHERS.search(" ".join(command_of(container))) is not None


def command_of(container: Tree) -> tuple[str, ...]:
    """Command and arguments, without the prefix added by inject."""
    given = (*listed(container.get("command")), *listed(container.get("args")))
    words = [str(each) for each in given]
    if any(PYZ in each for each in words[:3]) and "--" in words:
        return tuple(words[words.index("--") + 1 :])
    return tuple(words)


def is_wrapped(container: Tree) -> bool:
    words = [str(each) for each in listed(container.get("command"))]
    return any(PYZ in each or "mwatch-run" in each for each in words)


def environment_of(container: Tree) -> dict[str, str]:
    """Variables with literal values; values from a field or a Secret are not in the manifest."""
    pairs = ((each.get("name"), each.get("value")) for each in items(container, "env"))
    return {str(name): str(value) for name, value in pairs if name and value is not None}


def mount_above(container: Tree, path: str) -> Tree | None:
    """The deepest mount that contains a path."""
    held = [each for each in items(container, "volumeMounts") if _holds(each, path)]
    return max(held, key=lambda each: len(text(each, "mountPath")), default=None)


def _holds(mount: Tree, path: str) -> bool:
    point = text(mount, "mountPath").rstrip("/")
    return bool(point) and (path == point or path.startswith(point + "/"))
