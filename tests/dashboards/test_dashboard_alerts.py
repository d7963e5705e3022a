# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whoever is paged finds a panel that shows it, and from there the page that says what to do."""

from __future__ import annotations

import re
from pathlib import Path

from dashboards.grafana import RUNBOOKS
from monitoring.panel_queries import ROOT, boards, panels

ALERT = re.compile(r"^\s*- alert: (\w+)$", re.MULTILINE)
PAGE = re.compile(r"mwatch runbook (\w+)")
URL = re.compile(r"runbook_url: *\"?(\S+?)\"?$", re.MULTILINE)


def rule_files() -> list[Path]:
    return sorted((ROOT / "alerts").glob("*.rules.yaml"))


def alerts() -> set[str]:
    return {name for path in rule_files() for name in ALERT.findall(path.read_text("utf-8"))}


def linked() -> dict[str, set[str]]:
    """Panels by the alert that they lead to."""
    found: dict[str, set[str]] = {}
    for name, board in boards().items():
        for panel in panels(board):
            for link in panel["links"]:
                alert = link["title"].removeprefix("Runbook: ")
                assert link["url"] == f"${{runbooks}}/{alert}.md"
                found.setdefault(alert, set()).add(f"{name} / {panel['title']}")
    return found


def test_every_alert_has_a_panel_and_every_panel_leads_to_an_alert_that_exists() -> None:
    assert linked().keys() == alerts()


def test_every_page_that_a_panel_leads_to_is_there() -> None:
    pages = {path.stem for path in (ROOT / "runbooks").glob("*.md")}
    assert linked().keys() <= pages


def test_the_description_names_the_same_pages_as_the_links() -> None:
    for board in boards().values():
        for panel in panels(board):
            named = PAGE.findall(panel["description"])
            assert [f"Runbook: {each}" for each in named] == [
                link["title"] for link in panel["links"]
            ]


def test_panels_lead_where_alerts_lead() -> None:
    urls = {url for path in rule_files() for url in URL.findall(path.read_text("utf-8"))}
    assert {url.rpartition("/")[0] for url in urls} == {RUNBOOKS}
