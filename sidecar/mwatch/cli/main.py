# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The list of commands, and the one place where errors become exit codes.

Exit codes: 0 fine, 1 a finding, 2 usage or bad input, 3 not enough data or no cluster, 130
interrupted; see docs/exit-codes.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer
from typer.exceptions import TyperException

from mwatch import __version__
from mwatch.cli.checkpoints import checkpoints, rollback
from mwatch.cli.cluster import UNREACHABLE
from mwatch.cli.completion import VARIABLE, answer_shell, completion
from mwatch.cli.controller import controller
from mwatch.cli.demo import demo
from mwatch.cli.diagnose import diagnose
from mwatch.cli.doctor import doctor
from mwatch.cli.faults import faults
from mwatch.cli.help import HelpCommand, HelpGroup, usage_error
from mwatch.cli.inject import inject, uninject
from mwatch.cli.overrides import mode, pause, restart, resume, stop
from mwatch.cli.parse import parse
from mwatch.cli.plan import plan
from mwatch.cli.recorded import replay, report
from mwatch.cli.run import run
from mwatch.cli.shipped import export, runbook
from mwatch.cli.sidecar import sidecar
from mwatch.cli.status import status, top
from mwatch.cli.terminal import ignore_closed_pipe
from mwatch.cli.ui import ui
from mwatch.errors import MwatchError
from mwatch.kube.errors import KubeError

GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "This machine": (demo, run, ui),
    "Logs and recordings": (replay, report, parse, faults, runbook, checkpoints, rollback),
    "Cluster": (diagnose, status, top, pause, resume, restart, stop, mode),
    "Set-up": (doctor, plan, export, inject, uninject, sidecar, controller, completion),
}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mwatch {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Watch Megatron-LM training: find what is wrong, name the culprit, restart the job."""


def program(only: str = "") -> typer.Typer:
    """The program, or for a faster start that of one command."""
    made = typer.Typer(
        name="mwatch",
        cls=HelpGroup,
        subcommand_metavar="COMMAND [ARGS]",
        epilog="Run 'mwatch COMMAND --help' for the options and examples of a command.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_root)
    for group, commands in GROUPS.items():
        for command in commands:
            if only in ("", command.__name__):
                made.command(cls=HelpCommand, rich_help_panel=group)(command)
    return made


app = program()


def _named() -> typer.Typer:
    """The program of the command that the user named; of all commands to list, suggest or complete
    them."""
    word = "".join(sys.argv[1:2])
    names = {command.__name__ for commands in GROUPS.values() for command in commands}
    return program(word) if word in names and VARIABLE not in os.environ else app


def main() -> None:
    answer_shell()
    try:
        sys.exit(_named()(standalone_mode=False, complete_var=VARIABLE))
    except typer.Abort:
        sys.exit(1)
    except TyperException as error:
        print(usage_error(error), file=sys.stderr)
        sys.exit(2)
    except MwatchError as error:
        print(f"mwatch: {error}", file=sys.stderr)
        sys.exit(UNREACHABLE if isinstance(error, KubeError) else 2)
    except KeyboardInterrupt as interrupted:
        sys.exit(getattr(interrupted, "exit_code", 130))
    except BrokenPipeError:
        ignore_closed_pipe()
        sys.exit(0)
