# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch ui`: shows the runs of this machine in a browser, while they run and afterwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from mwatch.cli.options import argument, flag, option

Run = Annotated[
    Path | None,
    argument("[RUN]", "Show this run of 'mwatch run' (its folder or name); by default list all."),
]
Runs = Annotated[Path, option("DIR", "Read the folders of runs here.")]
Port = Annotated[
    int,
    option("PORT", "Listen on this port or the next free one; 0 takes any.", min=0, max=65535),
]
NoBrowser = Annotated[bool, flag("--no-browser", "Print the address and open no browser.")]


def ui(
    run: Run = None,
    *,
    runs: Runs = Path("runs"),
    port: Port = 9403,
    no_browser: NoBrowser = False,
) -> None:
    """Show runs of this machine as pages in a browser.

    The pages are read-only, are served on the loopback address only, and follow a run that goes on.
    A browser is opened if there is one and the output is a terminal. Ctrl-C ends the command.

    Exit codes: 0 ended by Ctrl-C, 2 bad input.

    Example: mwatch ui runs/pretrain_gpt-1115-0312
    """
    from mwatch.run.ui import pages_of, serve
    from mwatch.runtime.shutdown import asked_to_end

    with asked_to_end() as asked:
        server = serve(pages_of(run, runs), port)
        try:
            address = f"http://127.0.0.1:{server.port}/"
            typer.echo(f"{address}  (Ctrl-C ends it)")
            sys.stdout.flush()
            if not no_browser and sys.stdout.isatty() and has_browser(os.environ):
                import webbrowser

                webbrowser.open(address)
            asked.wait()
        finally:
            server.close()


def has_browser(environ: Mapping[str, str]) -> bool:
    """Whether a browser would open in a window: one in the terminal would hide the address."""
    named = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    return sys.platform == "darwin" or any(environ.get(name) for name in named)
