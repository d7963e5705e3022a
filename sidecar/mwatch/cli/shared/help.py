# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The layout of `--help`, with commands and options in groups, and the rule for `-- CMD`.

Typer supports groups only with rich, which takes longer to import than the rest of `--help`, and
shows Python types next to the arguments. Paragraphs of a docstring that start with `Example:`
become the examples; `rich_help_panel` names the group, as in Typer itself.

Options of a training command could be mistaken for options of mwatch. A command with options must
therefore come after `--`.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_EXAMPLE = "Example:"
_RANGE = re.compile(r"(?P<low>[0-9.e-]+)<=x<=(?P<high>[0-9.e+]+)")
_SURE = 100_000
"""Limits above this are only sanity checks and not shown."""


RENAMED = {
    "parse": {"-f": "--follow"},
    "replay": {"--report": "--out"},
    "sidecar": {"--json-logs": "--json", "--run": "--name", "--save": "--checkpoints"},
}
"""Old flags by command, accepted until 0.3; a flag now has the same name in all commands."""


class _PlainValues:
    """Converts arguments to strings, paths and booleans as Typer does, but without pydantic, whose
    import takes longer than the rest of option parsing."""

    def __init__(self, kind: Callable[[Any], Any], *, is_list: bool = False) -> None:
        self._kind = kind
        self._is_list = is_list

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        return list(map(self._kind, value)) if self._is_list else self._kind(value)


_PLAIN = {
    bool: _PlainValues(bool),  # no environment variable sets a flag, so this is None or a bool
    str: _PlainValues(str),
    Path: _PlainValues(Path),
    list[str]: _PlainValues(str, is_list=True),
    list[Path]: _PlainValues(Path, is_list=True),
}


def _read_plainly(parameters: list[Any]) -> list[Any]:
    """Let Typer convert only values of other types; its earlier releases do not use pydantic."""
    for each in parameters:
        kind = getattr(getattr(each, "type_descriptor", None), "annotation", None)
        if kind in _PLAIN:
            each.get_runtime_param = partial(_PLAIN.get, kind)
    return parameters


class HelpCommand(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _read_plainly(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = [_renamed(each, RENAMED.get(self.name or "", {})) for each in args]
        given = list(args)
        takes_command = any(str(each.metavar or "").startswith("--") for each in self.params)
        if takes_command:
            ctx.allow_interspersed_args = False  # options of mwatch end where the command begins
        rest = super().parse_args(ctx, args)
        if takes_command:
            _check_separator(ctx, given)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(_usage(each) for each in arguments)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        paragraphs = (self.help or "").split("\n\n")
        examples = [each for each in paragraphs if each.startswith(_EXAMPLE)]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n\n".join(each for each in paragraphs if each not in examples))
        with formatter.section("Examples" if len(examples) > 1 else "Example"):
            for each in examples:
                formatter.write(f"  {' '.join(each.removeprefix(_EXAMPLE).split())}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            if (record := each.get_help_record(ctx)) is not None:
                sections.setdefault(_section(each), []).append(_row(each, record))
        for name in sorted(sections, key=lambda name: (name != "Arguments", name == "Options")):
            with formatter.section(name):
                formatter.write_dl(sections[name], col_max=24)


class HelpGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _read_plainly(super().get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        widest = max(map(len, self.commands))
        for name, command in self.commands.items():
            summary = " ".join((command.help or "").partition("\n\n")[0].split())
            group = str(getattr(command, "rich_help_panel", None) or "Commands")
            groups.setdefault(group, []).append((name.ljust(widest), summary))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)


def _check_separator(ctx: Any, given: list[str]) -> None:
    """Require `--` before a command that has options; without options there is no ambiguity."""
    command = ctx.params.get("command") or []
    own = given[: len(given) - len(command)]
    if own[-1:] == ["--"] or not any(word.startswith("-") for word in command):
        return
    line = shlex.join([*ctx.command_path.split(), *own, "--", *command])
    raise typer.BadParameter(f"put -- before the command: {line}", ctx, param_hint="CMD")


def _renamed(word: str, names: dict[str, str]) -> str:
    flag, equals, value = word.partition("=")
    if flag not in names:
        return word
    print(f"mwatch: {flag} is now {names[flag]}; 0.3 removes the old name", file=sys.stderr)
    return f"{names[flag]}{equals}{value}"


def usage_error(error: Any) -> str:
    """The error as one line, like all errors; the help if no command was given."""
    text = str(error.format_message())
    if text.startswith("Usage:"):
        return text
    context = getattr(error, "ctx", None)
    where = "mwatch" if context is None else context.command_path
    flat = " ".join(text.split()).rstrip(".")
    return f"mwatch: {flat[:1].lower()}{flat[1:]}; see '{where} --help'"


def _usage(argument: Any) -> str:
    """`JOB`, or `[JOB]` if optional; without the dots of `CMD...`, which look like truncation."""
    name = str(argument.metavar or argument.name.upper())
    is_optional = not argument.required and not name.startswith(("[", "--"))
    return f"[{name}]" if is_optional else name.removesuffix("...")


def _section(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return str(getattr(parameter, "rich_help_panel", None) or "Options")


def _row(parameter: Any, record: tuple[str, str]) -> tuple[str, str]:
    name, text = record
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name.upper()).strip("[]")
    text = _RANGE.sub(_range, text).replace("x>=", "at least ")
    return name, text.replace("; ]", "]").replace("  []", "")


def _range(match: re.Match[str]) -> str:
    low, high = match["low"], match["high"]
    if float(high) < _SURE:
        return f"{low} to {high}"
    return "" if float(low) <= 1 else f"at least {low}"
