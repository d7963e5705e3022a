# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The parts that `inject` adds to a pod, as plain data, and their

The sidecar requests no GPU, no shared process namespace and no right that the trainer lacks. It has
no readiness probe: a pod that is not ready loses the DNS name at which the other ranks meet.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mwatch.manifests.stream import plain
from mwatch.model.checks import Tree
from mwatch.model.kube.fields import items, mapping

SIDECAR = "mwatch"
COPY = "mwatch-copy"
VOLUME = "mwatch"
VOLUME_PATH = "/mwatch"
TOKEN_VOLUME = "mwatch-token"
TOKEN_PATH = "/etc/mwatch"
TOKEN_FILE = "/etc/mwatch/token"
PORT_NAME = "mwatch"
PORT = 9401
PYZ = "/mwatch/mwatch-run.pyz"
PYZ_IN_IMAGE = "/mwatch-run.pyz"

WATCH_LABEL = "mwatch.dev/watch"
MODE = "mwatch.dev/mode"
INJECTED = "mwatch.dev/injected"
"""What inject changed, as JSON: enough to change it back."""

SIZE_LIMIT = "2Gi"
"""Of the shared volume. mwatch writes at most about 600 MiB; Kubernetes evicts an overrun."""
COPY_REQUEST = {"cpu": "50m", "memory": "64Mi"}
SIDECAR_REQUEST = {"cpu": "100m", "memory": "256Mi"}
MEMORY_LIMIT = "512Mi"
GUARANTEED = {"cpu": "250m", "memory": MEMORY_LIMIT}
"""Request and limit in a pod of QoS class Guaranteed, which keeps its class."""
GRACE_SECONDS = 60
"""torchrun gives its ranks 30 s; the sidecar needs some seconds after that."""
SAVE_GRACE_SECONDS = 300
"""Where a SIGTERM makes the trainer save (`--exit-signal-handler`)."""
_MARGIN_SECONDS = 5

_KEPT_RIGHTS = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile")

# Python is found by name, since the image is the user's; without one the command runs unchanged.
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
    image: str
    sidecar: Sidecar = "native"
    mode: Mode | None = None
    """None: the job's annotation, else `observe`."""
    controller: str = "http://mwatch-controller:9402"
    container: str | None = None
    """The one that trains, if it cannot be recognised."""
    checkpoints: str | None = None
    """The save folder, if the command does not show it."""
    python: str | None = None
    """In the training image; None: the first `python3` or `python` of its PATH."""
    only: tuple[str, ...] = ()


class PodRun(NamedTuple):
    name: str | None
    """None: the API server generates it."""
    label: str | None
    """The pod's label that holds the name: still right after the job is renamed."""


def launch(request: InjectRequest, mode: str, grace: int) -> list[str]:
    """The prefix of the command. With `exec` the wrapper becomes process 1 and gets SIGTERM."""
    pythons = shlex.quote(request.python) if request.python else "python3 python"
    text = _LAUNCH.format(pyz=PYZ, pythons=pythons)
    options = ["--grace", str(max(grace - _MARGIN_SECONDS, 1))] if mode == "act" else []
    return ["/bin/sh", "-c", text, "mwatch-run", *options, "--"]


