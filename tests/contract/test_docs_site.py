# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The menu, the links and the generated pages of the site; `make docs` builds it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs_site import names, reference
from docs_site.offline import requests_of
from docs_site.pages import broken_links, runbook_menu, texts, translate
from mwatch.cli.program import GROUPS
from mwatch.model.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
PAGES = {
    path.relative_to(ROOT / "docs").as_posix(): path.read_text("utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md"))
} | texts()


def menu(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for value in entry.values():
            yield from menu(value)
    else:
        for each in entry:
            yield from menu(each)


def test_every_page_is_in_the_menu_once_and_the_menu_has_only_pages() -> None:
    listed = Counter([*menu(CONFIG["nav"]), *runbook_menu()])
    assert sorted(listed) == sorted(PAGES)
    assert [path for path, count in listed.items() if count > 1] == []


@pytest.mark.parametrize("path", PAGES)
def test_every_link_of_a_page_leads_somewhere(path: str) -> None:
    assert broken_links(PAGES[path], path, PAGES.keys()) == []


def test_a_broken_link_is_noticed() -> None:
    text = "[a](gone.md) [b](../gone.py) `[c](no.md)` [d](https://example.org/) [e](concepts.md#x)"
    assert broken_links(text, "limits.md", PAGES.keys()) == ["docs/gone.md", "gone.py"]


def test_a_link_leads_to_the_page_or_else_to_the_repository() -> None:
    text = "[a](../runbooks/README.md#x) [b](../Makefile) [c](metrics.md)"
    assert translate(text, "limits.md", PAGES.__contains__) == (
        "[a](runbooks/README.md#x) "
        "[b](https://github.com/mwatch-dev/mwatch/blob/main/Makefile) [c](metrics.md)"
    )


def test_all_commands_settings_annotations_and_variables_are_in_the_reference() -> None:
    commands, policy = reference.commands(), reference.policy()
    for group in GROUPS.values():
        assert all(f"### mwatch {each}\n" in commands for each in group)
    for name in Settings.__dataclass_fields__:
        section = getattr(Settings(), name)
        assert f"## [{name}]" in policy
        assert all(f"| `{field}` |" in policy for field in section.__dataclass_fields__)
    assert all(f"`{name}`" in reference.annotation_names() for name in names.ANNOTATIONS)
    assert all(f"`{name}`" in reference.environment() for name in names.VARIABLES)


def test_a_setting_has_its_default_and_its_reason() -> None:
    rows = reference.policy()
    reason = "fewer than half of the steps the run is lost, not just slow"
    assert f"| `skip_rate_lost` | `0.5` | with {reason} |" in rows
    assert "| `saving` | `1800 / 3 / 300 / 7200` | storage may be slow |" in rows


def test_what_a_page_would_load_from_another_host_is_noticed() -> None:
    page = '<link href="//fonts.example/x.css"><script src="a.js"></script><a href="https://b/">'
    assert requests_of(page) == ["//fonts.example/x.css"]
    assert requests_of('<pre class="mermaid">') and not requests_of('<pre class="highlight">')


def test_the_site_asks_no_other_host() -> None:
    theme = CONFIG["theme"]
    assert theme["font"] is False
    assert "repo_url" not in CONFIG and "extra_javascript" not in CONFIG


def test_the_workflow_builds_the_site() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    assert {"run": "make docs"} in workflow["jobs"]["docs"]["steps"]
    target = re.search(r"^docs: \.venv/docs .*\n(?:\t.*\n)+", (ROOT / "Makefile").read_text(), re.M)
    assert target is not None and "--strict" in target[0] and "docs_site.offline" in target[0]
