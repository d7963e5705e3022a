# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The parts that `inject` adds to a pod, as plain data.

The sidecar asks for no GPU, no shared process namespace and no right beyond the trainer's own. It
has no probe: its readiness would count in the pod's, and a pod that is not ready loses the name
that the other ranks meet at.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mwatch.manifests import names
from mwatch.manifests.containers import named
from mwatch.manifests.stream import plain
from mwatch.model.checks.workload import Tree

SIZE_LIMIT = "2Gi"
"""Of the shared volume. What is written there is bounded to about 600 MiB; an overrun evicts."""
COPY_REQUEST = {"cpu": "50m", "memory": "64Mi"}
SIDECAR_REQUEST = {"cpu": "100m", "memory": "256Mi"}
MEMORY_LIMIT = "512Mi"
GUARANTEED = {"cpu": "250m", "memory": MEMORY_LIMIT}
"""Request and limit in a pod where all others have both: it keeps its class."""
GRACE_SECONDS = 60
"""torchrun gives its ranks 30 s; the sidecar needs the last seconds."""
SAVE_GRACE_SECONDS = 300
"""Where a SIGTERM makes the trainer save (`--exit-signal-handler`)."""
_MARGIN_SECONDS = 5

_KEPT_RIGHTS = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile")

# Python by its name, since the image is the user's; without one the command runs as it is.
_LAUNCH = (
    'if [ -r {pyz} ]; then for p in {pythons}; do "$p" -c '
    "'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null && "
    'exec "$p" {pyz} "$@"; done; fi; '
    'while [ "$1" != -- ]; do shift; done; shift; '
    'echo "mwatch: no Python 3.8 and no wrapper here: the command runs unwatched" >&2; exec "$@"'
)

Sidecar = Literal["native", "container"]
Mode = Literal["observe", "act"]


class InjectRequest(NamedTuple):
    """What the user asked for."""

    image: str
    sidecar: Sidecar = "native"
    mode: Mode | None = None
    """None: what the job's annotation says, else `observe`."""
    controller: str = "http://mwatch-controller:9402"
    container: str | None = None
    """The one that trains, where it cannot be told."""
    checkpoints: str | None = None
    """The save folder, where it cannot be read out of the command."""
    python: str | None = None
    """Of the training image; None: the first `python3` or `python` of its PATH."""
    only: tuple[str, ...] = ()
    """Names of jobs; empty: all that train."""


class PodRun(NamedTuple):
    """Which job the pod is of."""

    name: str | None
    """None: the API server makes it up."""
    label: str | None
    """Of the pod, that holds the name; it stays right when somebody renames the job later."""


def launch(request: InjectRequest, mode: str, grace: int) -> list[str]:
    """What is put before the command. `exec`: the wrapper becomes process 1 and gets SIGTERM."""
    pythons = shlex.quote(request.python) if request.python else "python3 python"
    text = _LAUNCH.format(pyz=names.PYZ, pythons=pythons)
    options = ["--grace", str(max(grace - _MARGIN_SECONDS, 1))] if mode == "act" else []
    return ["/bin/sh", "-c", text, "mwatch-run", *options, "--"]


def copy_container(request: InjectRequest, trainer: Tree, is_guaranteed: bool) -> dict[str, Any]:
    return {
        "name": names.COPY,
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["cp", names.PYZ_IN_IMAGE, names.PYZ],
        **_rights(trainer),
        "resources": _resources(COPY_REQUEST, is_guaranteed),
        "volumeMounts": [volume_mount()],
    }


def sidecar_container(
    request: InjectRequest,
    run: PodRun,
    mode: str,
    trainer: Tree,
    checkpoints: Sequence[tuple[str, Mapping[str, Any]]],
    is_guaranteed: bool,
) -> dict[str, Any]:
    """`checkpoints`: the save folder and its mount, where they are known; else nothing."""
    settings = _sidecar_variables(request, run, mode)
    settings += [{"name": "MWATCH_SAVE", "value": save} for save, _ in checkpoints]
    restart = {"restartPolicy": "Always"} if request.sidecar == "native" else {}
    return {
        "name": names.SIDECAR,
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        **restart,
        "command": ["mwatch", "sidecar"],
        "env": settings,
        "ports": [{"name": names.PORT_NAME, "containerPort": names.PORT}],
        **_rights(trainer),
        "resources": _resources(SIDECAR_REQUEST, is_guaranteed),
        "volumeMounts": [
            volume_mount(),
            *([token_mount()] if run.name is not None else []),
            *(dict(mount) for _, mount in checkpoints),
        ],
    }


