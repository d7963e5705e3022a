# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch resume`: gives a job back to mwatch, and starts it where mwatch had stopped it."""

from __future__ import annotations

from mwatch.cli.cluster import Context, Kubeconfig, Namespace
from mwatch.cli.people import All, JobOrNone, Reason, carry_out, one_of
from mwatch.cli.recorded import AsJson


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
