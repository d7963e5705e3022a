# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The JSON files are fresh, whole, and say what they show."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import takewhile
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.write import files
from monitoring.panel_queries import FOLDER, boards, panels

BOARDS = boards()
EVERY = [panel for board in BOARDS.values() for panel in panels(board)]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def every_part(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Headings and panels, also those in collapsed rows."""
    return [each for panel in board["panels"] for each in (panel, *panel.get("panels", ()))]


def test_the_committed_files_are_what_the_source_makes() -> None:
    committed = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.json")}
    assert committed == files(), "run `python -m dashboards`"


def lost(before: Any, after: Any, path: str = "") -> list[str]:
    """What is not the same any more; what was added does not matter."""
    if isinstance(before, dict):
        keys = [key for key in before if key not in after]
        found = [f"{path}.{key}" for key in keys]
        for key in before.keys() & after.keys():
            found += lost(before[key], after[key], f"{path}.{key}")
        return found
    if isinstance(before, list):
        parts = zip(before, after, strict=True)
        return [
            each for number, (a, b) in enumerate(parts) for each in lost(a, b, f"{path}{number}")
        ]
    return [] if before == after else [path]


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_own_types_read_it_and_lose_nothing(name: str) -> None:
    register_default_plugins()
    read = json.loads(json.dumps(Dashboard.from_json(BOARDS[name]), cls=JSONEncoder))
    unknown = re.compile(r"\.annotations\.list\d+\.(step|titleFormat|textFormat)")
    assert [each for each in lost(BOARDS[name], read) if not unknown.fullmatch(each)] == []


def test_there_are_five_and_each_has_a_name_of_its_own() -> None:
    assert set(BOARDS) == {"run", "fleet", "gpu-network", "goodput", "mwatch"}
    for key in ("uid", "title"):
        assert len({board[key] for board in BOARDS.values()}) == 5
    assert all(len(board["uid"]) <= 40 for board in BOARDS.values())  # Grafana's limit


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_titles_and_numbers_of_their_own(name: str) -> None:
    found = every_part(BOARDS[name])
    for key in ("id", "title"):
        again = [each for each, count in Counter(one[key] for one in found).items() if count > 1]
        assert again == []


def test_a_panel_has_a_description_a_unit_and_queries() -> None:
    for panel in EVERY:
        assert len(panel["description"]) > 10, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) > 0, panel["title"]


def test_a_panel_asks_the_source_that_the_user_picked() -> None:
    for panel in EVERY:
        assert panel["datasource"] == SOURCE, panel["title"]
        assert all(target["datasource"] == SOURCE for target in panel["targets"]), panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_variables_and_annotations_ask_it_too(name: str) -> None:
    board = BOARDS[name]
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert {"datasource", "cluster", "namespace", "run", "runbooks"} <= set(variables)
    asked = [each for each in variables.values() if each["type"] == "query"]
    assert all(each["datasource"] == SOURCE for each in asked)
    assert all(each["datasource"] == SOURCE for each in board["annotations"]["list"])


@pytest.mark.parametrize("name", BOARDS)
def test_all_means_also_those_without_the_label(name: str) -> None:
    for each in BOARDS[name]["templating"]["list"]:
        if each.get("includeAll"):
            assert each["allValue"] == ".*"
            assert each["current"]["value"] == "$__all"


@pytest.mark.parametrize("name", sorted(set(BOARDS) - {"mwatch"}))
def test_incidents_and_restarts_are_marked(name: str) -> None:
    marks = BOARDS[name]["annotations"]["list"]
    assert [each["name"] for each in marks] == ["Incidents", "Restarts"]
    assert all(each["titleFormat"] for each in marks)


@pytest.mark.parametrize("name", BOARDS)
def test_panels_fill_lines_and_do_not_overlap(name: str) -> None:
    taken: Counter[tuple[int, int]] = Counter()
    for each in every_part(BOARDS[name]):
        place = each["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        taken.update((x, y) for x in columns for y in range(place["y"], place["y"] + place["h"]))
    assert max(taken.values()) == 1
    assert max(x for x, _ in taken) == 23
    rows = Counter(y for _, y in taken)
    assert set(rows.values()) == {24}


def test_the_row_on_top_is_open_and_details_are_collapsed() -> None:
    rows = {name: [each for each in board["panels"] if each["type"] == "row"]
            for name, board in BOARDS.items()}  # fmt: skip
    assert not any(each[0]["collapsed"] for each in rows.values())
    assert all(any(row["collapsed"] for row in each) for each in rows.values())
    for each in rows.values():
        assert all(bool(row["panels"]) == row["collapsed"] for row in each)


PLAIN = {"Iteration", "Progress", "Time to go", "Runs", "Ranks in training"}
PLAIN |= {"Time lost", "Rank hours lost"}
"""Amounts that are neither good nor bad."""


@pytest.mark.parametrize("name", ["run", "fleet", "goodput"])
def test_numbers_in_the_row_on_top_have_colours_at_thresholds(name: str) -> None:
    first, *rest = BOARDS[name]["panels"]
    top = list(takewhile(lambda each: each["type"] != "row", rest))
    assert first["type"] == "row" and top
    for panel in top:
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert (len(steps) > 1) == (panel["title"] not in PLAIN), panel["title"]


SCALED = {"percentunit", "s", "bytes", "Bps", "hertz", "short"}


def test_a_scaled_number_has_two_or_three_digits() -> None:
    for panel in EVERY:
        defaults = panel["fieldConfig"]["defaults"]
        if panel["type"] != "table" and defaults["unit"] in SCALED:
            assert defaults["decimals"] == 1, panel["title"]


BANDS = [
    ("run", "Gradient norm", [None, 1e-6, 0.1, 10, 100]),
    ("run", "Loss relative to its 30-minute median", [None, 0.2, 0.5]),
    ("gpu-network", "Utilisation", [None, 0.01, 0.5, 0.7]),
    ("gpu-network", "Memory bandwidth (dcgm-exporter)", [None, 0.4, 0.7]),
    ("gpu-network", "Temperature", [None, 78, 83]),
]


@pytest.mark.parametrize(("board", "title", "expected"), BANDS)
def test_bands_of_health_are_those_that_operators_use(
    board: str, title: str, expected: list[float | None]
) -> None:
    (panel,) = [each for each in panels(BOARDS[board]) if each["title"] == title]
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [each["value"] for each in steps] == expected
