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
from importlib import import_module

import typer
from typer.exceptions import TyperException

from mwatch import __version__
from mwatch.cli.cluster import UNREACHABLE
from mwatch.cli.completion import VARIABLE, answer_shell
from mwatch.cli.help import HelpCommand, HelpGroup, usage_error
from mwatch.errors import MwatchError
from mwatch.kube.errors import KubeError

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
        from mwatch.cli.terminal import ignore_closed_pipe

        ignore_closed_pipe()
        sys.exit(0)
