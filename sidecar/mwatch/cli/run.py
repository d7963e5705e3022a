# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run`: watches a training command on this machine and, with --act, restarts it.

Exit codes without --act: that of the command (128 plus its number for a signal). With --act: 0
training finished or ended on request, 1 a fault that only the user can fix, 93 given up, else that
of `mwatch-run --act`. 130 interrupted (SIGTERM: 143, SIGHUP: 129).
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from mwatch.cli.render.run_lines import RunLines
from mwatch.cli.shared.options import (
    Notify,
    Plain,
    Policy,
    TensorboardNotes,
    argument,
    flag,
    notify_urls,
    option,
)

if TYPE_CHECKING:
    from mwatch.run.assemble import ShownRun
    from mwatch.watch.watcher import RunObserver

Command = Annotated[list[str] | None, argument("-- CMD...", "Run this training command.")]
Act = Annotated[
    bool, flag("--act", "Stop and restart the run when it fails; without it, only report.")
]
Name = Annotated[str | None, option("NAME", "Name the run; by default after the training script.")]
Runs = Annotated[Path, option("DIR", "Keep the folders of runs here.")]
Checkpoints = Annotated[
    Path | None,
    option("DIR", "Read the checkpoints here, if the command line does not show where."),
]
Port = Annotated[
    int,
    option(
        "PORT",
        "Serve the page and /metrics on this port, or the next free one; 0 serves nothing.",
        min=0,
        max=65535,
    ),
]
Grace = Annotated[
    float, option("SECONDS", "Wait this long for a last checkpoint after Ctrl-C.", min=0, max=3600)
]
Quiet = Annotated[bool, flag("--quiet", "Keep the trainer's output in the log file only.", "-q")]
AsJson = Annotated[bool, flag("--json", "Print messages as JSON, one object per line.")]
Otlp = Annotated[
    str | None,
    option(
        "URL",
        "Export by OTLP to this URL; by default $OTEL_EXPORTER_OTLP_ENDPOINT.",
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
        show_envvar=False,
    ),
]
Adopt = Annotated[
    Path | None,
    option("RUN", "Watch this run (its folder or name), whose 'mwatch run' was killed; no CMD."),
]
NoPage = Annotated[bool, flag("--no-page", "Serve /metrics without the page of the run.")]
NoProbe = Annotated[bool, flag("--no-probe", "Do not start the probe inside the trainer.")]


def run(
    command: Command = None,
    *,
    act: Act = False,
    policy: Policy = None,
    name: Name = None,
    runs: Runs = Path("runs"),
    checkpoints: Checkpoints = None,
    port: Port = 9401,
    grace: Grace = 30.0,
    plain: Plain = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    no_probe: NoProbe = False,
    no_page: NoPage = False,
    otlp_endpoint: Otlp = None,
    tensorboard_notes: TensorboardNotes = None,
    notify: Notify = None,
    adopt: Adopt = None,
) -> None:
    """Run a training command under watch; with --act, restart it on failure.

    Without --act the command runs as given and its exit code is returned; mwatch only reports what
    it would have done. The trainer's output passes through unchanged; on a terminal it scrolls
    above the state of the run, without its escape sequences. Evidence, curves and incidents are
    kept in runs/NAME; 'mwatch report runs/NAME' turns them into one page.

    Example: mwatch run -- torchrun --nproc-per-node 8 pretrain_gpt.py --save ckpt

    If mwatch is killed, the training goes on: --adopt watches it again, 'mwatch stop' ends it.

    Example: mwatch run --act --name gpt -- bash train.sh

    Example: mwatch run --adopt runs/gpt
    """
    if adopt is not None and (command or name or checkpoints):
        raise typer.BadParameter("an adopted run has its command, name and checkpoints already")
    if adopt is None and not command:
        raise typer.BadParameter("give the training command after --", param_hint="CMD")
    from mwatch.run import assemble as app
    from mwatch.run.process import TrainerOutput

    streams = (sys.stderr,) if quiet else (sys.stderr, sys.stdout)
    on_terminal = not (plain or as_json) and is_screen(*streams)
    output = TrainerOutput.VIEW if on_terminal else TrainerOutput.DIRECT
    request = app.RunRequest(
        argv=command or (), is_act=act, policy=policy, name=name, parent=runs, save=checkpoints,
        port=port or None, grace_seconds=grace, has_probe=not no_probe,
        has_page=not no_page,
        output=TrainerOutput.LOG_ONLY if quiet else output,
        otlp_endpoint=otlp_endpoint or None, tensorboard_notes=tensorboard_notes,
        notify=notify_urls(notify),
    )  # fmt: skip
    if adopt is not None:
        from mwatch.run.ui import folder_of

        request = app.adopt(request, folder_of(adopt, runs))
        act = request.is_act
    view = partial(view_of, is_act=act, on_terminal=on_terminal, as_json=as_json, is_quiet=quiet)
    raise typer.Exit(app.run(request, view).exit_code)


def is_screen(*streams: IO[str] | None) -> bool:
    """Whether a panel can be drawn; a closed stream is None."""
    are_terminals = all(each is not None and each.isatty() for each in streams)
    return are_terminals and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def view_of(
    run: ShownRun, *, is_act: bool, on_terminal: bool, as_json: bool, is_quiet: bool = False
) -> RunObserver:
    mode = "act" if is_act else "observe"
    view: RunObserver
    if on_terminal:
        from mwatch.cli.render.run_screen import RunScreen

        view = RunScreen(run, mode)
    else:
        view = RunLines(as_json=as_json, folder=run.folder)
        view.noted(f"run {run.folder.name} ({mode}): {run.where}")
    if is_quiet:
        view.noted(f"the trainer's output is in {os.path.relpath(run.folder.log)} only")
    return view
