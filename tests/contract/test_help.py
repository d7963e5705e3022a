# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every `--help` at 80 columns: whole sentences, words instead of types, an example."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from mwatch.cli.program import GROUPS, program

COLUMNS = 80
VERBS = (
    "Accept Add Apply Ask Assume Change Check Choose Diagnose Do End Estimate Exit Expect Explain",
    "Export Find Give Inject Keep Link List Listen Name Notify Pause Plan Poll Press Print Put",
    "Read Recompute Record Refresh Remove Replay Report Restart Resume Run Save Serve Set Shard",
    "Show Start Stop Train Use Wait Watch Wrap Write",
)
# What Python and Typer call their types; a reader needs to know what to give.
TYPE = re.compile(r"<[a-z]|\b(?:TEXT|PATH|INTEGER|FLOAT|BOOLEAN|STRING)\b|list\[|\bx[<>]=|<=x")

# Typer brings its own copy of click, whose types have no public name.
PROGRAM: Any = get_command(program())
CONTEXT = typer.Context(PROGRAM, info_name="mwatch", **PROGRAM.context_settings)
NAMES = PROGRAM.list_commands(CONTEXT)


def rendered(*arguments: str) -> str:
    done = CliRunner().invoke(program(), [*arguments, "--help"], env={"COLUMNS": str(COLUMNS)})
    assert done.exit_code == 0, done.output
    return done.output


def parameters_of(name: str) -> list[Any]:
    command = PROGRAM.get_command(CONTEXT, name)
    context = typer.Context(command, parent=CONTEXT, info_name=name)
    return [each for each in command.get_params(context) if not each.hidden]


def faults_of(text: str) -> list[str]:
    lines = text.splitlines()
    cut = [line for line in lines if line.endswith(("...", "…"))]
    wide = [line for line in lines if len(line) > COLUMNS]
    typed = [line for line in lines if TYPE.search(line)]
    return [*cut, *wide, *typed]


def is_sentence(text: str) -> bool:
    return text.split()[0] in " ".join(VERBS).split() and text.endswith(".")


@pytest.mark.parametrize("name", ["", *NAMES])
def test_nothing_is_cut_or_too_wide_or_shown_as_a_python_type(name: str) -> None:
    assert faults_of(rendered(*name.split())) == []


def test_a_cut_line_a_wide_line_and_a_type_are_noticed() -> None:
    assert len(faults_of(f"  run  Watch a command and...\n{'x' * 81}\n  --n <int>  [x>=1]")) == 3


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_and_of_its_options_is_imperative(name: str) -> None:
    summary = PROGRAM.get_command(CONTEXT, name).help.partition("\n\n")[0]
    texts = [each.help for each in parameters_of(name)]
    assert [text for text in [summary, *texts] if text is None or not is_sentence(text)] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_help_has_an_example_of_the_command_on_one_line(name: str) -> None:
    text = rendered(name)
    after = text.partition("\nExample")[2].partition("\n\n")[0].splitlines()[1:]
    assert after
    assert [line for line in after if not line.startswith(f"  mwatch {name} ")] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_options_in_the_examples_exist(name: str) -> None:
    flags = {flag for each in parameters_of(name) for flag in each.opts + each.secondary_opts}
    examples = re.findall(rf"^  (mwatch {name} .*)$", rendered(name), re.MULTILINE)
    for example in examples:
        words = shlex.split(example.partition("|")[0])
        own = words[: words.index("--")] if "--" in words else words
        assert {word for word in own if re.match(r"--?[a-z]", word)} <= flags


def test_every_command_is_in_one_group_of_the_main_help() -> None:
    text = rendered()
    for group, commands in GROUPS.items():
        section = text.partition(f"\n{group}:\n")[2].partition("\n\n")[0]
        shown = re.findall(r"^  ([a-z]+) ", section, re.MULTILINE)
        assert shown == list(commands)
    assert sum(map(len, GROUPS.values())) == len(NAMES)


def test_options_are_read_without_a_slow_import() -> None:
    code = (
        "import sys; from mwatch.cli.main import main\n"
        "sys.argv[1:] = ['diagnose', '--json', '--policy', 'p.toml', 'no-such-file.log']\n"
        "try: main()\nexcept SystemExit: print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr


def test_a_command_loads_no_other_command() -> None:
    code = (
        "import sys; from mwatch.cli.main import main; from mwatch.cli.program import GROUPS\n"
        "modules = {f'mwatch.cli.{each}' for group in GROUPS.values() for each in group.values()}\n"
        "sys.argv[1:] = ['plan', '--help']\n"
        "try: main()\nexcept SystemExit: print(*sorted(modules & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    last = done.stdout.splitlines()[-1]
    assert last == "mwatch.cli.completion mwatch.cli.plan", done.stderr
