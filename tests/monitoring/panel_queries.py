# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every query of every dashboard, from the JSON that users import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "dashboards"


class PanelQuery(NamedTuple):
    board: str
    panel: str
    ref: str
    """Which query of the panel; for an annotation: "annotation"."""
    expr: str
    is_instant: bool

    @property
    def name(self) -> str:
        return f"{self.board} / {self.panel} / {self.ref}"

    def filled(self, **values: str) -> str:
        """With the variables replaced, as Grafana does before it asks Prometheus."""
        expr = self.expr
        values = {"cluster": ".*"} | values
        for name in sorted(values, key=len, reverse=True):
            expr = expr.replace(f"${name}", values[name])
        return expr


def boards() -> dict[str, dict[str, Any]]:
    """By file name, without its ending."""
    return {
        path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))
    }


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Without the headings, and with what lies in collapsed rows."""
    every = [each for panel in board["panels"] for each in (panel, *panel.get("panels", ()))]
    return [each for each in every if each["type"] != "row"]


def queries() -> list[PanelQuery]:
    found = []
    for name, board in boards().items():
        for panel in panels(board):
            found += [
                PanelQuery(name, panel["title"], target["refId"], target["expr"], target["instant"])
                for target in panel["targets"]
            ]
        for each in board["annotations"]["list"]:
            found.append(PanelQuery(name, each["name"], "annotation", each["expr"], False))
    return found


TIMES = {"__rate_interval": "6s", "__interval": "2s", "__range": "5m"}
"""For scrapes of a second: Grafana takes four times the interval of the scrape, at least."""
