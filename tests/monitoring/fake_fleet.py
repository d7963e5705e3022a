# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A controller's own pages over a job that is made up: eight pods that train, seen each second.

Job, verdict and every number pass through the code of the real controller. What it would hear from
an API server and from sidecars is made up, and so are the counts of its calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mwatch.controller.server import ControllerPages, ControllerStats, FleetMetrics, job_json
from mwatch.export.http.server import Server
from mwatch.kube.mirror import MirrorStatus
from mwatch.remediate.manager import Remediation
from mwatch.remediate.status import RemediationStatus
from support.runs.job_monitor_runs import Fleet

ROOT = Path(__file__).resolve().parents[2]
RUN = "train"
"""As `job_watch_runs` names it."""
NAMESPACE = "ns"
POD = "mwatch-controller-0"
PLACE = {"namespace": NAMESPACE, "pod": POD}
_PODS = 8
_PAST_SECONDS = 60
_SIGHT = MirrorStatus(1.5, "", True)


def _told(turn: int) -> ControllerStats:
    sights = {"pods": _SIGHT, "pytorchjobs": _SIGHT}
    polls = turn * _PODS // 5
    return ControllerStats(
        True, polls, {"late": turn // 20}, turn * 2, sights, 4, 0, 0.01, notified={"sent": turn}
    )


@contextmanager
def fake_fleet() -> Iterator[str]:
    """The address of its metrics. A process of its own, as a controller is: it tells of its own
    memory and time, and those of the tests are larger."""
    folders = ("sidecar", "trainer", "tests", "tests/monitoring")
    paths = [str(ROOT / each) for each in folders]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(
        [sys.executable, "-m", "fake_fleet"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(60)


def main() -> None:
    """Until standard input ends."""
    now = time.time()
    fleet = Fleet(_PODS, started_at=now - _PAST_SECONDS)
    fleet.now = now - _PAST_SECONDS
    metrics = FleetMetrics(fleet.now)
    pages = ControllerPages(NAMESPACE, metrics, Remediation(), lambda: True)
    turns, ends = iter(range(1, 10**9)), threading.Event()

    def look() -> None:
        metrics.update([fleet.watch], _told(next(turns)), fleet.now)
        pages.update([job_json(fleet.watch, RemediationStatus(), fleet.now)])

    def live() -> None:
        while not ends.wait(max(0.0, fleet.now + 1.0 - time.time())):
            fleet.run(1)
            look()

    fleet.run(_PAST_SECONDS)
    look()
    server = Server(pages.pages(), port=0)
    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    print(f"127.0.0.1:{server.port}", flush=True)
    sys.stdin.read()
    ends.set()
    thread.join(10)
    server.close()


if __name__ == "__main__":
    main()
