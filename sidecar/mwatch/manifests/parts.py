# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The parts that `inject` adds to a pod, as plain data.

None of them keeps the trainer from starting. The ConfigMap of the wrapper may be missing, and a
small shell script starts the command without the wrapper if it cannot be used. In that case the
script writes the reason into the volume, and holds a named pipe open so that the sidecar can detect
the end of the command.

The sidecar requests no GPU, no shared process namespace and no privilege that the trainer lacks. It
has no readiness probe: a pod that is not ready loses the DNS name at which the other ranks meet.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mwatch.manifests.plain_data import plain
from mwatch.model.checks import Tree
from mwatch.model.kube.fields import items, mapping
from mwatch.model.kube.pod import SIDECAR as SIDECAR
from mwatch_trainer.contract import RUNNING, UNWATCHED

COPY = "mwatch-copy"
VOLUME = "mwatch"
VOLUME_PATH = "/mwatch"
TOKEN_VOLUME = "mwatch-token"
TOKEN_PATH = "/etc/mwatch"
TOKEN_FILE = "/etc/mwatch/token"
PORT_NAME = "mwatch"
PORT = 9401
WRAPPER = "mwatch-run"
"""Name of the ConfigMap with the wrapper, which the chart `mwatch` creates, and of its volume."""
WRAPPER_PATH = "/etc/mwatch-run"
PYZ = "/mwatch/mwatch-run.pyz"
"""Copy of the wrapper: the kubelet replaces the files of a ConfigMap while pods use them."""
PYZ_IN_CONFIGMAP = f"{WRAPPER_PATH}/mwatch-run.pyz"
PYZ_IN_IMAGE = "/mwatch-run.pyz"

WATCH_LABEL = "mwatch.dev/watch"
MODE = "mwatch.dev/mode"
INJECTED = "mwatch.dev/injected"
"""Annotation with the changes that inject made, as JSON, to undo them."""

SIZE_LIMIT = "2Gi"
"""Of the shared volume: mwatch writes up to about 600 MiB; exceeding the limit evicts the pod."""
COPY_REQUEST = {"cpu": "50m", "memory": "64Mi"}
SIDECAR_REQUEST = {"cpu": "100m", "memory": "256Mi"}
MEMORY_LIMIT = "512Mi"
GUARANTEED = {"cpu": "250m", "memory": MEMORY_LIMIT}
"""Requests and limits in a pod of QoS class Guaranteed, so that it keeps that class."""
GRACE_SECONDS = 60
"""torchrun gives its ranks 30 s to end, and the sidecar needs a few seconds after that."""
SAVE_GRACE_SECONDS = 300
"""Grace period if the trainer saves on SIGTERM (`--exit-signal-handler`)."""
_MARGIN_SECONDS = 5

_KEPT_RIGHTS = ("runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile")

# Only functions and positional parameters: envsubst would replace a variable. A failed redirection
# would end the shell without `command`.
_LAUNCH = (
    'alone() {{ echo "mwatch: not watched: $1; the command runs alone" >&2; '
    '{{ {{ echo "$1"; printenv MWATCH_RESTART_POLICY; }} >{unwatched}; mkfifo -m 666 {running}; }} '
    "2>/dev/null; "
    "[ -p {running} ] && command exec 9<>{running}; "
    'while [ "$1" != -- ]; do shift; done; shift; exec "$@"; }}; '
    "wrap() {{ \"$1\" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null "
    "|| return 0; "
    '{copy}"$1" "$2" --version >/dev/null 2>&1 && exec "$@"; '
    'alone "the wrapper {source} is damaged or cannot be copied" "$@"; }}; '
    '[ -r {source} ] || alone "{missing}" "$@"; '
    '{tries}alone "the image has no Python 3.8 or newer" "$@"'
)
_COPY = (
    """"$1" -c 'import shutil, sys; shutil.copyfile(*sys.argv[1:])' {source} "$2" 2>/dev/null && """
)
_NO_CONFIGMAP = f"no wrapper, because the namespace has no ConfigMap {WRAPPER}"
_NO_COPY = f"no wrapper at {PYZ}"

