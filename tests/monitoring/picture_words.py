# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers and colours as Grafana would write and paint them, nearly."""

from __future__ import annotations

import math
from typing import Any

COLORS = {
    "green": "#73bf69", "light-green": "#c8f2c2", "yellow": "#f2cc0c", "light-yellow": "#ffee52",
    "orange": "#ff9830", "red": "#f2495c", "dark-red": "#8f3b4b", "blue": "#5794f2",
    "light-blue": "#8ab8ff", "purple": "#b877d9", "text": "#8e8e8e",
}  # fmt: skip
LINES = ("#5794f2", "#73bf69", "#ff9830", "#b877d9", "#f2495c", "#fade2a", "#8ab8ff", "#96d98d")
_SCALED = {"bytes": "B", "Bps": "B/s", "hertz": "Hz", "watt": "W"}
_PLAIN = {"celsius": " °C", "cps": "/s", "s": " s"}


def told(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return str(value)
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit == "sci":
        return f"{value:.2e}"
    if unit in _SCALED:
        for scale, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= scale:
                return f"{value / scale:.1f} {letter}{_SCALED[unit]}"
        return f"{value:.0f} {_SCALED[unit]}"
    return f"{value:.4g}{_PLAIN.get(unit, '')}"


def color_of(value: float, panel: dict[str, Any]) -> str:
    """By what the value stands for, else by the bands."""
    if state := state_of(value, panel):
        return COLORS[state["color"]]
    defaults = panel["fieldConfig"]["defaults"]
    color = "text"
    for step in defaults["thresholds"]["steps"]:
        if step["value"] is None or value >= step["value"]:
            color = step["color"]
    return COLORS[color]


def state_of(value: float, panel: dict[str, Any]) -> dict[str, Any] | None:
    for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
        if found := mapping["options"].get(f"{value:g}"):
            state: dict[str, Any] = found
            return state
    return None
