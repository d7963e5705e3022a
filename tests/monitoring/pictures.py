# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`docs/dashboards/*.png`: the data of each dashboard, drawn from the run that the tests watch.

By hand, in a checkout with torch: `PYTHONPATH=sidecar:trainer:tests python -m monitoring.pictures`.
It is a drawing of what the queries return, not what Grafana paints.
"""

from __future__ import annotations

import io
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from monitoring import fake_pod
from monitoring.live_training import RUN
from monitoring.panel_queries import ROOT, boards
from monitoring.picture_data import moments_of
from monitoring.picture_panels import Canvas, draw
from monitoring.watched_run import Watched, watched_run

FOLDER = ROOT / "docs" / "dashboards"
MAX_BYTES = 300_000
_ROW_INCHES = 0.235
_COLUMN_INCHES = 0.56
_REAL = "a real run of two ranks on one machine, which stalled and was restarted by mwatch"
_FAKE = "a simulated job, because this machine has no GPU and no such network card"
_FLEET = "a simulated job, and a controller of a simulated fleet"
_SHOWN = {
    "run": (RUN, _REAL),
    "fleet": (".*", f"{_REAL}; and {_FLEET}"),
    "gpu-network": (fake_pod.RUN, _FAKE),
    "goodput": (".*", f"{_REAL}; and {_FAKE}"),
    "mwatch": (".*", f"{_REAL}; and {_FLEET}"),
}


def picture(watched: Watched, board: dict[str, Any], run: str, caption: str) -> Figure:
    every = [each for panel in board["panels"] for each in (panel, *panel.get("panels", ()))]
    rows = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in every)
    height = (rows + 4) * _ROW_INCHES
    figure = Figure(figsize=(24 * _COLUMN_INCHES, height), layout=None, facecolor="white")
    figure.text(0.012, 1 - 0.22 / height, board["title"], fontsize=13, va="top", weight="bold")
    words = f"Drawn from the data of this dashboard; not a screenshot of Grafana. Data: {caption}."
    figure.text(0.012, 1 - 0.5 / height, words, fontsize=7.5, va="top", color="#555555")
    marks = {
        each["iconColor"]: moments_of(watched, each, run) for each in board["annotations"]["list"]
    }
    for panel in every:
        place = panel["gridPos"]
        top = 1 - (place["y"] + 3) * _ROW_INCHES / height
        if panel["type"] == "row":
            figure.text(0.012, top - 0.005, panel["title"], fontsize=9, va="top", color="#3871dc")
            continue
        left, width = place["x"] / 24, place["w"] / 24
        tall = place["h"] * _ROW_INCHES / height
        inner = 0.045 if place["w"] > 6 else 0.035
        box = (left + inner, top - tall + 0.3 / height, width - inner - 0.01, tall - 0.55 / height)
        draw(Canvas(figure.add_axes(box), panel, watched, run, marks))
    return figure


def save(figure: Figure, path: Path) -> int:
    """Few colours: a drawing needs no more, and the repository stays small."""
    whole = io.BytesIO()
    figure.savefig(whole, dpi=100)
    whole.seek(0)
    with Image.open(whole) as image:
        image.convert("RGB").quantize(64).save(path, optimize=True)
    return path.stat().st_size


def _story(folder: Path) -> AbstractContextManager[Watched]:
    """As the tests have it, but with more training before the fault and after it."""
    return watched_run(folder, fault_at=400, linger_seconds=25)


def main() -> None:
    mpl.rcParams["font.family"] = "DejaVu Sans"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _story(Path(folder)) as watched:
        for name, board in boards().items():
            size = save(picture(watched, board, *_SHOWN[name]), FOLDER / f"{name}.png")
            print(f"{name}.png {size} bytes")
            if size > MAX_BYTES:
                sys.exit(f"{name}.png is larger than {MAX_BYTES} bytes")


if __name__ == "__main__":
    main()
