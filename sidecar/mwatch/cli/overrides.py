# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The commands that override mwatch: `pause`, `resume`, `mode` and `restart`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from mwatch.cli import options
from mwatch.cli.cluster import exit_if_unreachable
from mwatch.cli.options import argument, flag, option
from mwatch.cli.terminal import write

if TYPE_CHECKING:
    from mwatch.operate.overrides import CommandResult, JobOverrides


Job = Annotated[str, argument("JOB", "Name the job, or give KIND/NAME.")]
JobOrNone = Annotated[str | None, argument("[JOB]", "Name the job, or give KIND/NAME.")]
All = Annotated[bool, flag("--all", "Apply to all jobs of the namespace, present and future.")]
Reason = Annotated[str, option("REASON", "Record this reason in the Event and the ledger.")]
Where = tuple[str | None, str | None, str | None]


def carry_out(
    where: Where, work: Callable[[JobOverrides], CommandResult], *, as_json: bool
) -> NoReturn:
    """`where`: namespace, kubeconfig and context."""
    from mwatch.kube.access import open_access
    from mwatch.operate.overrides import JobOverrides

    namespace, kubeconfig, context = where
    with exit_if_unreachable(), closing(open_access(kubeconfig, context)) as access:
        result = work(JobOverrides(access, namespace))
    write(json.dumps(dict(result.body), indent=2) if as_json else "\n".join(result.lines))
    raise typer.Exit(result.exit_code)


def one_of(job: str | None, is_all: bool) -> None:
    if (job is None) == (not is_all):
        print("mwatch: give one job, or --all", file=sys.stderr)
        raise typer.Exit(2)


PauseReason = Annotated[
    str, option("REASON", "Record this reason in the Event and the ledger.", show_default=False)
]
For = Annotated[
    str | None,
    option("TIME", "Pause for this long (30m, 2h, 1d); by default until 'mwatch resume'.", "--for"),
]


def pause(
    job: JobOrNone = None,
    *,
    reason: PauseReason,
    is_all: All = False,
    duration: For = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.AsJson = False,
) -> None:
    """Stop mwatch from acting on a job.

    With --all, pause every job of the namespace. mwatch still watches and reports. A restart in
    progress is completed. The command works with and without a controller; 'mwatch resume' ends
    the pause.

    Exit codes: 0 done, 2 bad usage or no such job, 3 the cluster is unreachable.

    Example: mwatch pause gpt --for 2h --reason 'changing the switch'
    """
    one_of(job, is_all)
    from mwatch.operate.overrides import seconds_of

    seconds = None if duration is None else seconds_of(duration)
    carry_out(
        (namespace, kubeconfig, context),
        lambda overrides: (
            overrides.pause_all(seconds, reason)
            if job is None
            else overrides.pause(job, seconds, reason)
        ),
        as_json=as_json,
    )


def resume(
    job: JobOrNone = None,
    *,
    is_all: All = False,
    reason: Reason = "",
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.AsJson = False,
) -> None:
    """End a pause.

    A job that mwatch has suspended is started again.

    Exit codes: 0 done, 2 bad usage or no such job, 3 the cluster is unreachable.

    Example: mwatch resume gpt
    """
    one_of(job, is_all)
    carry_out(
        (namespace, kubeconfig, context),
        lambda overrides: (
            overrides.resume_all(reason) if job is None else overrides.resume(job, reason)
        ),
        as_json=as_json,
    )


Mode = Annotated[
    Literal["observe", "act"],
    argument("observe|act", "Choose what mwatch may do.", show_default=False),
]


def mode(
    job: Job,
    wanted: Mode,
    *,
    reason: Reason = "",
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.AsJson = False,
) -> None:
    """Choose whether mwatch acts on a job or only observes it.

    Exit codes: 0 done, 2 bad usage or no such job, 3 the cluster is unreachable.

    Example: mwatch mode gpt act --reason 'observed for a week'
    """
    carry_out(
        (namespace, kubeconfig, context),
        lambda overrides: overrides.mode(job, wanted, reason),
        as_json=as_json,
    )


From = Annotated[
    int | None,
    option(
        "ITERATION",
        "Resume from the checkpoint of this iteration; by default the newest good one.",
        "--from",
        min=0,
    ),
]
DryRun = Annotated[bool, flag("--dry-run", "Print how the restart would be done, and do nothing.")]


def restart(
    job: Job,
    *,
    resume_from: From = None,
    dry_run: DryRun = False,
    reason: Reason = "",
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.AsJson = False,
) -> None:
    """Restart all pods of a job together.

    The controller does the restart if one runs; otherwise this command does. The controller saves
    evidence first, restarts in place if possible, and gives every pod the checkpoint to resume
    from. --from rolls back: newer checkpoints are not used again, and are not deleted.

    Exit codes: 0 done, or accepted by the controller; 1 refused, with the reason; 2 bad usage or no
    such job; 3 the cluster is unreachable.

    Example: mwatch restart gpt --from 45000 --reason 'loss spike at 45200'
    """

    def work(overrides: JobOverrides) -> CommandResult:
        from mwatch.operate.overrides import ManualRestart

        return ManualRestart(overrides).run(
            job, reason, resume_from=resume_from, is_dry_run=dry_run
        )

    carry_out((namespace, kubeconfig, context), work, as_json=as_json)
