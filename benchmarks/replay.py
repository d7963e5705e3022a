# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How fast `mwatch replay` judges a log of nothing but iteration lines, beside mtail and beside
`mwatch parse` on the same file; and what the page of `mwatch report` costs beside `diagnose`.

mtail keeps the last value of ten fields; `parse` prints each event; `replay` folds every line
into the state of the job, looks for what is wrong, and keeps the goodput.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.measure import REPEATS, python, run_in_turns
from benchmarks.rates import Race
from benchmarks.row import Row

GIGABYTE = 1e9
MAX_SECONDS = 60.0
"""CPU seconds for a gigabyte: "seconds, not minutes"."""
MAX_REPORT = 1.5
"""CPU of `report` beside `diagnose`, which reads the same lines."""


def row(race: Race) -> Row:
    """Against mtail, with the seconds of a gigabyte as the target."""
    size = race.log.stat().st_size
    seconds = race.replayed.net_seconds * GIGABYTE / size
    note = (
        f"{size / 1e6:.0f} MB; {seconds:.0f} CPU s a gigabyte, of lines of {size // race.lines} "
        f"bytes; start-up taken off: {race.replayed.start_seconds:.2f}"
    )
    ratio = race.replayed.rate / race.theirs.rate
    target = f"<= {MAX_SECONDS:.0f} s/GB"
    met = seconds <= MAX_SECONDS
    return Row("replay", str(race.replayed), str(race.theirs), ratio, target, met, note)


def beside_parse_row(race: Race) -> Row:
    """Against our own command that only prints what it read."""
    ratio = race.replayed.rate / race.printed.rate
    return Row("replay-parse", str(race.replayed), str(race.printed), ratio)


def report_row(race: Race) -> Row:
    """The page against the verdict alone, by turns, each with its start-up."""
    with tempfile.TemporaryDirectory() as folder:
        page = str(Path(folder) / "report.html")
        diagnose = python("-m", "mwatch", "diagnose", "--json", str(race.log))
        report = python("-m", "mwatch", "report", "--force", "--out", page, str(race.log))
        ours, theirs = run_in_turns(report, diagnose, tries=REPEATS)
    ratio = ours.cpu_seconds / theirs.cpu_seconds
    note = f"{race.log.stat().st_size / 1e6:.0f} MB, {race.lines} lines, start-up included"
    page_cost, verdict_cost = f"{ours.cpu_seconds:.2f} CPU s", f"{theirs.cpu_seconds:.2f} CPU s"
    target, met = f"<= {MAX_REPORT:g}x", ratio <= MAX_REPORT
    return Row(f"report-{race.name}", page_cost, verdict_cost, ratio, target, met, note)