def _sidecar_variables(request: InjectRequest, run: PodRun, mode: str) -> list[dict[str, Any]]:
    settings = [
        {"name": "MWATCH_DIR", "value": names.VOLUME_PATH},
        _run_variable("MWATCH_RUN", run),
        field("MWATCH_POD", "metadata.name"),
        field("MWATCH_POD_UID", "metadata.uid"),
        field("MWATCH_NAMESPACE", "metadata.namespace"),
        field("MWATCH_NODE", "spec.nodeName"),
        {"name": "MWATCH_PORT", "value": str(names.PORT)},
        {"name": "MWATCH_MODE", "value": mode},
        {"name": "MWATCH_TOKEN_FILE", "value": names.TOKEN_FILE},
    ]
    if request.sidecar == "container":
        # A pod of plain containers ends only when all of them have.
        settings.append({"name": "MWATCH_UNTIL_FINAL", "value": "true"})
    return settings


def trainer_variables(
    request: InjectRequest, run: PodRun, mode: str, policy: str
) -> list[dict[str, Any]]:
    """`policy`: the pod's restartPolicy, by which the wrapper knows whether an end is the last."""
    return [
        {"name": "MWATCH_RESTART_POLICY", "value": policy},
        {"name": "MWATCH_DIR", "value": names.VOLUME_PATH},
        {"name": "MWATCH_MODE", "value": mode},
        _run_variable("MWATCH_JOB", run),
        field("MWATCH_NAMESPACE", "metadata.namespace"),
        field("MWATCH_POD", "metadata.name"),
        {"name": "MWATCH_CONTROLLER", "value": request.controller},
        {"name": "MWATCH_TOKEN_FILE", "value": names.TOKEN_FILE},
    ]


def volumes(run: PodRun) -> list[dict[str, Any]]:
    shared = {"name": names.VOLUME, "emptyDir": {"sizeLimit": SIZE_LIMIT}}
    if run.name is None:
        return [shared]
    # Optional: without a controller nobody makes the Secret, and the pod starts all the same.
    secret = {"secretName": names.token_secret(run.name), "optional": True}
    return [shared, {"name": names.TOKEN_VOLUME, "secret": secret}]


def volume_mount() -> dict[str, Any]:
    return {"name": names.VOLUME, "mountPath": names.VOLUME_PATH}


def token_mount() -> dict[str, Any]:
    return {"name": names.TOKEN_VOLUME, "mountPath": names.TOKEN_PATH, "readOnly": True}


def checkpoint_mount(mount: Tree) -> dict[str, Any]:
    """As in the training container, and read-only."""
    kept = {key: str(mount[key]) for key in ("name", "mountPath", "subPath") if key in mount}
    return {**kept, "readOnly": True}


def field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _run_variable(name: str, run: PodRun) -> dict[str, Any]:
    if run.label is not None:
        return field(name, f"metadata.labels['{run.label}']")
    return {"name": name, "value": run.name}


def _rights(trainer: Tree) -> dict[str, Any]:
    """The trainer's user: its files on the volume are that user's. What the trainer gives up is
    given up here too: a namespace may ask that of every container."""
    given = trainer.get("securityContext")
    given = given if isinstance(given, Mapping) else {}
    kept = {key: plain(given[key]) for key in _KEPT_RIGHTS if key in given}
    capabilities = given.get("capabilities")
    if isinstance(capabilities, Mapping) and capabilities.get("drop"):
        kept["capabilities"] = {"drop": plain(capabilities["drop"])}
    return {"securityContext": {**kept, "allowPrivilegeEscalation": False}}


def _resources(request: Mapping[str, str], is_guaranteed: bool) -> dict[str, Any]:
    if is_guaranteed:
        return {"requests": dict(GUARANTEED), "limits": dict(GUARANTEED)}
    return {"requests": dict(request), "limits": {"memory": MEMORY_LIMIT}}


def is_guaranteed(spec: Tree) -> bool:
    """Whether every container has limits for CPU and memory, and requests no less."""
    all_of_them = [*named(spec.get("containers")), *named(spec.get("initContainers"))]
    return bool(all_of_them) and all(_has_equal_limits(each) for each in all_of_them)


def _has_equal_limits(container: Tree) -> bool:
    resources = container.get("resources")
    resources = resources if isinstance(resources, Mapping) else {}
    limits, requests = resources.get("limits"), resources.get("requests")
    limits = limits if isinstance(limits, Mapping) else {}
    requests = requests if isinstance(requests, Mapping) else {}
    both = ("cpu", "memory")
    return all(each in limits and requests.get(each, limits[each]) == limits[each] for each in both)
