# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch restart`: a person restarts all pods of a job together."""

from __future__ import annotations

from typing import Annotated

import typer

from mwatch.cli.cluster import Context, Kubeconfig, Namespace
from mwatch.cli.people import Job, Reason, carry_out
from mwatch.cli.recorded import AsJson

From = Annotated[
    int | None,
    typer.Option(
        "--from", metavar="N", min=0, help="Iteration of the checkpoint; else the newest good one."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how it would be done.")]


def restart(
    job: Job,
    *,
    resume_from: From = None,
    dry_run: DryRun = False,
    reason: Reason = "",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Restart the gang of a job: by the controller, or without one by this command itself.

    The controller saves evidence first, restarts in place where it can, and tells the pods which
    checkpoint to take. --from rolls back: newer checkpoints are not used again, nor removed.

    Exit code: 0 done or handed over, 1 refused (the reason is told), 2 bad usage or no such job,
    3 the cluster cannot be seen.

    Example: mwatch restart gpt --from 45000 --reason 'loss went wrong at 45200'
    """

    def work(people):  # type: ignore[no-untyped-def]
        from mwatch.app.people_restart import PersonRestart

        return PersonRestart(people).run(job, reason, resume_from=resume_from, is_dry_run=dry_run)

    carry_out((namespace, kubeconfig, context), work, as_json=as_json)
