# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Plain technical English: words that are ours alone stay out of names, messages and pages.

A reader of a message, an alert or a runbook has not read the code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Not ours to change: the text that the small trainer learns from.
CODE = ("sidecar/mwatch", "trainer/mwatch_trainer", "trainer/mwatch_gpt")
PAGES = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "docs", "runbooks", "alerts")

# A part of a name, as in `is_half_told`: use observe, event, report, view, fix, request instead.
NAME_PART = re.compile(
    r"mend(?:s|ed)?|told|tells?|said|heard|news|sight(?:s|ed)?|unseen|eyes|hands|desk|tickets?|chores?"
    r"|wish(?:ed)?|deeds?"
)
TEXTS = re.compile(
    r"\bmend(?:s|ed|ing)?\b|\b(?:can|could) ?not be had\b|\bnobody (?:says?|said|tells?|told)\b"
    r"|\bdesks?\b|\bchores?\b|\bunseen\b|\b(?:in|of|without|lost) sight\b|\b(?:our|its|more) eyes\b"
    r"|\btold\b|\bsaid\b|\bwho asks\b|\bwhoever\b|\bby the way\b|\bways out\b"
    r"|(?<!here )\b(?:is|are) no (?!longer\b|more\b)\w",
    re.IGNORECASE,
)
"""Phrases; "is no JSON" is "is not JSON", while "there is no file" is plain English."""
KEYS = frozenset(["mend", "unseen", "said", "unknown/unseen-pods"])
"""Keys and values that programs read: they change with a deprecation, not here."""


def names_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What this module itself names: functions, classes, arguments, variables and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def texts_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """String constants that are not docstrings; a docstring of a command is its help."""
    quiet: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            quiet.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in quiet:
            yield node.lineno, node.value


def bad_names(text: str) -> list[str]:
    return [
        f"{line}: {name}"
        for line, name in names_in(ast.parse(text))
        if any(NAME_PART.fullmatch(part) for part in parts_of(name))
    ]


def parts_of(name: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def bad_texts(text: str) -> list[str]:
    return [
        f"{line}: {found[0]}: {value[:60]}"
        for line, value in texts_in(ast.parse(text))
        if value not in KEYS and (found := TEXTS.search(value))
    ]


def modules() -> Iterator[Path]:
    for folder in CODE:
        yield from sorted((ROOT / folder).rglob("*.py"))


def pages() -> Iterator[Path]:
    for name in PAGES:
        path = ROOT / name
        yield from [path] if path.is_file() else sorted(path.rglob("*.md"))
        yield from () if path.is_file() else sorted(path.rglob("*.yaml"))
    yield from sorted((ROOT / "sidecar/mwatch/catalogue").glob("*.toml"))


@pytest.mark.parametrize("find", [bad_names, bad_texts])
def test_code_uses_the_words_of_the_field(find: Callable[[str], list[str]]) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{hit}"
        for path in modules()
        for hit in find(path.read_text("utf-8"))
    ]
    assert found == []


def test_names_of_tests_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(
            r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE
        )
        if any(map(NAME_PART.fullmatch, name.split("_")))
    ]
    assert found == []


def test_pages_use_the_words_of_the_field() -> None:
    found: dict[str, list[str]] = {}
    for path in pages():
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if hit := TEXTS.search(re.sub("`[^`]*`", "", line)):
                name = str(path.relative_to(ROOT))
                found.setdefault(name, []).append(f"{name}:{number}: {hit[0]}")
    assert found == {}


def test_a_name_and_a_message_of_ours_are_noticed() -> None:
    assert bad_names("def is_half_told(x): self.PodSight = x") == ["1: is_half_told", "1: PodSight"]
    assert bad_texts("def f():\n    'told'\n    g('is no TOML')") == ["3: is no T: is no TOML"]


def test_plain_english_is_left_alone() -> None:
    assert bad_names("retold = hand = foresight = 1") == []
    assert bad_texts("f('there is no file', 'it is no longer there', 'mend', 'recommend')") == []
