# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch completion SHELL`: the script that lets a shell complete commands and options.

The script calls `mwatch` with `_MWATCH_COMPLETE` set, and Typer answers instead of the command.
Typer's own two flags would change the start-up files of the shell; this command prints the script
instead, like kubectl and helm.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from mwatch.cli.shared.options import argument

VARIABLE = "_MWATCH_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")
Shell = Annotated[str, argument("bash|zsh|fish", "Print the script of this shell.")]


def answer_shell() -> None:
    """Let Typer answer, if a shell asks for completions."""
    if VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()


def completion(shell: Shell) -> None:
    """Print the completion script of a shell.

    To load it in every shell: add 'source <(mwatch completion bash)' to ~/.bashrc, or the same with
    zsh to ~/.zshrc, after compinit; for fish, write it to ~/.config/fish/completions/mwatch.fish.

    Exit codes: 0 printed, 2 unknown shell.

    Example: mwatch completion fish > ~/.config/fish/completions/mwatch.fish
    """
    if shell not in _SHELLS:
        text = f"{shell} is not supported; give one of {', '.join(_SHELLS)}"
        raise typer.BadParameter(text, param_hint="SHELL")
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="mwatch", complete_var=VARIABLE, shell=shell))
