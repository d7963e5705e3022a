# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the commands that look at a cluster share: their options, and errors as exit codes.

Exit codes: 2 there is no such job (or bad usage), 3 the cluster cannot be seen: no configuration,
no right, credentials that have expired, no answer.

What keeps a command from seeing a cluster, by the one name that the commands know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from mwatch.kube.errors import KubeError

CANNOT_SEE = 3
T = TypeVar("T")

Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="Of the job; else the context's."),
]
Kubeconfig = Annotated[
    str | None, typer.Option(metavar="FILE", help="Else KUBECONFIG, else ~/.kube/config.")
]
Context = Annotated[str | None, typer.Option(metavar="NAME", help="Of that file.")]


def seen(look: Callable[[], T], name: str = "") -> T:
    """What `look` gives; where no cluster can be seen, one line and exit code 3.

    `name`: what was taken for a job only because it is nothing on this machine.
    """

    try:
        return look()
    except CannotSee as error:
        doubt = f"{name}: no such file or folder, so a job of a cluster; but " if name else ""
        print(f"mwatch: {doubt}{error}", file=sys.stderr)
        raise typer.Exit(CANNOT_SEE) from None


def is_job(name: str, *options: str | None) -> bool:
    """Not something on this machine: a path that is there, or `-`, is a recording."""
    if any(each is not None for each in options):
        return True
    return name != "-" and not os.path.lexists(name) and not _is_path(name)


def _is_path(name: str) -> bool:
    """Names of jobs have neither; `pytorchjob/gpt` is a kind and a name, `logs/a.log` is not."""
    head, slash, _ = name.rpartition("/")
    kinds = ("pytorchjob", "jobset", "trainjob", "job", "statefulset")
    if slash and head.lower().partition(".")[0].removesuffix("s") in kinds:
        return False
    return bool(slash) or name.endswith((".log", ".txt", ".out", ".json", ".gz"))


CannotSee = KubeError
