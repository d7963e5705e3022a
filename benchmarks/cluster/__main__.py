# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Measures `mwatch controller` on jobs of 64, 512 and 2,048 pods, one after the other.

Needs root and Go, as `make test-cluster` does. Exit codes: 0 measured, 1 a target was missed,
2 something that is needed cannot be had or did not come up, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from benchmarks.cluster import kwok
from benchmarks.cluster.figures import Figures, as_record, missed, table
from benchmarks.cluster.fleet_orders import FleetProcess
from benchmarks.cluster.processes import Cores
from benchmarks.cluster.seeds import Seeds, gather
from benchmarks.cluster.site import site
from benchmarks.cluster.trial import Trial
from benchmarks.measure import ChildFailed
from cluster.binaries import GoMissing
from cluster.namespaces import ClusterBroken
from support.debian_tools import ToolMissing

SIZES = (64, 512, 2048)
_REST_SECONDS = 60.0


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    if os.geteuid() != 0:
        print("benchmarks: a cluster needs root", file=sys.stderr)
        return 2
    print("mwatch: asking real sidecars, half a minute", file=sys.stderr, flush=True)
    cores = Cores()
    every = _measure(gather(), options.pods or SIZES, options.rest, cores)
    if options.json:
        print(json.dumps([as_record(each) for each in every], indent=2))
    else:
        print(table(every))
        for each in every:
            print(f"{each.pods} pods, stop to last delete: {each.most_calls}")
        if not cores.are_two:
            print("One core only: the controller shared it with everything else.")
    problems = [words for each in every for words in missed(each)]
    for words in problems:
        print(f"MISS {words}")
    return int(bool(problems))


def _measure(
    seeds: Seeds, sizes: Sequence[int], rest_seconds: float, cores: Cores
) -> list[Figures]:
    found: list[Figures] = []
    with site() as plane:
        fleet = FleetProcess(plane, seeds)
        before: Trial | None = None
        nodes = 0
        for pods in sorted(sizes):
            if before is not None:
                before.clear()
            kwok.add_nodes(plane, nodes, pods)
            nodes = pods
            before = Trial(plane, fleet, pods, rest_seconds=rest_seconds, cores=cores)
            found.append(before.run())
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--pods", action="append", type=int, help="repeatable; else 64, 512, 2048")
    parser.add_argument("--rest", type=float, default=_REST_SECONDS, help="seconds at rest")
    parser.add_argument("--json", action="store_true", help="figures as a JSON list")
    return parser.parse_args()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ChildFailed, ToolMissing, GoMissing, ClusterBroken) as problem:
        print(f"benchmarks: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
