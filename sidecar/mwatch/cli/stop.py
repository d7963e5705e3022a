# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch stop`: save and stop a job, after a question."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli import options
from mwatch.cli.options import flag
from mwatch.cli.overrides import Job, Reason, carry_out
from mwatch.errors import InputError

if TYPE_CHECKING:
    from mwatch.model.kube.job import KubeJob
    from mwatch.operate.overrides import CommandResult, JobOverrides

_PODS_ASKED = 8
Yes = Annotated[bool, flag("--yes", "Do not ask first.")]


def stop(
    job: Job,
    *,
    yes: Yes = False,
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

    Exit codes: 0 stopped; 1 refused, not confirmed, or some pods still run; 2 bad usage or no such
    job; 3 the cluster is unreachable.

    Example: mwatch stop gpt -n training --reason 'new data'
    """
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError("stop asks before it acts, and there is no terminal: add --yes")

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


def _confirm(lines: list[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr)
    if not typer.confirm("Stop it?", err=True):
        print("mwatch: not stopped", file=sys.stderr)
        raise typer.Exit(1)
