# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the commands of people share: their options, and how the outcome is told.

Exit codes: 0 done, 1 refused, 2 bad usage or no such job, 3 the cluster cannot be seen.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mwatch.cli.cluster import seen
from mwatch.cli.output import write

if TYPE_CHECKING:
    from mwatch.app.people import People, Said

Job = Annotated[str, typer.Argument(metavar="JOB", help="Its name, or KIND/NAME.")]
JobOrNone = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Its name, or KIND/NAME.")]
All = Annotated[bool, typer.Option("--all", help="All jobs of the namespace, and those to come.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="For the Event and the ledger.")]
Where = tuple[str | None, str | None, str | None]


def carry_out(where: Where, work: Callable[[People], Said], *, as_json: bool) -> NoReturn:
    """`where`: namespace, kubeconfig and context."""
    namespace, kubeconfig, context = where

    def do() -> Said:
        from mwatch.app.diagnose_job import open_access
        from mwatch.app.people import People

        access = open_access(kubeconfig, context)
        try:
            return work(People(access, namespace))
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