Sidecar = Literal["native", "container"]
Mode = Literal["observe", "act"]
Wrapper = Literal["configmap", "image"]


class InjectRequest(NamedTuple):
    image: str
    sidecar: Sidecar = "container"
    """A native sidecar blocks the whole pod while its image cannot be pulled."""
    mode: Mode | None = None
    """None: the mode of the job's annotation, by default `observe`."""
    controller: str = "http://mwatch-controller:9402"
    container: str | None = None
    """Name of the container that trains, if it cannot be detected."""
    checkpoints: str | None = None
    """The save folder, if the command does not contain it."""
    python: str | None = None
    """Python of the training image; None: the first `python3` or `python` in its PATH."""
    only: tuple[str, ...] = ()
    wrapper: Wrapper = "configmap"
    """Source of the wrapper; `image`: an init container copies it from our image."""


class PodRun(NamedTuple):
    name: str | None
    """None: the API server generates it."""
    label: str | None
    """Pod label with the name, which stays correct if the job is renamed."""


def launch(request: InjectRequest, mode: str, grace: int) -> list[str]:
    """The prefix of the command. Due to `exec` the wrapper is process 1 and receives SIGTERM."""
    pythons = [shlex.quote(request.python)] if request.python else ["python3", "python"]
    is_copied = request.wrapper == "configmap"
    source = PYZ_IN_CONFIGMAP if is_copied else PYZ
    text = _LAUNCH.format(
        unwatched=f"{VOLUME_PATH}/{UNWATCHED}",
        running=f"{VOLUME_PATH}/{RUNNING}",
        source=source,
        copy=_COPY.format(source=source) if is_copied else "",
        missing=_NO_CONFIGMAP if is_copied else _NO_COPY,
        tries="".join(f'wrap {each} {PYZ} "$@"; ' for each in pythons),
    )
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
    """The sidecar. `checkpoints`: the save folder and its mount, if known."""
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
    """`policy`: the pod's restartPolicy, by which the wrapper knows whether an exit is final."""
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


def volumes(request: InjectRequest, run: PodRun) -> list[dict[str, Any]]:
    shared = [{"name": VOLUME, "emptyDir": {"sizeLimit": SIZE_LIMIT}}]
    if request.wrapper == "configmap":
        shared.append({"name": WRAPPER, "configMap": {"name": WRAPPER, "optional": True}})
    if run.name is None:
        return shared
    # Optional: without a controller there is no Secret, and the pod must still start.
    secret = {"secretName": f"mwatch-{run.name}", "optional": True}
    return [*shared, {"name": TOKEN_VOLUME, "secret": secret}]


def volume_mount() -> dict[str, Any]:
    return {"name": VOLUME, "mountPath": VOLUME_PATH}


def wrapper_mount() -> dict[str, Any]:
    return {"name": WRAPPER, "mountPath": WRAPPER_PATH, "readOnly": True}


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
    """Security context with the trainer's user, who owns the files on the volume. Capabilities that
    the trainer drops are dropped too: a namespace may require that of every container."""
    given = mapping(trainer, "securityContext")
    kept = {key: plain(given[key]) for key in _KEPT_RIGHTS if key in given}
    if dropped := mapping(given, "capabilities").get("drop"):
        kept["capabilities"] = {"drop": plain(dropped)}
    ours = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    return {"securityContext": {**kept, **ours}}


def _resources(request: Mapping[str, str], is_guaranteed: bool) -> dict[str, Any]:
    if is_guaranteed:
        return {"requests": dict(GUARANTEED), "limits": dict(GUARANTEED)}
    return {"requests": dict(request), "limits": {"memory": MEMORY_LIMIT}}


def is_guaranteed(spec: Tree) -> bool:
    """Whether every container has limits for CPU and memory, with equal requests."""
    containers = [*items(spec, "containers"), *items(spec, "initContainers")]
    return bool(containers) and all(map(_has_equal_limits, containers))


def _has_equal_limits(container: Tree) -> bool:
    limits = mapping(container, "resources", "limits")
    requests = mapping(container, "resources", "requests")
    both = ("cpu", "memory")
    return all(each in limits and requests.get(each, limits[each]) == limits[each] for each in both)
