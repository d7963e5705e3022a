# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Exit codes in one table, errors in one style, one name for one flag."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from mwatch.cli.main import main
from mwatch.cli.program import GROUPS, command, program
from mwatch.cli.shared.help import RENAMED

# Typer brings its own copy of click, whose types have no public name.
PROGRAM: Any = get_command(program())
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "exit-codes.md"
COMMANDS = {
    name: command(name, module) for group in GROUPS.values() for name, module in group.items()
}
EVERY_FLAG = {
    "--namespace": {"-n"},
    "--file": {"-f"},
    "--out": {"-o"},
    "--all-namespaces": {"-A"},
    "--quiet": {"-q"},
    "--help": {"-h"},
}
"""The one short name of each flag that has one."""


def documented() -> dict[str, set[int]]:
    """The codes of each command in the table: filled columns, and numbers in the last one."""
    found: dict[str, set[int]] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if cells and cells[0].startswith("`"):
            codes = {number for number, cell in enumerate(cells[1:5]) if cell}
            codes |= {int(each) for each in re.findall(r"\b1[34][03]\b", cells[5])}
            found |= {name: codes for name in re.findall(r"`(\w+)`", cells[0])}
    return found


def promised(name: str) -> set[int]:
    """The codes in the help of the command, or in the docstring of its module."""
    command = COMMANDS[name]
    for text in (command.__doc__ or "", sys.modules[command.__module__].__doc__ or ""):
        paragraph = re.search(r"Exit codes?\b.*?:(.*?)(?:\n\n|\Z)", text, re.DOTALL)
        if paragraph:
            return {int(each) for each in re.findall(r"(?<![\w-])(0|1|2|3|130)\b", paragraph[1])}
    return set()


def test_every_command_is_in_the_table_and_no_other() -> None:
    assert set(documented()) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_promises_what_the_table_says(name: str) -> None:
    assert promised(name) <= documented()[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_short_flag_belongs_to_one_long_flag(name: str) -> None:
    context = typer.Context(PROGRAM, info_name="mwatch", **PROGRAM.context_settings)
    for each in PROGRAM.get_command(context, name).get_params(context):
        short = {flag for flag in each.opts if re.fullmatch(r"-\w", flag)}
        long = {flag for flag in each.opts if flag.startswith("--")}
        for flag in long & EVERY_FLAG.keys() if short else ():
            assert short == EVERY_FLAG[flag]
        assert not short or long & EVERY_FLAG.keys(), f"{short} is new: add it to the list"


OLD = [(name, old, new) for name, flags in RENAMED.items() for old, new in flags.items()]


@pytest.mark.parametrize(("name", "old", "new"), OLD)
def test_an_old_name_of_a_flag_is_accepted_hidden_and_named(
    name: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    context = typer.Context(PROGRAM, info_name="mwatch", **PROGRAM.context_settings)
    command = PROGRAM.get_command(context, name)
    flags = {flag for each in command.get_params(context) for flag in each.opts}
    assert new in flags and old not in flags
    own = typer.Context(command, parent=context, info_name=name)
    has_value = not any(new in each.opts and each.is_flag for each in command.params)
    command.parse_args(own, [old, "value"] if has_value else [old])
    assert f"{old} is now {new}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["nope"], ["diagnose", "--nope"], ["pause", "gpt"], ["plan", "--tp", "x"], ["diagnose", "-f"],
     ["completion", "tcsh"], ["top", "--runs", "/nonexistent"], ["mode", "gpt", "loud"]],
)  # fmt: skip
def test_an_error_is_one_line_that_begins_with_the_program(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mwatch", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert printed.err.startswith("mwatch: ") and printed.err.count("\n") == 1
