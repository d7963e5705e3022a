# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch pause`: a person takes a job over, or all of them. Nothing is acted on meanwhile."""

from __future__ import annotations

from typing import Annotated

import typer

from mwatch.cli.cluster import Context, Kubeconfig, Namespace
from mwatch.cli.people import All, JobOrNone, carry_out, one_of
from mwatch.cli.recorded import AsJson

Reason = Annotated[
    str, typer.Option(metavar="TEXT", help="Why; for the Event and the ledger.", show_default=False)
]
For = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="30m, 2h, 1d; else until 'resume'.")
]


def pause(
    job: JobOrNone = None,
    *,
    reason: Reason,
    is_all: All = False,
    duration: For = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Keep mwatch from doing anything to a job, or with --all to any job of the namespace.

    It watches on and says what it finds. A restart that is under way is finished. Works with and
    without a controller; 'mwatch resume' ends it.

    Exit code: 0 done, 2 bad usage or no such job, 3 the cluster cannot be seen.

    Example: mwatch pause gpt --for 2h --reason 'changing the switch'
    """
    one_of(job, is_all)
    from mwatch.app.people import seconds_of

    seconds = None if duration is None else seconds_of(duration)
    carry_out(
        (namespace, kubeconfig, context),
        lambda people: (
            people.pause_all(seconds, reason) if job is None else people.pause(job, seconds, reason)
        ),
        as_json=as_json,
    )
