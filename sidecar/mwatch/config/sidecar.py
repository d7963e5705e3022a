# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of a sidecar: a TOML file, overridden by the environment, overridden by flags.

All three use the same names: `port` in the file, MWATCH_PORT, --port. The exceptions are flags that
are named as in the other commands, such as --name for `run`. An unknown key in the file or an
invalid value is an error that names it. Other variables are ignored. An empty variable counts as
not set, because manifests often contain empty ones.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from mwatch.config import loader

DEFAULT_DIR = "/mwatch"
DEFAULT_PORT = 9401
DEFAULT_HOST = "::"
Name = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9][\w.+/-]{0,252}\Z",
        description="a name of letters, digits, dots and dashes",
    ),
]
Port = Annotated[int, Meta(ge=0, le=65535, description="a port from 0 to 65535 (0: any)")]
Endpoint = Annotated[
    str, Meta(pattern=r"\Ahttps?://\S+\Z", description="an address such as http://HOST:4318")
]
_REPLICA = re.compile(
    r"-(?:(?:master|worker|chief|launcher|ps|node|workers)-)?(?:\d+-)?\d+(?:-[a-z0-9]{5})?"
)
"""Suffix of a pod's name, which operators append to the job's: `-worker-3`, `-node-0-3-x7k2p`."""


@dataclass(frozen=True, slots=True)
class SidecarSettings:
    dir: Path
    run: Name
    pod: Name  # also the name of its event stream
    pod_uid: Name | None = None
    namespace: Name | None = None
    node: Name | None = None
    host: str = DEFAULT_HOST  # all IPv6 and IPv4 addresses; only IPv4 if IPv6 is off
    port: Port = DEFAULT_PORT
    save: Path | None = None
    policy: Path | None = None
    evidence: Path | None = None
    token_file: Path | None = None
    mode: Literal["observe", "act"] | None = None  # only reported; acting is up to the controller
    otlp_endpoint: Endpoint | None = None
    tensorboard: Path | None = None  # the trainer's event files
    tensorboard_notes: Path | None = None  # folder for the event files that mwatch writes
    no_page: bool = False  # do not serve the page of the run at /
    json_logs: bool = False
    until_final: bool = False  # exit when the wrapper reports that no attempt follows in this pod


_TYPES = loader.hints_of(SidecarSettings)
VARIABLES = {name: f"MWATCH_{name.upper()}" for name in _TYPES} | {
    "otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT"
}
_FLAGS = {"run": "--name", "save": "--checkpoints", "json_logs": "--json"}
"""Flags named as in the other commands; the file and the environment use the field names."""
CONFIG_VARIABLE = "MWATCH_CONFIG"
_JOB_VARIABLE = "MWATCH_JOB"


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    hostname: Callable[[], str] = socket.gethostname,
) -> SidecarSettings:
    """`flags`: values by field name, and `config`; None: not given. Raises InputError."""
    config = flags.get("config") or environ.get(CONFIG_VARIABLE) or None
    chosen: dict[str, Any] = {}
    if config is not None:
        text = loader.read_text(Path(config), "the path of --config")
        chosen = loader.TomlSource(str(config), text, strict=False).values(SidecarSettings)
    for name, variable in VARIABLES.items():
        if environ.get(variable):
            chosen[name] = _checked(name, environ[variable], f"${variable}")
        if flags.get(name) is not None:
            chosen[name] = _checked(name, flags[name], flag_of(name))
    chosen.setdefault("dir", Path(DEFAULT_DIR))
    chosen.setdefault("pod", _safe(hostname()))
    chosen.setdefault("run", _safe(environ.get(_JOB_VARIABLE) or run_of(chosen["pod"])))
    return SidecarSettings(**chosen)


def flag_of(name: str) -> str:
    """The flag of `mwatch sidecar` for a setting."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def _checked(name: str, value: Any, origin: str) -> Any:
    return loader.checked(value, _TYPES[name], origin, strict=False)


def run_of(pod: str) -> str:
    """The name of the job, derived from the pod's name as operators form it."""
    return re.sub(_REPLICA.pattern + "$", "", pod) or pod


def _safe(name: str) -> str:
    return re.sub(r"[^\w.+/-]", "-", name)[:253] or "pod"
