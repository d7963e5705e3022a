# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What several checks ask of a job's pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mwatch.model.checks.workload import Replica, Tree, Workload

MEGATRON = ("--tensor-model-parallel-size", "--num-layers", "--train-iters", "--train-samples")
SAVE = ("--save", "--save-dir", "--save_dir")
LOAD = ("--load", "--load-dir", "--load_dir")
NPROC = ("--nproc-per-node", "--nproc_per_node", "--nproc")


def named(value: Any) -> list[Tree]:
    items = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    return [each for each in items if isinstance(each, Mapping)]


def training(workload: Workload) -> list[Replica]:
    """The replicas whose container is known and asks for GPUs, or has a trainer's arguments."""
    known = [each for each in workload.replicas if each.container is not None]
    sure = [each for each in known if gpus(each) or has_arguments(each)]
    return sure or known


def has_arguments(replica: Replica) -> bool:
    """Whether Megatron's own arguments stand in the manifest."""
    return any(each in replica.arguments for each in MEGATRON)


def gpus(replica: Replica) -> int | None:
    return requested(replica, "nvidia.com/gpu")


def requested(replica: Replica, resource: str) -> int | None:
    """None: not asked for, or no plain number."""
    resources = (replica.container or {}).get("resources")
    for where in ("limits", "requests"):
        given = resources.get(where) if isinstance(resources, Mapping) else None
        text = str(given.get(resource)) if isinstance(given, Mapping) else ""
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def mount_of(replica: Replica, path: str) -> Tree | None:
    """The deepest mount that holds a path."""
    mounts = named((replica.container or {}).get("volumeMounts"))
    points = [(str(each.get("mountPath", "")).rstrip("/"), each) for each in mounts]
    held = [(point, each) for point, each in points if point and _is_within(path, point)]
    return max(held, key=lambda each: len(each[0]))[1] if held else None


def _is_within(path: str, point: str) -> bool:
    return path == point or path.startswith(point + "/")


def volume_of(replica: Replica, path: str) -> Tree | None:
    mount = mount_of(replica, path)
    name = None if mount is None else mount.get("name")
    return next(
        (each for each in named(replica.pod.get("volumes")) if each.get("name") == name), None
    )


def containers(replica: Replica) -> Iterator[tuple[str, int, Tree]]:
    """All of them: the list they are in, their number there, and themselves."""
    for key in ("containers", "initContainers"):
        for index, each in enumerate(named(replica.pod.get(key))):
            yield key, index, each


def settings(replica: Replica) -> dict[str, str]:
    return dict(replica.environment)
