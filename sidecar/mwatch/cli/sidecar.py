# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch sidecar`: watches the training container of its pod until the pod ends.

Exit codes: 0 stopped by SIGTERM or SIGINT, or the last attempt is over; 2 bad options.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from mwatch.cli.shared.options import Policy, TensorboardNotes, flag, option

Dir = Annotated[
    Path | None, option("DIR", "Read the volume shared with the trainer here; by default /mwatch.")
]
Run = Annotated[str | None, option("NAME", "Name the run.", "--name")]
Pod = Annotated[str | None, option("NAME", "Name this pod; by default after the host.")]
PodUid = Annotated[str | None, option("UID", "Give the UID of this pod.")]
Namespace = Annotated[str | None, option("NAME", "Give the namespace of this pod.")]
Node = Annotated[str | None, option("NAME", "Give the node of this pod.")]
Host = Annotated[
    str | None, option("ADDRESS", "Listen on this address; by default on all, IPv6 and IPv4.")
]
Port = Annotated[
    str | None,
    option("PORT", "Listen on this port or the next free one; by default 9401; 0 takes any."),
]
Save = Annotated[
    Path | None,
    option(
        "DIR",
        "Read the checkpoints here; by default where the trainer saves them.",
        "--checkpoints",
    ),
]
Config = Annotated[
    Path | None, option("FILE", "Read options from this TOML file, for example port = 9401.")
]
Otlp = Annotated[
    str | None,
    option("URL", "Export by OTLP to this URL; by default $OTEL_EXPORTER_OTLP_ENDPOINT."),
]
Tensorboard = Annotated[
    Path | None, option("DIR", "Read the trainer's TensorBoard event files here.")
]
Token = Annotated[
    Path | None,
    option("FILE", "Accept evidence and restart requests that carry the token in this file."),
]
EvidenceDir = Annotated[
    Path | None,
    option(
        "DIR",
        "Write evidence bundles here; by default to the volume and, in mode act, beside the "
        "checkpoints.",
    ),
]
Mode = Annotated[
    str | None, option("observe|act", "Report this mode in metrics; only the controller acts.")
]
NoPage = Annotated[
    bool | None,
    flag("--no-page", "Do not serve the page of the run at /.", show_default=False),
]
JsonLogs = Annotated[
    bool | None,
    flag("--json", "Print messages as JSON, one object per line.", show_default=False),
]
UntilFinal = Annotated[
    bool | None,
    flag("--until-final", "Exit soon after the last attempt of this pod ends.", show_default=False),
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
    tensorboard_notes: TensorboardNotes = None,
    token_file: Token = None,
    evidence: EvidenceDir = None,
    mode: Mode = None,
    no_page: NoPage = None,
    json_logs: JsonLogs = None,
    until_final: UntilFinal = None,
) -> None:
    """Watch the training container of this pod and export metrics.

    The sidecar serves /metrics, /healthz, /v1/snapshot and the page of the run, records incidents
    and collects evidence. It never changes the training. Every option can also be set in the
    --config file or in a variable such as MWATCH_POD_UID for --pod-uid; a flag overrides a
    variable, and a variable overrides the file. In both, --name is run, --checkpoints is save, and
    --json is json_logs.

    Example: mwatch sidecar --dir /mwatch --name gpt-7b --port 9401
    """
    given = {
        name: str(value) if isinstance(value, Path) else value for name, value in locals().items()
    }
    from mwatch.cli.sidecar_process import become
    from mwatch.config.sidecar import resolve

    become(resolve(given, os.environ))
