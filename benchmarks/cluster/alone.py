# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's loop and its polls against the fleet alone, without a cluster.

`python -m benchmarks.cluster.alone --pods 2048`. Pods live at addresses of 127.64.0.0/10, and the
view of the API server is made up, so sizes fit here for which a control plane has no room. What
the API server's watches cost is left out; at rest that is little.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import urllib3

from benchmarks.cluster.fleet import ORDERS, PORT, write_seeds
from benchmarks.cluster.fleet_page import Place
from benchmarks.cluster.processes import cpu_seconds
from benchmarks.cluster.seeds import gather
from benchmarks.measure import ROOT
from benchmarks.serving import environment
from mwatch.config.controller import ControllerSettings
from mwatch.controller.controller import TICK_SECONDS, Controller
from mwatch.fleet.cluster_view import FleetView, JobSeen, PodSeen
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.access import Access
from mwatch.kube.connect import Connection
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.pod import KubePod
from mwatch.runtime.self_monitoring import tune_process
from support.builders import kube

NAME = "train"
SIZES = (512, 2048, 8192)
_NOWHERE = "http://127.0.0.1:9"
_SEEN_SECONDS = 120.0
_SETTLE_SECONDS = 15.0
_VERDICT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Alone:
    pods: int
    cpu: float
    """Of one core, at rest; the API server's watches are not part of it."""
    loop_cpu: float
    """Of that, the thread that evaluates; the rest is the thread that asks."""
    fleet_cpu: float
    messages_per_second: float
    verdict_seconds: float | None
    """From the stop of a pod to the verdict that names it."""


class MadeUpView(FleetView):
    def __init__(self, access: Access, places: Sequence[Place]) -> None:
        super().__init__(access, "ns", time.time)
        self._job = replace(kube.pytorch_job(workers=len(places) - 1), name=NAME)
        self._pods = tuple(PodSeen(_pod(each), PORT) for each in places)  # type: ignore[assignment]

    def look(self) -> list[JobSeen]:
        pods: Any = self._pods
        facts = KubeFacts(time.time(), self._job, NAME, pods=tuple(each.pod for each in pods))
        return [JobSeen(facts, pods, 1.0)]


def _pod(place: Place) -> KubePod:
    return replace(kube.pod(place.name), uid=place.uid, ip=place.address)


def places(pods: int) -> list[Place]:
    return [
        Place(number, f"{NAME}-{number}", f"uid-{number}", "ns", f"node-{number}",
              f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}")
        for number in range(pods)
    ]  # fmt: skip


def order(path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = Request(f"http://127.0.0.1:{ORDERS}{path}", json.dumps(body).encode())
    with urlopen(request, timeout=120) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def fleet(seeds: Path) -> Iterator[int]:
    words = [sys.executable, "-m", "benchmarks.cluster.fleet", str(seeds)]
    process = subprocess.Popen(words, env=environment(), cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                order("/stats", {})
                break
            except (URLError, OSError):
                time.sleep(0.1)
        yield process.pid
    finally:
        process.kill()
        process.wait()


class Trial:
    def __init__(self, pods: int, fleet_pid: int) -> None:
        self._fleet_pid = fleet_pid
        self._places = places(pods)
        order(
            "/pods", {"run": NAME, "attempt": 1, "pods": [each._asdict() for each in self._places]}
        )
        access = Access(Connection(_NOWHERE, urllib3.PoolManager(), lambda: None, "ns"))
        view = MadeUpView(access, self._places)
        settings = ControllerSettings(namespace="ns")
        self._controller = Controller(settings, access, None, lambda text: None, fleet=view)
        self._controller.poll.start()

    def run(self, rest_seconds: float) -> Alone:
        try:
            self._turn_until(self._are_seen, _SEEN_SECONDS)
            self._turn(_SETTLE_SECONDS)
            before = self._use()
            self._turn(rest_seconds)
            cpu, loop, fleet_cpu, messages = (
                (after - first) / rest_seconds
                for after, first in zip(self._use(), before, strict=True)
            )
            stopped = self._places[len(self._places) // 2]
            at = order("/stop", {"pod": stopped.number})["at"]
            named = self._turn_until(lambda watch: _blames(watch, stopped.name), _VERDICT_SECONDS)
            verdict = None if named is None else named - at
            return Alone(len(self._places), cpu, loop, fleet_cpu, messages, verdict)
        finally:
            self._controller.close()

    def _use(self) -> tuple[float, float, float, float]:
        return (
            time.process_time(), time.thread_time(), cpu_seconds(self._fleet_pid),
            float(self._controller.poll.polls),
        )  # fmt: skip

    def _turn(self, seconds: float) -> None:
        self._turn_until(lambda watch: False, seconds)

    def _turn_until(self, is_so: Any, seconds: float) -> float | None:
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            self._controller.turn()
            if any(is_so(each) for each in self._controller.jobs):
                return time.time()
            time.sleep(max(0.0, min(TICK_SECONDS - (time.monotonic() - began), until - began)))
        return None

    def _are_seen(self, watch: JobMonitor) -> bool:
        return len(watch.seen(time.time()).answering) == len(self._places)


def _blames(watch: JobMonitor, pod: str) -> bool:
    found = watch.verdict
    return found is not None and found.culprit is not None and found.culprit.pod == pod


def table(every: Sequence[Alone]) -> str:
    lines = ["| pods | CPU at rest | of it the loop | messages a second | the fleet's own CPU "
             "| stop to verdict |", "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for each in every:
        verdict = "none" if each.verdict_seconds is None else f"{each.verdict_seconds:.1f} s"
        lines.append(
            f"| {each.pods:,} | {each.cpu:.1%} | {each.loop_cpu:.1%} "
            f"| {each.messages_per_second:.0f} | {each.fleet_cpu:.1%} | {verdict} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.cluster.alone", description=__doc__)
    parser.add_argument("--pods", action="append", type=int, help="repeatable; else 512 to 8192")
    parser.add_argument("--rest", type=float, default=30.0, help="seconds at rest")
    parser.add_argument("--seeds", type=Path, help="file with recorded answers; else made anew")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tune_process()
    with tempfile.TemporaryDirectory() as folder:
        seeds = options.seeds or Path(folder) / "seeds.json"
        if not seeds.exists():
            write_seeds(seeds, gather())
        every = []
        for pods in options.pods or SIZES:
            with fleet(seeds) as pid:
                every.append(Trial(pods, pid).run(options.rest))
    print(json.dumps([asdict(each) for each in every]) if options.json else table(every))
    return int(any(each.verdict_seconds is None for each in every))


if __name__ == "__main__":
    sys.exit(main())
