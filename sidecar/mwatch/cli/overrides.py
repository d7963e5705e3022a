# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the commands of people share: their options, and how the outcome is told.

Exit codes: 0 done, 1 refused, 2 bad usage or no such job, 3 the cluster cannot be seen.

`mwatch pause`: a person takes a job over, or all of them. Nothing is acted on meanwhile.

`mwatch resume`: gives a job back to mwatch, and starts it where mwatch had stopped it.

`mwatch mode`: whether mwatch may act on a job, or only observes it.

`mwatch restart`: a person restarts all pods of a job together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mwatch.cli.cluster import Context, Kubeconfig, Namespace, seen
from mwatch.cli.output import write
from mwatch.cli.recorded import AsJson

if TYPE_CHECKING:
    from mwatch.operate.overrides import CommandResult, JobOverrides


Job = Annotated[str, typer.Argument(metavar="JOB", help="Its name, or KIND/NAME.")]
JobOrNone = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Its name, or KIND/NAME.")]
All = Annotated[bool, typer.Option("--all", help="All jobs of the namespace, and those to come.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="For the Event and the ledger.")]
Where = tuple[str | None, str | None, str | None]


def carry_out(
    where: Where, work: Callable[[JobOverrides], CommandResult], *, as_json: bool
) -> NoReturn:
    """`where`: namespace, kubeconfig and context."""
    namespace, kubeconfig, context = where

    def do() -> CommandResult:
        from mwatch.kube.access import open_access
        from mwatch.operate.overrides import JobOverrides

        access = open_access(kubeconfig, context)
        try:
            return work(JobOverrides(access, namespace))
        finally:
            access.close()

    said = seen(do)
    if as_json:
        write(json.dumps(dict(said.body), indent=2))
    else:
        write("\n".join(said.lines))
    raise typer.Exit(said.exit_code)


def one_of(job: str | None, is_all: bool) -> None:
    if (job is None) == (not is_all):
        print("mwatch: name one job, or give --all", file=sys.stderr)
        raise typer.Exit(2)


PauseReason = Annotated[
    str, typer.Option(metavar="TEXT", help="Why; for the Event and the ledger.", show_default=False)
]
For = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="30m, 2h, 1d; else until 'resume'.")
]


def pause(
    job: JobOrNone = None,
    *,
    reason: PauseReason,
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
    from mwatch.operate.overrides import seconds_of

    seconds = None if duration is None else seconds_of(duration)
    carry_out(
        (namespace, kubeconfig, context),
        lambda people: (
            people.pause_all(seconds, reason) if job is None else people.pause(job, seconds, reason)
        ),
        as_json=as_json,
    )


def resume(
    job: JobOrNone = None,
    *,
    is_all: All = False,
    reason: Reason = "",
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """End a pause. A job that mwatch has stopped (suspended) is started again.

    Exit code: 0 done, 2 bad usage or no such job, 3 the cluster cannot be seen.

    Example: mwatch resume gpt
    """
    one_of(job, is_all)
    carry_out(
        (namespace, kubeconfig, context),
        lambda people: people.resume_all(reason) if job is None else people.resume(job, reason),
        as_json=as_json,
    )


class WantedMode(StrEnum):
    OBSERVE = "observe"
    ACT = "act"


Mode = Annotated[
    WantedMode,
    typer.Argument(metavar="observe|act", help="What mwatch may do.", show_default=False),
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
        from mwatch.operate.restart import ManualRestart

        return ManualRestart(people).run(job, reason, resume_from=resume_from, is_dry_run=dry_run)

    carry_out((namespace, kubeconfig, context), work, as_json=as_json)
