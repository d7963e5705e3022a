# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every `mwatch …` that a runbook tells people to type is taken by the real command line.

Parsed only, never run: words in capitals (JOB, NS, N) stand for what the reader puts there. A bare
`mwatch inject` in a sentence names the command and is no line to type.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mwatch.cli.program import program
from support.repository.source_rules import ROOT

PAGES = sorted((ROOT / "runbooks").glob("*.md"))
NAMES_CHECKS = "doctor.md"
"""Its code spans are names of checks."""
DOCS = sorted(each for each in (ROOT / "docs").rglob("*.md") if each.name != NAMES_CHECKS)
_SPAN = re.compile(r"`([^`]+)`")
_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"(?:^|-- |^\$ )mwatch ([^|;>]+)")
_NUMBER = re.compile(r"\bN\b")
COMMANDS: dict[str, Any] = getattr(typer.main.get_command(program()), "commands")  # noqa: B009


def typed(text: str) -> Iterator[list[str]]:
    """Words behind `mwatch`, of each code span and each line of a block.

    A block that begins with `$ ` holds output, and `test_runbook_examples.py` checks it.
    """
    blocks = [
        line
        for block in _BLOCK.findall(text)
        for line in block.replace("\\\n", "").splitlines()[: 1 if block[:2] == "$ " else None]
    ]
    spans = [" ".join(each.split()) for each in _SPAN.findall(_BLOCK.sub("", text))]
    for code in blocks + spans:
        for words in _LINE.findall(code.strip()):
            yield shlex.split(_NUMBER.sub("7", words).rstrip("\\"), comments=True)


def problem(words: list[str]) -> str | None:
    """None: the command line takes it."""
    name, *rest = words
    if words == ["--version"]:
        return None
    if name not in COMMANDS:
        return f"there is no mwatch {name}"
    if not rest:
        return None
    try:
        COMMANDS[name].make_context(name, rest).close()
    except Exception as error:  # of click, or of the copy of it that typer brings
        told = getattr(error, "format_message", error.__str__)()
        return f"mwatch {shlex.join(words)}: {told}"
    return None


@pytest.mark.parametrize("page", [*PAGES, *DOCS], ids=lambda page: page.stem)
def test_the_command_line_takes_what_is_typed_in(page: Path) -> None:
    found = [problem(words) for words in typed(page.read_text("utf-8"))]
    assert [each for each in found if each is not None] == []


_KUBECTL = re.compile(r"\bkubectl ([^`|;&]+)")
_NAMESPACE = re.compile(r"(?:^|\s)(?:-n|-A)\s")
_OF_CLUSTER = re.compile(
    r"(?:un)?cordon|drain|(?:get|describe|label|top) nodes?\b|get --raw|explain"
)


def without_namespace(text: str) -> list[str]:
    """What kubectl would do in the namespace of the reader's context, right or wrong."""
    blocks = "\n".join(each for each in _BLOCK.findall(text) if not each.startswith("$ "))
    spans = [" ".join(each.split()) for each in _SPAN.findall(_BLOCK.sub("", text))]
    found = [words for code in (blocks, *spans) for words in _KUBECTL.findall(code)]
    given = [(words, words.partition(" -- ")[0]) for words in found if " " in words.strip()]
    return [
        words
        for words, own in given
        if not _NAMESPACE.search(f"{own} ") and not _OF_CLUSTER.match(own)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_kubectl_names_its_namespace(page: Path) -> None:
    assert without_namespace(page.read_text("utf-8")) == []


def test_the_checker_sees_a_missing_namespace() -> None:
    text = (
        "`kubectl get pods`, `kubectl cordon NODE`, `kubectl -n NS get pods`, `kubectl get pvc -A`"
    )
    text += "\n```\nkubectl exec POD -- ps -n 3\n```\n"
    assert without_namespace(text) == ["exec POD -- ps -n 3\n", "get pods"]


def test_the_checker_sees_what_cannot_be_typed() -> None:
    text = "`mwatch inject`, `mwatch pause JOB`, `mwatch restart JOB --form 7`, `mwatch fly now`,\n"
    text += "```\nmwatch restart JOB --from N | tail\nmwatch mode JOB rest\n```\n"
    told = sorted(str(each) for each in map(problem, typed(text)) if each is not None)
    assert len(told) == 4
    for part, each in zip(("mode", "pause", "restart", "no mwatch fly"), told, strict=True):
        assert part in each
