# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch run`: a training command of this machine, watched and (with --act) brought back.

Exit codes: when observing, the command's own (128 and its number for a signal); with --act 0 when
training finished or ended as it was asked to, 1 what only its user can mend, 93 given up, else
that of `mwatch-run --act`; 130 interrupted (SIGTERM: 143, SIGHUP: 129).
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mwatch.run.folder import RunFolder
    from mwatch.watch.observer import RunObserver

Command = Annotated[
    list[str] | None, typer.Argument(metavar="-- CMD...", help="The training command.")
]
Act = Annotated[bool, typer.Option("--act", help="Restart and stop the run; else only say so.")]
Policy = Annotated[Path | None, typer.Option(metavar="FILE", help="Thresholds of your own (TOML).")]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="Of the run, else its script's.")]
Runs = Annotated[Path, typer.Option(metavar="DIR", help="Where what is learnt of runs is kept.")]
Checkpoints = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The trainer's save folder, where its arguments hide it."),
]
Port = Annotated[
    int,
    typer.Option(
        metavar="N", min=0, max=65535, help="For /metrics, or the next that is free; 0: none."
    ),
]
Grace = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=0, max=3600, help="For a last save when you press Ctrl-C."),
]
Plain = Annotated[bool, typer.Option("--plain", help="Plain lines, also on a terminal.")]
AsJson = Annotated[bool, typer.Option("--json", help="What mwatch says as JSON lines.")]
Otlp = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="OTEL_EXPORTER_OTLP_ENDPOINT",
        show_envvar=False,
        help="Send by OTLP too, else $OTEL_EXPORTER_OTLP_ENDPOINT.",
    ),
]
Notes = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write incidents there, for TensorBoard.")
]
NoProbe = Annotated[bool, typer.Option("--no-probe", help="Start nothing inside the trainer.")]


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
    as_json: AsJson = False,
    no_probe: NoProbe = False,
    otlp_endpoint: Otlp = None,
    tensorboard_notes: Notes = None,
) -> None:
    """Watch a training command on this machine; with --act, bring it back when it fails.

    Without --act the command runs as given and its exit code is returned; what would have been
    done is told. The trainer's output passes through. Evidence, curves and incidents are kept
    under runs/NAME; 'mwatch report runs/NAME' makes one page of them.

    Example: mwatch run --act -- torchrun --nproc-per-node 8 pretrain_gpt.py --save ckpt ...
    """
    if not command:
        raise typer.BadParameter("name the command after --", param_hint="CMD")
    from mwatch.run import assemble as app

    request = app.RunRequest(
        argv=command, is_act=act, policy=policy, name=name, parent=runs, save=checkpoints,
        port=port or None, grace_seconds=grace, has_probe=not no_probe,
        shows_output=not (plain or as_json) and is_screen(sys.stderr, sys.stdout),
        otlp_endpoint=otlp_endpoint or None, tensorboard_notes=tensorboard_notes,
    )  # fmt: skip
    view = partial(view_of, is_act=act, on_terminal=request.shows_output, as_json=as_json)
    raise typer.Exit(app.run(request, view).exit_code)


def is_screen(*streams: IO[str] | None) -> bool:
    """Whether a panel can be drawn; a stream that was closed is None."""
    are_terminals = all(each is not None and each.isatty() for each in streams)
    return are_terminals and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def view_of(
    folder: RunFolder, where: str, *, is_act: bool, on_terminal: bool, as_json: bool
) -> RunObserver:
    """What a person, or a machine, sees of the run."""
    mode = "act" if is_act else "observe"
    if on_terminal:
        from mwatch.cli.render.run_screen import RunScreen

        return RunScreen(folder.name, mode, where)
    from mwatch.cli.render.run_lines import RunLines

    lines = RunLines(as_json=as_json)
    lines.noted(f"run {folder.name} ({mode}): {where}")
    return lines
