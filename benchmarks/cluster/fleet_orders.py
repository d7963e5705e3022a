# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmark's hand on the fleet: who lives where, who stops, and what it has answered."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import Request, urlopen

from benchmarks.cluster import processes
from benchmarks.cluster.fleet import ORDERS, write_seeds
from benchmarks.cluster.fleet_page import Place
from benchmarks.cluster.seeds import Seeds
from benchmarks.cluster.site import BenchPlane
from benchmarks.cluster.training_job import NAME
from benchmarks.measure import ROOT
from benchmarks.serving import environment

_START_SECONDS = 30.0


class FleetUse(NamedTuple):
    snapshots: int
    cpu_seconds: float
    counts: dict[str, int]


class FleetProcess:
    def __init__(self, plane: BenchPlane, seeds: Seeds) -> None:
        file = plane.folder / "seeds.json"
        write_seeds(file, seeds)
        words = [*processes.FIRST, sys.executable, "-m", "benchmarks.cluster.fleet", str(file)]
        settings = environment()
        plane.namespaces.start("fleet", words, {**settings, "PYTHONPATH": _path(settings)})
        self.pid = processes.find(plane.namespaces.first, "benchmarks.cluster.fleet")
        plane.namespaces.wait_for("the fleet", self._is_there, _START_SECONDS)

    def settle(self, places: Sequence[Place], attempt: int = 1) -> None:
        pods = [each._asdict() for each in places]
        self._order("/pods", {"run": NAME, "attempt": attempt, "pods": pods})

    def stop(self, pod: int) -> float:
        """The pod of that number; when, by the wall clock."""
        return float(self._order("/stop", {"pod": pod})["at"])

    def use(self) -> FleetUse:
        stats = self._order("/stats", {})
        counts: dict[str, int] = stats["counts"]
        return FleetUse(counts.get("GET /v1/snapshot", 0), processes.cpu_seconds(self.pid), counts)

    def _is_there(self) -> bool:
        try:
            return bool(self._order("/stats", {}))
        except (URLError, OSError):
            return False

    def _order(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = Request(f"http://127.0.0.1:{ORDERS}{path}", json.dumps(body).encode())
        with urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def _path(settings: dict[str, str]) -> str:
    """Absolute: the process starts in another folder."""
    return ":".join([settings["PYTHONPATH"], str(Path(ROOT))])


def waited(seconds: float) -> float:
    """How long it really was."""
    began = time.monotonic()
    time.sleep(seconds)
    return time.monotonic() - began
