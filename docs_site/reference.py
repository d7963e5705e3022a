# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The reference, generated from the code each time the site is built.

Commands come from the command line itself, settings and their reasons from the source of their
classes: the comment or the text beside each field.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from docs_site import names
from mwatch.cli.program import GROUPS, program
from mwatch.config import fleet, sidecar
from mwatch.model import settings

ROOT = names.ROOT
DOCS = ROOT / "docs"
# Typer brings its own copy of click, whose types have no public name.
PROGRAM: Any = get_command(program())
COLUMNS = 80


def commands() -> str:
    context = typer.Context(PROGRAM, info_name="mwatch", **PROGRAM.context_settings)
    context.terminal_width = context.max_content_width = COLUMNS
    lines = ["# Commands", "", "What `mwatch COMMAND --help` prints, for this release.", ""]
    for group, members in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in members:
            command = PROGRAM.get_command(context, name)
            own = typer.Context(command, parent=context, info_name=name)
            lines += [f"### mwatch {name}", "", "```text", command.get_help(own).strip(), "```", ""]
    return "\n".join(lines)


def policy() -> str:
    lines = [
        "# Policy", "",
        "Every threshold with its default and the reason for it. A policy is a TOML file with any "
        "of these keys; what it does not name keeps its default. Give it to a job by "
        "`mwatch.dev/policy`, to `mwatch run` and `mwatch diagnose` by `--policy`, and to the "
        "controller for all other jobs. See [how to write one](../howto/own-policy.md).", "",
    ]  # fmt: skip
    for section, kind in _sections(settings.Settings):
        if kind is settings.Deadlines:
            order = ", ".join(f"`{each}`" for each in settings.DeadlineSettings.__slots__)
            about = "Each phase is a table of its own, such as `[deadlines.saving]`."
            lines += [f"{about} The default shows {order}, in this order.", ""]
        lines += [f"## [{section}]", "", *_intro(kind), *_table(kind), ""]
    lines += [
        "## The fleet", "",
        "Limits for all jobs together: the file of `--fleet`, or the chart value "
        "`controller.fleet`.", "", *_table(fleet.FleetSettings), "",
    ]  # fmt: skip
    return "\n".join(lines)


def _sections(kind: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    for name in kind.__dataclass_fields__:
        yield name, type(getattr(kind(), name))


def _intro(kind: type[Any]) -> list[str]:
    text = inspect.cleandoc(vars(kind).get("__doc__") or "")
    return [] if not text or text.startswith(f"{kind.__name__}(") else [text, ""]


def _table(kind: type[Any]) -> list[str]:
    rows = [f"| `{name}` | {default} | {_cell(why)} |" for name, default, why in fields_of(kind)]
    return ["| key | default | why |", "| --- | --- | --- |", *rows]


def fields_of(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Name, default and reason of each field, from the source of the class."""
    lines = inspect.getsource(kind).splitlines()
    (body,) = ast.parse(inspect.cleandoc("\n".join(lines))).body
    assert isinstance(body, ast.ClassDef)
    for number, each in enumerate(body.body):
        if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
            continue
        after = body.body[number + 1] if number + 1 < len(body.body) else None
        texts = [_comment(lines, each), _text(after)]
        yield each.target.id, _default(each.value), " ".join(filter(None, texts))


def _comment(lines: list[str], field: ast.AnnAssign) -> str:
    end = (field.end_lineno or field.lineno) - 1
    rest = lines[end].encode()[field.end_col_offset or 0 :].decode()
    return rest.partition("#")[2].strip()


def _text(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _default(value: ast.expr | None) -> str:
    if value is None:
        return ""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        parts = [ast.unparse(each) for each in value.args]
        return f"`{' / '.join(parts)}`" if parts else ""
    text = ast.unparse(value)
    return f"`{text}`" if len(text) <= 40 else "see the source"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def annotation_names() -> str:
    where = "On the job, where the text does not name another object."
    lines = ["# Annotations and labels", "", where, ""]
    rows = [f"| `{name}` | {text} |" for name, text in names.annotation_texts().items()]
    return "\n".join([*lines, "| name | meaning |", "| --- | --- |", *rows, ""])


def environment() -> str:
    texts = {name: why for name, _, why in fields_of(sidecar.SidecarSettings)}
    helps = _helps("sidecar")
    of_sidecar = dict(zip(sidecar.VARIABLES.values(), sidecar.VARIABLES, strict=True))
    others = names.variable_texts(set(of_sidecar))
    lines = [
        "# Environment variables", "",
        "`mwatch inject` and the charts set what is needed. An empty one counts as not set.", "",
        "| variable | read by | meaning |", "| --- | --- | --- |",
        *(f"| `{name}` | {who} | {_cell(text)} |" for name, (who, text) in others.items()), "",
        "## Settings of the sidecar", "",
        "The same names are keys of its TOML file (`--config`) and flags of `mwatch sidecar`.", "",
        "| variable | key | meaning |", "| --- | --- | --- |",
    ]  # fmt: skip
    for variable, key in of_sidecar.items():
        text = helps.get(sidecar.flag_of(key)) or texts[key]
        lines.append(f"| `{variable}` | `{key}` | {_cell(text)} |")
    return "\n".join([*lines, ""])


def _helps(name: str) -> dict[str, str]:
    """Help of each flag of a command."""
    context = typer.Context(PROGRAM, info_name="mwatch", **PROGRAM.context_settings)
    command = PROGRAM.get_command(context, name)
    return {flag: each.help for each in command.params for flag in each.opts if each.help}


def json_output() -> str:
    context = typer.Context(PROGRAM, info_name="mwatch", **PROGRAM.context_settings)
    having = [
        name
        for name in PROGRAM.list_commands(context)
        if any("--json" in each.opts for each in PROGRAM.get_command(context, name).params)
    ]
    schemas = sorted(DOCS.rglob("*schema*.json"))
    lines = [
        "# JSON", "",
        "These commands print JSON with `--json`: " + ", ".join(f"`{each}`" for each in having)
        + ". The [exit code](../exit-codes.md) is the same with and without it.", "",
        "Every object has `version`, `kind` and `time`. Keys are added in any release and never "
        "change their meaning in a minor one: ignore those that you do not know. Unknown "
        "values are `null`, never 0.", "",
    ]  # fmt: skip
    for schema in schemas:
        path = schema.relative_to(DOCS).as_posix()
        lines += [f"JSON Schema: [{schema.name}](../{path}). In short:", "", *_shapes(schema), ""]
    lines += [
        "The sidecar and the controller serve JSON too: [snapshot](../snapshot.md) describes what "
        "they exchange.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _shapes(schema: Path) -> list[str]:
    """The keys at the top of what each command prints."""
    found = json.loads(schema.read_text("utf-8"))
    shapes = [found["$defs"][each["$ref"].rpartition("/")[2]] for each in found["oneOf"]]
    rows = [
        f"| {_cell(each.get('description', each['title']).rstrip('.'))} | "
        f"{', '.join(f'`{key}`' for key in each['properties'])} |"
        for each in shapes
    ]
    return ["| printed by | keys |", "| --- | --- |", *rows]


GENERATED: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/policy.md": policy,
    "reference/annotations.md": annotation_names,
    "reference/environment.md": environment,
    "reference/json.md": json_output,
}
"""Pages by their path in the site."""
