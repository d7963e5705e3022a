# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Helpers to declare the options of a command, and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """An option with a value. Its flag is the name of the parameter, unless `names` are given."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def flag(name: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(name, *names, help=text, **more)


def argument(metavar: str, text: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=text, **more)


AsJson = Annotated[bool, flag("--json", "Print JSON.")]
Catalogue = Annotated[
    list[Path] | None, option("FILE", "Add the faults of this TOML file; repeatable.")
]
Checkpoints = Annotated[
    list[str] | None, option("DIR", "Read the checkpoints in this folder too; repeatable.")
]
Context = Annotated[str | None, option("NAME", "Use this context of the kubeconfig.")]
Kubeconfig = Annotated[
    str | None, option("FILE", "Use this kubeconfig; by default $KUBECONFIG or ~/.kube/config.")
]
Namespace = Annotated[
    str | None,
    option("NAME", "Use this namespace; by default the one of the context.", "--namespace", "-n"),
]
Notify = Annotated[
    list[str] | None,
    option(
        "URL",
        "Notify this service of incidents, such as slack://A/B/C; repeatable; by default "
        "$MWATCH_NOTIFY, which keeps the secret in the URL off the command line.",
    ),
]
Plain = Annotated[bool, flag("--plain", "Print plain lines on a terminal too.")]
Policy = Annotated[Path | None, option("FILE", "Read thresholds from this TOML file.")]
TensorboardNotes = Annotated[
    Path | None, option("DIR", "Write incidents as TensorBoard text into this folder.")
]
Until = Annotated[
    str | None,
    option("TIME|now", "Assume the run was still up then, so that silence until then counts."),
]


def notify_urls(given: Sequence[str] | None) -> tuple[str, ...]:
    """The URLs of the flag, else of the environment variable. The variable is removed before the
    trainer starts, which must not inherit the secrets."""
    variable = os.environ.pop("MWATCH_NOTIFY", "")
    return tuple(given or variable.split())
