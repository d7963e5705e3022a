# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""How long `mwatch --help` takes on the wall, next to Python doing nothing."""

from __future__ import annotations

from statistics import median

from benchmarks.measure import python, run
from benchmarks.row import Row

TARGET_SECONDS = 0.3
_RUNS = 7


def row() -> Row:
    help_, nothing = [], []
    for _ in range(_RUNS):  # in turns, so that both see the same load
        help_.append(run(python("-m", "mwatch", "--help")).wall_seconds)
        nothing.append(run(python("-c", "pass")).wall_seconds)
    ours, theirs = median(help_), median(nothing)
    return Row(
        "help",
        f"{ours:.3f} s",
        f"{theirs:.3f} s",
        target=f"< {TARGET_SECONDS} s",
        met=ours < TARGET_SECONDS,
        note=f"median of {_RUNS} on the wall; other: python -c pass",
    )
