# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the picture of the report in `docs/`, of a run that was really watched:

    mwatch report runs/NAME --out /tmp/report.html
    PYTHONPATH=sidecar:trainer:tests .venv/bin/python -m browser /tmp/report.html docs/report.png

Without a page it takes the log of an eventful run, that of the tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from browser.chromium import chromium
from browser.devtools import page
from browser.eventful import eventful_log
from mwatch.report.html.page import render
from support.builders.story import replayed
from support.debian_tools import ToolMissing

_WIDTH = 1200
_MAX_BYTES = 300_000
_SCALES = (2.0, 1.5, 1.25, 1.0)
"""The finest one that stays inside the bound."""
_END = """(() => {
  const box = document.querySelector("#incidents table").getBoundingClientRect();
  return Math.ceil(box.bottom + scrollY + 20);
})()"""


def picture(report: Path, target: Path, *, dark: bool) -> int:
    """From the headline to the table of incidents; returns its bytes."""
    with page(chromium()) as tab:
        for scale in _SCALES:
            tab.look(_WIDTH, 900, dark=dark, scale=scale)
            tab.open(report)
            tab.screenshot(target, (0, 0, _WIDTH, int(tab.value(_END))))
            if target.stat().st_size <= _MAX_BYTES:
                break
        if tab.complaints:
            raise SystemExit(f"the page complains: {tab.complaints[0]}")
    return target.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser("browser", description="A picture of a report.")
    parser.add_argument("report", nargs="?", type=Path, help="report.html")
    parser.add_argument("picture", type=Path, help="a .png to write")
    parser.add_argument("--dark", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asked.report
        if report is None:
            report = Path(folder) / "report.html"
            report.write_text(render(replayed(Path(folder), eventful_log(), "gpt-1b3")))
        try:
            size = picture(report, asked.picture, dark=asked.dark)
        except ToolMissing as error:
            sys.exit(str(error))
    print(f"{asked.picture} ({size / 1e3:.0f} kB)")


main()
