# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch mode`: whether mwatch may act on a job, or only observes it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mwatch.cli.cluster import Context, Kubeconfig, Namespace
from mwatch.cli.people import Job, Reason, carry_out
from mwatch.cli.recorded import AsJson


class Wanted(StrEnum):
    OBSERVE = "observe"
    ACT = "act"


Mode = Annotated[
    Wanted, typer.Argument(metavar="observe|act", help="What mwatch may do.", show_default=False)
]


def mode(
    job: Job,
    wanted: Mode,
    *,
    reason: Reason = "",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Let mwatch act on a job, or only observe it.

    Exit code: 0 done, 2 bad usage or no such job, 3 the cluster cannot be seen.

    Example: mwatch mode gpt act --reason 'observed well for a week'
    """
    carry_out(
        (namespace, kubeconfig, context),
        lambda people: people.mode(job, wanted.value, reason),
        as_json=as_json,
    )
