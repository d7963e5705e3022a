# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Plain technical English: words that are ours alone stay out of names, messages and pages.

A reader of a message, an alert or a runbook has not read the code. `NAMES_LEFT` and `TEXTS_LEFT`
are the packages that are not clean yet. They only shrink: a clean package must leave them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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

NAMES_LEFT = frozenset(f"mwatch/{name}" for name in ("report",))
TEXTS_LEFT = frozenset(f"mwatch/{name}" for name in ("report",))


def place_of(path: Path) -> str:
    """`mwatch/cli`, `mwatch_trainer/gpu`, or the module itself where it is in no package."""
    inside = path.relative_to(ROOT).parts[1:]
    return "/".join(inside[:2])


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


def by_place(find: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in modules():
        text = path.read_text("utf-8")
        hits = bad_names(text) if find == "names" else bad_texts(text)
        at = found.setdefault(place_of(path), [])
        at += [f"{path.relative_to(ROOT)}:{hit}" for hit in hits]
    return found


@pytest.mark.parametrize(("find", "left"), [("names", NAMES_LEFT), ("texts", TEXTS_LEFT)])
def test_code_uses_the_words_of_the_field(find: str, left: frozenset[str]) -> None:
    found = by_place(find)
    assert [hit for place, hits in found.items() if place not in left for hit in hits] == []
    clean = sorted(place for place in left if not found.get(place))
    assert clean == [], f"these places are clean: take them out of {find.upper()}_LEFT"


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
