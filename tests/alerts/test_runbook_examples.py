# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Examples of runbooks and docs are real output: of mwatch, made here again, or of a tested alert.

`...` stands for lines that are left out. The text of an alert is what promtool renders in
`*.test.yaml`, which `test_rules.py` checks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from typer.testing import CliRunner

from mwatch.cli.program import program
from support.repository.source_rules import ROOT

PAGES = sorted(page for page in (ROOT / "runbooks").glob("*.md") if page.stem != "README")
_SECTION = re.compile(r"^## Example\n(.*?)^## ", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```\n(.*?)^```\n(.*)", re.MULTILINE | re.DOTALL)
_BLOCKS = re.compile(r"^```\n(.*?)^(```)", re.MULTILINE | re.DOTALL)
_COMMAND = "$ mwatch "


class Example(NamedTuple):
    output: str
    meaning: str


def example_of(page: Path) -> Example:
    (section,) = _SECTION.findall(page.read_text("utf-8"))
    (found,) = _BLOCK.findall(section)
    return Example(*found)


EXAMPLES = {page.stem: example_of(page) for page in PAGES}
TYPED = {name: each.output for name, each in EXAMPLES.items() if each.output.startswith(_COMMAND)}
IN_DOCS = {
    f"{page.stem} {number}": block
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for number, (block, _) in enumerate(_BLOCKS.findall(page.read_text("utf-8")))
    if block.startswith(_COMMAND)
}


def rendered() -> Iterator[tuple[str, str]]:
    """Alert and text of each that promtool expects to fire."""
    for path in sorted((ROOT / "tests" / "alerts").glob("*.test.yaml")):
        for test in yaml.safe_load(path.read_text("utf-8"))["tests"]:
            for case in test.get("alert_rule_test", []):
                for each in case["exp_alerts"]:
                    texts, level = each.get("exp_annotations"), each["exp_labels"]["severity"]
                    if texts:
                        text = f"[firing, {level}] {texts['summary']} {texts['description']}"
                        yield case["alertname"], text


def is_shown(wanted: list[str], printed: list[str]) -> bool:
    """Whether the lines are there in this order; only at `...` may others come between."""
    rest, may_skip = list(printed), False
    for line in wanted:
        if line == "...":
            may_skip = True
            continue
        if line not in rest or (not may_skip and rest[0] != line):
            return False
        rest, may_skip = rest[rest.index(line) + 1 :], False
    return True


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_its_meaning(name: str) -> None:
    assert EXAMPLES[name].meaning.strip().startswith("It means: ")


@pytest.mark.parametrize("name", [*TYPED, *IN_DOCS])
def test_mwatch_prints_it_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, *wanted = (TYPED | IN_DOCS)[name].splitlines()
    done = CliRunner().invoke(program(), shlex.split(command)[2:])
    printed = [line.rstrip() for line in done.output.splitlines()]
    assert is_shown(wanted, printed), done.output


def test_promtool_renders_the_text_of_the_alerts() -> None:
    alerts = EXAMPLES.keys() - TYPED.keys()
    shown = {(name, " ".join(EXAMPLES[name].output.split())) for name in alerts}
    assert shown - set(rendered()) == set()


def test_the_comparison_sees_a_line_that_is_not_printed() -> None:
    printed = ["a", "b", "c"]
    assert is_shown(["a", "...", "c"], printed) and is_shown(["...", "b"], printed)
    assert not is_shown(["a", "c"], printed) and not is_shown(["a", "x"], printed)
    assert not is_shown(["c", "a"], printed)
