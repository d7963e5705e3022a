# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read the pods of a job's manifest: containers, arguments, resources, mounts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mwatch.model.checks import Replica, Tree, Workload

MEGATRON = ("--tensor-model-parallel-size", "--num-layers", "--train-iters", "--train-samples")
SAVE = ("--save", "--save-dir", "--save_dir")
LOAD = ("--load", "--load-dir", "--load_dir")
NPROC = ("--nproc-per-node", "--nproc_per_node", "--nproc")


def named(value: Any) -> list[Tree]:
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return [each for each in items if isinstance(each, Mapping)]


def mapping(value: Any) -> Tree:
    return value if isinstance(value, Mapping) else {}


def at(content: Any, *keys: str) -> Any:
    """Follow keys into nested mappings; None if one is missing."""
    for key in keys:
        content = mapping(content).get(key)
    return content


def training(workload: Workload) -> list[Replica]:
    """Return the replicas with GPUs or a trainer's arguments; if there are none, all known ones."""
    known = [each for each in workload.replicas if each.container is not None]
    sure = [each for each in known if gpus(each) or has_arguments(each)]
    return sure or known


def has_arguments(replica: Replica) -> bool:
    return any(each in replica.arguments for each in MEGATRON)


def gpus(replica: Replica) -> int | None:
    return requested(replica, "nvidia.com/gpu")


def requested(replica: Replica, resource: str) -> int | None:
    """The requested amount; None if not requested, or not as a plain number."""
    for where in ("limits", "requests"):
        text = str(at(replica.container, "resources", where, resource))
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def mount_of(replica: Replica, path: str) -> Tree | None:
    """Return the deepest mount that contains a path."""
    mounts = named((replica.container or {}).get("volumeMounts"))
    points = [(str(each.get("mountPath", "")).rstrip("/"), each) for each in mounts]
    held = [found for found in points if found[0] and f"{path}/".startswith(f"{found[0]}/")]
    return max(held, key=lambda each: len(each[0]))[1] if held else None


def volume_of(replica: Replica, path: str) -> Tree | None:
    mount = mount_of(replica, path)
    name = None if mount is None else mount.get("name")
    volumes = named(replica.pod.get("volumes"))
    return next((each for each in volumes if each.get("name") == name), None)


def containers(replica: Replica) -> Iterator[tuple[str, int, Tree]]:
    for key in ("containers", "initContainers"):
        for index, each in enumerate(named(replica.pod.get(key))):
            yield key, index, each
