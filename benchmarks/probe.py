# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the probe costs: one tick in a busy rank, and the start of a Python that is no rank.

The main thread computes at the bottom of a deep stack while the ticks are taken. A tick costs the
trainer the CPU time of the probe's thread; that this thread also waits for its turn costs nobody.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from statistics import median

from benchmarks.measure import ROOT, python, run
from benchmarks.row import Row
from mwatch_trainer.probe.probe import Probe

TARGET_SECONDS = 0.001
START_SECONDS = 0.005
TICKS = 3000
_DEPTH = 120
_STARTS = 15
_SITE = str(ROOT / "trainer" / "mwatch_trainer" / "site")


def row() -> Row:
    seen = json.loads(run(python("-m", "benchmarks.probe"), tries=3).output)
    return Row(
        "probe-tick",
        f"{seen['p99'] * 1e6:.0f} us",
        target=f"<= {TARGET_SECONDS * 1e6:.0f} us",
        met=seen["p99"] <= TARGET_SECONDS,
        note=f"p99 of {TICKS} ticks, median {seen['median'] * 1e6:.0f} us; CPU of its thread",
    )


def start_row() -> Row:
    """`python -c pass` under the wrapper, next to one outside of it."""
    with tempfile.TemporaryDirectory() as folder:
        # Compiled once, as installed packages are; not into the source tree.
        plain = ["env", "-u", "PYTHONDONTWRITEBYTECODE", "-u", "PYTHONPATH"]
        plain.append(f"PYTHONPYCACHEPREFIX={folder}/compiled")
        under = [*plain, f"MWATCH_DIR={folder}", f"PYTHONPATH={_SITE}", *python("-c", "pass")]
        outside = [*plain, *python("-c", "pass")]
        run(under)
        run(outside)
        pairs = [(run(under).cpu_seconds, run(outside).cpu_seconds) for _ in range(_STARTS)]
    ours, theirs = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
    return Row(
        "probe-no-rank",
        f"{ours * 1e3:.1f} ms",
        f"{theirs * 1e3:.1f} ms",
        target=f"< {START_SECONDS * 1e3:.0f} ms more",
        met=ours - theirs < START_SECONDS,
        note=f"CPU of python -c pass, median of {_STARTS}; other: without the wrapper",
    )


def _work(depth: int, done: threading.Event) -> None:
    if depth:
        _work(depth - 1, done)
        return
    while not done.is_set():
        sum(range(1000))


def _tick(probe: Probe, costs: list[float], done: threading.Event) -> None:
    try:
        for _ in range(TICKS):
            began = time.thread_time()
            probe.tick()
            costs.append(time.thread_time() - began)
            time.sleep(0.0005)
    finally:
        done.set()


def main() -> int:
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")
    done, costs = threading.Event(), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        probe = Probe(folder, is_sure=True)
        threading.Thread(target=_tick, args=(probe, costs, done)).start()
        _work(_DEPTH, done)
        probe.end()
    costs.sort()
    print(json.dumps({"p99": costs[len(costs) * 99 // 100], "median": median(costs)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
