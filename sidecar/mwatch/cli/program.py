# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The list of commands, and the Typer program built from it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from typer.exceptions import TyperException

from mwatch import __version__
from mwatch.cli.completion import VARIABLE, answer_shell
from mwatch.cli.shared.help import HelpCommand, HelpGroup, usage_error

GROUPS = {
    "This machine": {"demo": "demo", "run": "run", "ui": "ui"},
    "Logs and recordings": {
        "replay": "recorded",
        "report": "recorded",
        "parse": "parse",
        "faults": "faults",
        "runbook": "shipped",
        "checkpoints": "checkpoints",
        "rollback": "checkpoints",
    },
    "Cluster": {
        "diagnose": "diagnose",
        "status": "status",
        "top": "status",
        "pause": "overrides",
        "resume": "overrides",
        "restart": "overrides",
        "stop": "overrides",
        "mode": "overrides",
    },
    "Set-up": {
        "doctor": "doctor",
        "plan": "plan",
        "export": "shipped",
        "inject": "inject",
        "uninject": "inject",
        "sidecar": "sidecar",
        "controller": "controller",
        "completion": "completion",
    },
}
"""The module of each command: only that of the command that is called is loaded."""


def command(name: str, module: str) -> Callable[..., None]:
    found: Callable[..., None] = getattr(import_module(f"mwatch.cli.{module}"), name)
    return found


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
        for name, module in commands.items():
            if only in ("", name):
                made.command(cls=HelpCommand, rich_help_panel=group)(command(name, module))
    return made


def _named() -> typer.Typer:
    """The program of the command that the user named; of all commands to list, suggest or complete
    them."""
    word = "".join(sys.argv[1:2])
    is_command = any(word in commands for commands in GROUPS.values())
    return program(word if is_command and VARIABLE not in os.environ else "")


def run_command() -> Any:
    """Run the command that the user named; returns its exit code, None for 0."""
    answer_shell()
    try:
        return _named()(standalone_mode=False, complete_var=VARIABLE)
    except typer.Abort:
        return 1
    except TyperException as error:
        print(usage_error(error), file=sys.stderr)
        return 2
