# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch sidecar`: watches the training container of its pod, for as long as the pod lives.

Exit codes: 0 asked to end (SIGTERM, SIGINT) or the last attempt is over, 2 bad options.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Dir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Shared with the trainer ($MWATCH_DIR; else /mwatch)."),
]
Run = Annotated[str | None, typer.Option(metavar="NAME", help="Of the run ($MWATCH_RUN).")]
Pod = Annotated[str | None, typer.Option(metavar="NAME", help="($MWATCH_POD; else the host's.)")]
PodUid = Annotated[str | None, typer.Option(metavar="UID", help="($MWATCH_POD_UID)")]
Namespace = Annotated[str | None, typer.Option(metavar="NAME", help="($MWATCH_NAMESPACE)")]
Node = Annotated[str | None, typer.Option(metavar="NAME", help="($MWATCH_NODE)")]
Host = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="To listen on (else all, IPv6 and IPv4).")
]
Port = Annotated[
    str | None,
    typer.Option(metavar="N", help="Else 9401; the next that is free; 0: any."),
]
Save = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The trainer's save folder, else found out.")
]
Policy = Annotated[Path | None, typer.Option(metavar="FILE", help="Thresholds of your own (TOML).")]
Config = Annotated[
    Path | None, typer.Option(metavar="FILE", help="These options as TOML: port = 9401.")
]
Otlp = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Send by OTLP too ($OTEL_EXPORTER_OTLP_ENDPOINT)."),
]
Tensorboard = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Read the trainer's event files.")
]
Notes = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write incidents there, for TensorBoard.")
]
Token = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Who has it may ask for evidence and restart.")
]
EvidenceDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="For bundles; else the volume, and beside the checkpoints in act."
    ),
]
Mode = Annotated[
    str | None,
    typer.Option(metavar="observe|act", help="Only told in metrics: the controller acts."),
]
JsonLogs = Annotated[
    bool | None, typer.Option("--json-logs", help="What it says as JSON lines.", show_default=False)
]
UntilFinal = Annotated[
    bool | None,
    typer.Option(
        "--until-final",
        help="End soon after the last attempt of this pod ($MWATCH_UNTIL_FINAL).",
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
    """Watch the training container of this pod: metrics, snapshots, incidents and evidence.

    Serves /metrics, /healthz and /v1/snapshot; changes nothing about the training. Every option
    may stand in --config, or in a variable MWATCH_NAME; a flag goes before a variable, a variable
    before the file.

    Example: mwatch sidecar --dir /mwatch --run gpt-7b --port 9401
    """
    given = {name: _plain(value) for name, value in locals().items()}
    from mwatch.cli.sidecar_process import become
    from mwatch.config.sidecar import resolve

    become(resolve(given, os.environ))


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value