def copy_container(request: InjectRequest, trainer: Tree, is_guaranteed: bool) -> dict[str, Any]:
    return {
        "name": COPY,
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["cp", PYZ_IN_IMAGE, PYZ],
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
    """`checkpoints`: the save folder and its mount, if known."""
    settings = _sidecar_variables(request, run, mode)
    settings += [{"name": "MWATCH_SAVE", "value": save} for save, _ in checkpoints]
    restart = {"restartPolicy": "Always"} if request.sidecar == "native" else {}
    return {
        "name": SIDECAR,
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        **restart,
        "command": ["mwatch", "sidecar"],
        "env": settings,
        "ports": [{"name": PORT_NAME, "containerPort": PORT}],
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
        {"name": "MWATCH_DIR", "value": VOLUME_PATH},
        _run_variable("MWATCH_RUN", run),
        field("MWATCH_POD", "metadata.name"),
        field("MWATCH_POD_UID", "metadata.uid"),
        field("MWATCH_NAMESPACE", "metadata.namespace"),
        field("MWATCH_NODE", "spec.nodeName"),
        {"name": "MWATCH_PORT", "value": str(PORT)},
        {"name": "MWATCH_MODE", "value": mode},
        {"name": "MWATCH_TOKEN_FILE", "value": TOKEN_FILE},
    ]
    if request.sidecar == "container":
        # A pod of plain containers ends only when all of them have ended.
        settings.append({"name": "MWATCH_UNTIL_FINAL", "value": "true"})
    return settings


def trainer_variables(
    request: InjectRequest, run: PodRun, mode: str, policy: str
) -> list[dict[str, Any]]:
    """`policy`: the pod's restartPolicy, which shows the wrapper whether an exit is final."""
    return [
        {"name": "MWATCH_RESTART_POLICY", "value": policy},
        {"name": "MWATCH_DIR", "value": VOLUME_PATH},
        {"name": "MWATCH_MODE", "value": mode},
        _run_variable("MWATCH_JOB", run),
        field("MWATCH_NAMESPACE", "metadata.namespace"),
        field("MWATCH_POD", "metadata.name"),
        {"name": "MWATCH_CONTROLLER", "value": request.controller},
        {"name": "MWATCH_TOKEN_FILE", "value": TOKEN_FILE},
    ]


def volumes(run: PodRun) -> list[dict[str, Any]]:
    shared = {"name": VOLUME, "emptyDir": {"sizeLimit": SIZE_LIMIT}}
    if run.name is None:
        return [shared]
    # Optional: without a controller there is no Secret, and the pod must start all the same.
    secret = {"secretName": f"mwatch-{run.name}", "optional": True}
    return [shared, {"name": TOKEN_VOLUME, "secret": secret}]


def volume_mount() -> dict[str, Any]:
    return {"name": VOLUME, "mountPath": VOLUME_PATH}


def token_mount() -> dict[str, Any]:
    return {"name": TOKEN_VOLUME, "mountPath": TOKEN_PATH, "readOnly": True}


def checkpoint_mount(mount: Tree) -> dict[str, Any]:
    """The same mount as in the training container, read-only."""
    kept = {key: str(mount[key]) for key in ("name", "mountPath", "subPath") if key in mount}
    return {**kept, "readOnly": True}


def field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _run_variable(name: str, run: PodRun) -> dict[str, Any]:
    if run.label is not None:
        return field(name, f"metadata.labels['{run.label}']")
    return {"name": name, "value": run.name}


def _rights(trainer: Tree) -> dict[str, Any]:
    """The trainer's user, who owns the files on the volume. Capabilities that the trainer drops are
    dropped here too: a namespace may require that of every container."""
    given = mapping(trainer, "securityContext")
    kept = {key: plain(given[key]) for key in _KEPT_RIGHTS if key in given}
    if dropped := mapping(given, "capabilities").get("drop"):
        kept["capabilities"] = {"drop": plain(dropped)}
    return {"securityContext": {**kept, "allowPrivilegeEscalation": False}}


def _resources(request: Mapping[str, str], is_guaranteed: bool) -> dict[str, Any]:
    if is_guaranteed:
        return {"requests": dict(GUARANTEED), "limits": dict(GUARANTEED)}
    return {"requests": dict(request), "limits": {"memory": MEMORY_LIMIT}}


def is_guaranteed(spec: Tree) -> bool:
    """Whether every container has limits for CPU and memory, and requests as much."""
    containers = [*items(spec, "containers"), *items(spec, "initContainers")]
    return bool(containers) and all(map(_has_equal_limits, containers))


def _has_equal_limits(container: Tree) -> bool:
    limits = mapping(container, "resources", "limits")
    requests = mapping(container, "resources", "requests")
    both = ("cpu", "memory")
    return all(each in limits and requests.get(each, limits[each]) == limits[each] for each in both)
