# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch completion`: what a real bash gets, and what zsh and fish are answered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.runs.live_runs import environment

BASH = """
source <(mwatch completion bash)
ask() {
  COMP_WORDS=(mwatch "$@"); COMP_CWORD=$#; _mwatch_completion mwatch; echo "${COMPREPLY[@]}"
}
ask dia
ask top --al
ask diagnose tests
complete -p mwatch
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds `mwatch` as a program on the PATH."""
    program = tmp_path / "mwatch"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mwatch "$@"\n')
    program.chmod(0o755)
    return tmp_path


def run(folder: Path, *words: str, **more: str) -> str:
    env = environment(PATH=f"{folder}{os.pathsep}{os.environ['PATH']}", **more)
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


def test_bash_completes_commands_and_options_and_leaves_paths_to_itself(folder: Path) -> None:
    assert run(folder, "bash", "--norc", "-c", BASH).splitlines() == [
        "diagnose", "--all-namespaces", "", "complete -o default -F _mwatch_completion mwatch",
    ]  # fmt: skip


def test_zsh_and_fish_are_answered_in_their_form(folder: Path) -> None:
    asked = {"_TYPER_COMPLETE_ARGS": "mwatch top --al"}
    zsh = run(folder, "mwatch", _MWATCH_COMPLETE="complete_zsh", **asked)
    assert zsh.startswith("_arguments ") and '"--all-namespaces":"Show the jobs of' in zsh
    fish = run(
        folder, "mwatch", _MWATCH_COMPLETE="complete_fish",
        _TYPER_COMPLETE_FISH_ACTION="get-args", **asked,
    )  # fmt: skip
    assert fish.startswith("--all-namespaces\tShow the jobs of")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_asks_the_program_by_its_variable(shell: str, folder: Path) -> None:
    script = run(folder, "mwatch", "completion", shell)
    assert f"_MWATCH_COMPLETE=complete_{shell} " in script
