# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Commands for operator overrides: `pause`, `resume`, `mode`, `restart` and `stop`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from mwatch.cli.shared import options
from mwatch.cli.shared.cluster import exit_if_unreachable
from mwatch.cli.shared.json_output import write_json
from mwatch.cli.shared.options import argument, flag, option
from mwatch.cli.shared.terminal import write
from mwatch.errors import InputError

if TYPE_CHECKING:
    from mwatch.model.kube.job import KubeJob
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
    if as_json:
        write_json("change", result.body)
    else:
        write("\n".join(result.lines))
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


_PODS_ASKED = 8
Yes = Annotated[bool, flag("--yes", "Do not ask first.")]
Runs = Annotated[Path, option("DIR", "Read the folders of runs here.")]
JobOrRun = Annotated[
    str, argument("JOB|RUN", "Name the job, or KIND/NAME; or a run of 'mwatch run', or its folder.")
]


def stop(
    job: JobOrRun,
    *,
    yes: Yes = False,
    runs: Runs = Path("runs"),
    reason: Reason = "",
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
    as_json: options.AsJson = False,
) -> None:
    """Save and stop a job until 'mwatch resume'.

    The job is suspended; a StatefulSet is scaled to 0, and in a queue of Kueue the Workload is
    deactivated. Its pods get SIGTERM, on which a trainer with --exit-signal-handler saves. The
    command asks first, follows the pods until they have ended, and reports the last checkpoint.
    No controller restarts a job that was stopped.

    A run of 'mwatch run' on this machine is ended with its trainer, also one whose 'mwatch run'
    was killed. With -n, --context or --kubeconfig every name is a job.

    Exit codes: 0 stopped; 1 refused, not confirmed, or some of it still runs; 2 bad usage or no
    such job; 3 the cluster is unreachable.

    Example: mwatch stop gpt -n training --reason 'new data'
    """
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError("stop asks before it acts, and there is no terminal: add --yes")
    from mwatch.run.ui import is_run

    if not any((namespace, kubeconfig, context)) and any(map(is_run, (Path(job), runs / job))):
        _stop_run(Path(job), runs, reason, yes=yes, as_json=as_json)

    def work(overrides: JobOverrides) -> CommandResult:
        from mwatch.diagnose.checkpoints import checkpoints_of
        from mwatch.operate.stop import ManualStop

        def newest(found: KubeJob) -> int | None:
            known = checkpoints_of(overrides.access, found, time.time(), _PODS_ASKED)
            return None if known.newest_complete is None else known.newest_complete.iteration

        manual = ManualStop(overrides, newest)
        plan = manual.prepare(job)
        if plan.refusal is None and not yes:
            _confirm(plan.lines)
        return manual.run(plan, reason, lambda text: print(text, file=sys.stderr, flush=True))

    carry_out((namespace, kubeconfig, context), work, as_json=as_json)


def _stop_run(run: Path, runs: Path, reason: str, *, yes: bool, as_json: bool) -> NoReturn:
    from mwatch.run import unattended
    from mwatch.run.ui import folder_of

    folder = folder_of(run, runs)
    found = unattended.find_just_started(folder)
    if not yes:
        _confirm([f"run {folder.path} on this machine" if found is None else found.text])
    text, is_ended = unattended.end(
        folder, reason or "mwatch stop", lambda line: print(line, file=sys.stderr, flush=True)
    )
    if as_json:
        body = {"version": 1, "command": "stop", "run": folder.name, "text": text, "notes": []}
        write_json("change", body)
    else:
        write(text)
    raise typer.Exit(0 if is_ended else 1)


def _confirm(lines: list[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
    if not typer.confirm("Stop it?", err=True):
        print("mwatch: not stopped", file=sys.stderr)
        raise typer.Exit(1)
