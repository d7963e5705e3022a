# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch sidecar`: watches the training container of its pod until the pod ends.

Exit codes: 0 stopped by SIGTERM or SIGINT, or the last attempt is over; 2 bad options.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Dir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Read the volume shared with the trainer here; by default /mwatch."
    ),
]
Run = Annotated[str | None, typer.Option(metavar="NAME", help="Name the run.")]
Pod = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name this pod; by default after the host.")
]
PodUid = Annotated[str | None, typer.Option(metavar="UID", help="Give the UID of this pod.")]
Namespace = Annotated[
    str | None, typer.Option(metavar="NAME", help="Give the namespace of this pod.")
]
Node = Annotated[str | None, typer.Option(metavar="NAME", help="Give the node of this pod.")]
Host = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Listen on this address; by default on all, IPv6 and IPv4."
    ),
]
Port = Annotated[
    str | None,
    typer.Option(
        metavar="PORT",
        help="Listen on this port or the next free one; by default 9401; 0 takes any.",
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Read the checkpoints here; by default where the trainer saves them."
    ),
]
Policy = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Read thresholds from this TOML file.")
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Read options from this TOML file, for example port = 9401."),
]
Otlp = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Export by OTLP to this URL; by default $OTEL_EXPORTER_OTLP_ENDPOINT."
    ),
]
Tensorboard = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Read the trainer's TensorBoard event files here."),
]
Notes = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write incidents as TensorBoard text into this folder."),
]
Token = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Accept evidence and restart requests that carry the token in this file.",
    ),
]
EvidenceDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write evidence bundles here; by default to the volume and, in mode act, beside the "
        "checkpoints.",
    ),
]
Mode = Annotated[
    str | None,
    typer.Option(
        metavar="observe|act", help="Report this mode in metrics; only the controller acts."
    ),
]
JsonLogs = Annotated[
    bool | None,
    typer.Option(
        "--json-logs", help="Print messages as JSON, one object per line.", show_default=False
    ),
]
UntilFinal = Annotated[
    bool | None,
    typer.Option(
        "--until-final",
        help="Exit soon after the last attempt of this pod ends.",
        show_default=False,
    ),
]


def sidecar(
    *,
    dir: Dir = None,
    run: Run = None,
    pod: Pod = None,
    pod_uid: PodUid = None,
    namespace: Namespace = None,
    node: Node = None,
    host: Host = None,
    port: Port = None,
    save: Save = None,
    policy: Policy = None,
    config: Config = None,
    otlp_endpoint: Otlp = None,
    tensorboard: Tensorboard = None,
    tensorboard_notes: Notes = None,
    token_file: Token = None,
    evidence: EvidenceDir = None,
    mode: Mode = None,
    json_logs: JsonLogs = None,
    until_final: UntilFinal = None,
) -> None:
    """Watch the training container of this pod and export metrics.

    The sidecar serves /metrics, /healthz and /v1/snapshot, records incidents and collects
    evidence. It never changes the training. Every option can also be set in the --config file or
    in a variable such as MWATCH_POD_UID for --pod-uid; a flag overrides a variable, and a variable
    overrides the file.

    Example: mwatch sidecar --dir /mwatch --run gpt-7b --port 9401
    """
    given = {name: _plain(value) for name, value in locals().items()}
    from mwatch.cli.sidecar_process import become
    from mwatch.config.sidecar import resolve

    become(resolve(given, os.environ))


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
