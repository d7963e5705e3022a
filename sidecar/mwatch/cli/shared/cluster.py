# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the commands that read a cluster: tell job names from paths, map errors to exit codes.

Exit codes: 2 no such job, or bad usage; 3 the cluster is unreachable: no configuration, no
permission, expired credentials, or no answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mwatch.kube.errors import KubeError

UNREACHABLE = 3
_KINDS = ("pytorchjob", "jobset", "trainjob", "job", "statefulset")


@contextmanager
def exit_if_unreachable(name: str = "") -> Iterator[None]:
    """Turn a KubeError into one line and exit code 3.

    `name`: an argument that was taken for a job because no such file exists here.
    """
    try:
        yield
    except KubeError as error:
        doubt = f"{name} is not a file or folder here, so it must be a job; but " if name else ""
        print(f"mwatch: {doubt}{error}", file=sys.stderr)
        raise typer.Exit(UNREACHABLE) from None


def is_job(name: str, *options: str | None) -> bool:
    """Whether a name is a job. An existing path, or `-`, is a recording, unless an option selects a
    cluster."""
    if any(each is not None for each in options):
        return True
    return name != "-" and not os.path.lexists(name) and not _is_path(name)


def _is_path(name: str) -> bool:
    """Whether a name looks like a path, such as `logs/a.log`, and not like `pytorchjob/gpt`."""
    head, slash, _ = name.rpartition("/")
    if slash and head.lower().partition(".")[0].removesuffix("s") in _KINDS:
        return False
    return bool(slash) or name.endswith((".log", ".txt", ".out", ".json", ".gz", ".tgz"))
