# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch ui`: show runs of this machine, a job or a fleet in a browser.

Pages of a cluster are proxied from the controller, or from a sidecar if there is no controller.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mwatch.cli.shared.cluster import exit_if_unreachable, is_job
from mwatch.cli.shared.options import Context, Kubeconfig, Namespace, argument, flag, option

if TYPE_CHECKING:
    from mwatch.export.http.server import Pages

Name = Annotated[
    str | None,
    argument(
        "[RUN|JOB]",
        "Show this run of 'mwatch run' (its folder or name), or this job; by default list all "
        "runs, or with -n all jobs.",
    ),
]
Runs = Annotated[Path, option("DIR", "Read the folders of runs here.")]
Port = Annotated[
    int,
    option("PORT", "Listen on this port or the next free one; 0 takes any.", min=0, max=65535),
]
NoBrowser = Annotated[bool, flag("--no-browser", "Print the address and open no browser.")]


def ui(
    name: Name = None,
    *,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    runs: Runs = Path("runs"),
    port: Port = 9403,
    no_browser: NoBrowser = False,
) -> None:
    """Show a run, a job or all of them as pages in a browser.

    A name that is no run, file or folder here is a job; with -n, --context or --kubeconfig every
    name is. The pages of a job come from the controller, else from one of its sidecars, through
    the API server; they need no more rights than 'mwatch diagnose'.

    The pages are read-only, are served on the loopback address only, and follow what goes on. A
    browser is opened if there is one and the output is a terminal. Ctrl-C ends the command.

    Exit codes: 0 ended by Ctrl-C, 2 bad input or no such job, 3 the cluster is unreachable, or
    neither controller nor sidecar answers.

    Example: mwatch ui runs/pretrain_gpt-1115-0312

    Example: mwatch ui megatron-training -n training
    """
    from mwatch.run.ui import is_run, pages_of, unattended

    where = (namespace, kubeconfig, context)
    is_here = not any(where) and (name is None or is_run(runs / name) or not is_job(name))
    if is_here:
        run = None if name is None else Path(name)
        pages = pages_of(run, runs)
        for each in unattended(run, runs):
            typer.echo(f"mwatch: {each.text}; {each.fix}", err=True)
        _serve(pages, "/", port, no_browser)
        return
    with _pages_of_cluster(name or "", where) as (pages, path):
        _serve(pages, path, port, no_browser)


def _serve(pages: Pages, path: str, port: int, no_browser: bool) -> None:
    from mwatch.run.ui import serve
    from mwatch.runtime.shutdown import asked_to_end

    with asked_to_end() as asked:
        server = serve(pages, port)
        try:
            address = f"http://127.0.0.1:{server.port}{path}"
            typer.echo(f"{address}  (Ctrl-C ends it)")
            sys.stdout.flush()
            if not no_browser and sys.stdout.isatty() and has_browser(os.environ):
                import webbrowser

                webbrowser.open(address)
            asked.wait()
        finally:
            server.close()


@contextmanager
def _pages_of_cluster(
    name: str, where: tuple[str | None, str | None, str | None]
) -> Iterator[tuple[Pages, str]]:
    """The pages, and the path of the first one."""
    from mwatch.diagnose.forward import Forward, find_pages, find_sidecar
    from mwatch.diagnose.job import JobRequest
    from mwatch.kube.access import open_access

    request = JobRequest(name, *where)
    with exit_if_unreachable("" if any(where) else name):
        access = open_access(where[1], where[2])
    with closing(access):
        with exit_if_unreachable("" if any(where) else name):
            found = find_pages(access, request)
        typer.echo(f"mwatch: pages of {found.text}", err=True)
        look_again = partial(find_sidecar, access, request) if found.is_sidecar else None
        yield Forward(access, found, look_again).pages(), found.path


def has_browser(environ: Mapping[str, str]) -> bool:
    """Whether a browser would open in a window: one in the terminal would hide the address."""
    named = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(environ.get(name) for name in named)
