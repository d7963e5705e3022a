# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the commands that read a cluster share: their options, and errors as exit codes.

Exit codes: 2 no such job, or bad usage; 3 the cluster is unreachable: no configuration, no
permission, expired credentials, or no answer.
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
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Use this namespace; by default the one of the context.",
    ),
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Use this kubeconfig; by default $KUBECONFIG or ~/.kube/config."
    ),
]
Context = Annotated[
    str | None, typer.Option(metavar="NAME", help="Use this context of the kubeconfig.")
]


def seen(look: Callable[[], T], name: str = "") -> T:
    """What `look` returns; if the cluster is unreachable, one line and exit code 3.

    `name`: an argument taken for a job only because no such file exists here.
    """

    try:
        return look()
    except CannotSee as error:
        doubt = f"{name} is not a file or folder here, so it must be a job; but " if name else ""
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
