# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch status`: all watched jobs, one line each.

Exit codes: 0 all are healthy or finished (or there are none), 1 one has a problem, 2 bad usage,
3 a job or the cluster is unreachable.
"""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from mwatch.cli.cluster import Context, Kubeconfig, Namespace, seen
from mwatch.cli.output import write
from mwatch.cli.recorded import AsJson

AllNamespaces = Annotated[
    bool,
    typer.Option("--all-namespaces", "-A", help="Show the jobs of every namespace you may read."),
]


def status(
    namespace: Namespace = None,
    all_namespaces: AllNamespaces = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Show every watched job in one line.

    A watched job has the label mwatch.dev/watch. The controller is asked if one runs; otherwise
    some sidecars of each job, and Kubernetes. 'mwatch diagnose JOB' shows one job in full.

    Exit codes: 0 all are healthy, 1 a job has a problem, 3 a job or the cluster is unreachable.

    Example: mwatch status -n training
    """
    from mwatch.diagnose.fleet_status import Fleet, look
    from mwatch.kube.access import open_access

    def ask() -> Fleet:
        access = open_access(kubeconfig, context)
        try:
            space = None if all_namespaces else namespace or access.namespace
            return look(access, space, time.time())
        finally:
            access.close()

    fleet = seen(ask)
    if as_json:
        write(json.dumps(fleet.to_json(), indent=2))
    else:
        from mwatch.cli.render.fleet import render
        from mwatch.cli.terminal import show, width

        show(render(fleet, with_namespace=all_namespaces, columns=width()))
    raise typer.Exit(fleet.exit_code)
