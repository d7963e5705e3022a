# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What a visitor sees first: the README, the links, the version, the start of the command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mwatch
from support.repository.readme_examples import README, README_COLUMNS, blocks

ROOT = Path(__file__).resolve().parents[2]
PYTHON_PATH = os.pathsep.join([str(ROOT / "sidecar"), str(ROOT / "trainer")])
CODE = ("benchmarks", "sidecar/mwatch", "tests", "trainer/mwatch_trainer")
FOLDERS = (*CODE, "alerts", "dashboards", "docs", "manifests", "runbooks")
# Each costs more than all of `--help`; a command imports its own when it runs.
HEAVY = {"hyperscan", "msgspec", "rich", "torch"}
HEAVY |= {"kubernetes", "opentelemetry", "prometheus_client", "tensorboard", "textual"}
LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)")


def pages() -> list[Path]:
    """Every page we write; recorded logs and what a virtual environment holds are not ours."""
    top = sorted(ROOT.glob("*.md"))
    below = [page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))]
    return top + [page for page in below if "corpus" not in page.parts]


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of `text`, outside code, whose target is not there."""
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = (target.partition("#")[0] for target in LINK.findall(prose))
    relative = (target for target in targets if target and not re.match(r"[a-z]+:", target))
    return [target for target in relative if not (page.parent / target).exists()]


def imported_modules(importtime: str) -> set[str]:
    """Top-level names in the output of `-X importtime`."""
    lines = (line for line in importtime.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_readme_shows_an_example_before_line_60() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert any(line.startswith("```") for line in lines[:59])


def test_the_first_picture_of_the_readme_is_the_live_page() -> None:
    """`make pictures` takes it."""
    first = re.search(r"!\[[^\]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    assert first is not None and first[1] == "docs/live.png"
    assert (ROOT / first[1]).read_bytes().startswith(b"\x89PNG")
    assert (ROOT / first[1]).stat().st_size <= 300_000


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_the_readme_names_with_what_it_costs(command: str) -> None:
    line = rf"^\$ {command} +# .*; downloads [\d.]+ GB once, then \d+ minutes"
    assert re.search(line, README.read_text("utf-8"), re.MULTILINE)


def test_no_block_of_code_in_the_readme_is_wider_than_a_small_terminal() -> None:
    lines = [line for _, block in blocks(README.read_text("utf-8")) for line in block.splitlines()]
    assert lines and [line for line in lines if len(line) > README_COLUMNS] == []


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.M)
    assert next(each for each in versions if each != "Unreleased") == mwatch.__version__


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_tree_has(folder: str) -> None:
    assert any(path.is_file() for path in (ROOT / folder).rglob("*")), f"{folder} holds no file"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_resolves(page: Path) -> None:
    assert broken_links(page, page.read_text("utf-8")) == []


def test_the_link_checker_sees_a_broken_link() -> None:
    text = "[a](nowhere.md#x) [b](https://example.org/) [c](#here) `[d](no.md)` [e](README.md)"
    assert broken_links(ROOT / "README.md", text) == ["nowhere.md"]


def test_help_imports_nothing_heavy() -> None:
    done = run_python("-m", "mwatch", "--help")
    assert done.returncode == 0, done.stderr
    assert "parse" in done.stdout
    assert imported_modules(done.stderr) & HEAVY == set()


def test_the_import_list_sees_a_heavy_module() -> None:
    assert "msgspec" in imported_modules(run_python("-c", "import msgspec").stderr)
