# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Prints a table of the measurements.

Exit codes: 0 all targets met, 1 a target missed or two programs that read different values,
2 usage or a tool that cannot be had.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from benchmarks import (
    data,
    fleet_page,
    hang,
    memory,
    page,
    probe,
    rates,
    replay,
    robustness,
    sidecar,
    stacks,
    startup,
    wrapper,
)
from benchmarks.measure import REPEATS, ChildFailed
from benchmarks.row import Row, as_record, table
from benchmarks.ten_fields import Disagreement
from support.debian_tools import ToolMissing


class Size(NamedTuple):
    iteration_lines: int = 300_000
    noisy_lines: int = 1_500_000
    stream_bytes: int = 1_000_000_000
    mutations: int = 1_000_000
    singles: int = 20_000
    printed_bytes: int = 600_000_000
    hangs: int = 4
    idle_seconds: float = 120.0
    flood_seconds: float = 30.0
    text_bytes: int = 6_000_000


_QUICK = Size(30_000, 150_000, 100_000_000, 20_000, 1000, 200_000_000, 2, 15.0, 5.0, 1_500_000)
_READ_ITERATIONS = 10.0
_READ_NOISY = 20.0


def measurements(size: Size) -> dict[str, Callable[[], Row]]:
    @cache
    def iterations() -> rates.Race:
        return rates.Race("iterations", size.iteration_lines)

    @cache
    def noisy() -> rates.Race:
        return rates.Race("noisy", size.noisy_lines)

    @cache
    def hangs() -> hang.Trial:
        return hang.Trial(size.hangs)

    return {
        "read-iterations": lambda: rates.read_row(iterations(), target=_READ_ITERATIONS),
        "read-noisy": lambda: rates.read_row(noisy(), target=_READ_NOISY),
        "read-iterations-tuned": lambda: rates.tuned_row(iterations()),
        "read-noisy-tuned": lambda: rates.tuned_row(noisy()),
        "parse-iterations": lambda: rates.parse_row(iterations()),
        "parse-noisy": lambda: rates.parse_row(noisy()),
        "replay": lambda: replay.row(iterations()),
        "replay-parse": lambda: replay.beside_parse_row(iterations()),
        "report-iterations": lambda: replay.report_row(iterations()),
        "report-noisy": lambda: replay.report_row(noisy()),
        "memory": lambda: memory.row(size.stream_bytes),
        "help": startup.row,
        "fuzz": lambda: robustness.row(size.mutations, size.singles),
        "probe-tick": probe.row,
        "probe-no-rank": probe.start_row,
        "wrapper": lambda: wrapper.row(size.printed_bytes),
        "wrapper-busy": lambda: wrapper.busy_row(size.printed_bytes),
        "hang": lambda: hangs().row(),
        "hang-heartbeats": lambda: hangs().heartbeats_row(),
        "stacks": stacks.merging,
        "data": lambda: data.row(size.text_bytes),
        **sidecar.measurements(size.idle_seconds, size.flood_seconds),
        **page.measurements(size.idle_seconds),
        **fleet_page.measurements(),
    }


def _options(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=names, help="repeatable")
    parser.add_argument("--quick", action="store_true", help="small sizes, in about two minutes")
    parser.add_argument("--json", action="store_true", help="rows as a JSON list")
    return parser.parse_args()


def main() -> int:
    options = _options(list(measurements(Size())))
    rows: list[Row] = []
    for name, measure in measurements(_QUICK if options.quick else Size()).items():
        if options.only and name not in options.only:
            continue
        print(f"measuring {name}", file=sys.stderr, flush=True)
        rows.append(measure())
    if options.json:
        print(json.dumps([as_record(row) for row in rows], indent=2))
    else:
        print(table(rows))
        print(f"Speeds are per CPU second on one core, best of {REPEATS}, start-up taken off.")
    return int(any(row.met is False for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Disagreement as problem:
        print(f"benchmarks: {problem}", file=sys.stderr)
        sys.exit(1)
    except (ChildFailed, ToolMissing) as problem:
        print(f"benchmarks: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
