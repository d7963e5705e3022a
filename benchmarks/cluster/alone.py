# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's loop and its polls against the fleet alone, without a cluster.

`python -m benchmarks.cluster.alone --pods 2048`. Pods live at addresses of 127.64.0.0/10, and the
view of the API server is made up, so sizes fit here for which a control plane has no room. What
the API server's watches cost is left out; at rest that is little. The same again with the page of
the fleet in one browser and that of the job in another. Then the two parts of a restart that talk
to every pod: evidence, and the end of all trainers for a restart in place.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import urllib3

from benchmarks.cluster.fleet import ORDERS, PORT, write_seeds
from benchmarks.cluster.fleet_page import Place
from benchmarks.cluster.processes import cpu_seconds
from benchmarks.cluster.seeds import gather
from benchmarks.measure import ROOT
from benchmarks.page import Browser
from benchmarks.serving import environment
from mwatch.config.controller import ControllerSettings
from mwatch.controller.controller import TICK_SECONDS, Controller
from mwatch.controller.server import ControllerPages, FleetMetrics, listen
from mwatch.fleet.cluster_view import FleetView, JobSeen, PodSeen
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.kube.access import Access
from mwatch.kube.connect import Connection
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.pod import KubePod
from mwatch.model.kube.restart_state import WrapperAnswer
from mwatch.remediate.attempt_server import AttemptServer, JobStanding
from mwatch.remediate.evidence import collect
from mwatch.remediate.manager import Remediation
from mwatch.remediate.pod_client import PodAddress
from mwatch.remediate.worker import end_all_trainers
from mwatch.runtime.self_monitoring import tune_process
from support.builders import kube

NAME = "train"
SIZES = (512, 2048, 8192)
_NOWHERE = "http://127.0.0.1:9"
_SEEN_SECONDS = 120.0
_SETTLE_SECONDS = 15.0
_VERDICT_SECONDS = 120.0
_TOKEN = "token-of-the-benchmark"


@dataclass(frozen=True, slots=True)
class Alone:
    pods: int
    cpu: float
    """Of one core, at rest; the API server's watches are not part of it."""
    loop_cpu: float
    """Of that, the thread that evaluates; the rest is the thread that asks."""
    fleet_cpu: float
    messages_per_second: float
    page_cpu: float
    """Of one core, for both open pages: the threads that serve them, and their part of the loop."""
    page_share: float
    """That by the rest of the process in the same time."""
    page_seconds: float
    """Until a browser has the page of the job for the first time."""
    verdict_seconds: float | None
    """From the stop of a pod to the verdict that names it."""
    evidence_seconds: float | None
    """Until the first pod may be deleted: all save, 64 bundles of 4 kB are here."""
    in_place_seconds: float | None
    """Until all wrappers wait for their next attempt; a trainer takes a second to end."""


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
            self._say(f"at rest: {cpu:.1%} of a core, {loop:.1%} in the loop")
            pages = self._with_pages(rest_seconds)
            self._say(
                f"pages: {pages.cpu:.2%} of a core, {pages.share:.1%} of the rest; the first "
                f"after {pages.first_seconds:.1f} s, changes of {pages.bytes / 1e3:.0f} kB/s"
            )
            stopped = self._places[len(self._places) // 2]
            at = order("/stop", {"pod": stopped.number})["at"]
            named = self._turn_until(lambda watch: _blames(watch, stopped.name), _VERDICT_SECONDS)
            verdict = None if named is None else named - at
            self._say("no verdict" if verdict is None else f"verdict after {verdict:.1f} s")
            evidence, in_place = self._evidence(), self._in_place()
            return Alone(
                len(self._places), cpu, loop, fleet_cpu, messages, pages.cpu, pages.share,
                pages.first_seconds, verdict, evidence, in_place,
            )  # fmt: skip
        finally:
            self._controller.close()

    def _say(self, words: str) -> None:
        print(f"{len(self._places)} pods: {words}", file=sys.stderr, flush=True)

    def _with_pages(self, rest_seconds: float) -> _PagesCost:
        """By the clocks of threads: a difference of two runs would show the load of the machine."""
        others = [time.pthread_getcpuclockid(each.ident or 0) for each in threading.enumerate()]
        settings = ControllerSettings(namespace="ns", host="127.0.0.1", port=0)
        updates = _timed_updates(self._controller)
        server = listen(settings, self._controller.pages.pages())
        readers = _Readers(server.port)

        def use() -> tuple[float, float]:
            rest = sum(map(time.clock_gettime, others))
            served = time.process_time() - rest - readers.cpu_seconds
            return served + updates.seconds, rest - updates.seconds

        try:
            before = use()
            self._turn(rest_seconds)  # with the first view
            pages, rest = (after - first for after, first in zip(use(), before, strict=True))
            sent = readers.bytes / rest_seconds
            return _PagesCost(pages / rest_seconds, pages / rest, readers.first_seconds, sent)
        finally:
            readers.close()
            server.close()

    def _evidence(self) -> float | None:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            saved = collect(self._addresses, _TOKEN, "measured", Path(folder), seconds=20.0)
            took = time.monotonic() - began
        self._say(f"evidence after {took:.1f} s" + (f", but {saved.missing}" * bool(saved.missing)))
        return None if saved.missing else took

    def _in_place(self) -> float | None:
        """The page and the server that wrappers ask are the controller's."""
        key, attempts = "job", AttemptServer(time.time, lambda: True)
        answer = WrapperAnswer.WAIT
        standing = JobStanding("ns", NAME, _TOKEN, begun=1, pods=len(self._places), answer=answer)
        attempts.post({key: standing})
        metrics = FleetMetrics(time.time())
        pages = ControllerPages("ns", metrics, _Wrappers(attempts), lambda: True, None).pages()
        server = listen(ControllerSettings(namespace="ns", host="127.0.0.1", port=0), pages)
        path = f"/v1/jobs/ns/{NAME}/attempt"
        try:
            order("/wrappers", {"host": "127.0.0.1", "port": server.port, "path": path})
            began = time.monotonic()
            problem = end_all_trainers(
                self._addresses, _TOKEN, attempt=1, reason="measured", clock=time.monotonic,
                waiting=lambda: attempts.waiting(key, 1), may_act=lambda: True, wait=time.sleep,
            )  # fmt: skip
            self._say(problem or "all wrappers wait")
            return None if problem else time.monotonic() - began
        finally:
            server.close()

    @property
    def _addresses(self) -> list[PodAddress]:
        return [PodAddress(each.name, each.uid, each.address, PORT) for each in self._places]

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


class _PagesCost(NamedTuple):
    cpu: float
    share: float
    first_seconds: float
    bytes: float


@dataclass
class _Timer:
    seconds: float = 0.0


def _timed_updates(controller: Controller) -> _Timer:
    """The loop's part of the pages."""
    live, timer = controller.live, _Timer()
    assert live is not None
    update = live.update

    def timed(*jobs: Any, **more: Any) -> None:
        began = time.thread_time()
        update(*jobs, **more)
        timer.seconds += time.thread_time() - began

    live.update = timed  # type: ignore[method-assign]
    return timer


class _Readers:
    """Two browsers, in a thread whose CPU time is known."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self.cpu_seconds = 0.0
        self.first_seconds = 0.0
        self.bytes = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def _read(self) -> None:
        began = time.monotonic()
        browsers = [Browser(self._get, f"/jobs/ns/{NAME}")]
        self.first_seconds = time.monotonic() - began
        browsers.append(Browser(self._get, "/"))
        while not self._end.wait(0.1):
            for each in browsers:
                if time.monotonic() >= each.due:
                    each.ask()
            self.bytes = sum(each.bytes for each in browsers)
            self.cpu_seconds = time.thread_time()

    def _get(self, path: str) -> bytes:
        while True:
            try:
                with urlopen(self._base + path, timeout=20) as answer:
                    body: bytes = answer.read()
                    return body
            except HTTPError as error:  # the loop is late
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE or self._end.wait(1.0):
                    raise


class _Wrappers(Remediation):
    """Of a controller of which only this is measured."""

    def __init__(self, attempts: AttemptServer) -> None:
        super().__init__()
        self._attempts = attempts

    def answer(
        self, namespace: str, job: str, token: str, pod: str = "", after: int = 0, word: str = ""
    ) -> dict[str, Any] | None:
        return self._attempts.answer(namespace, job, token, pod=pod, after=after, word=word)


def _blames(watch: JobMonitor, pod: str) -> bool:
    found = watch.verdict
    return found is not None and found.culprit is not None and found.culprit.pod == pod


def table(every: Sequence[Alone]) -> str:
    titles = (
        "pods", "CPU at rest", "of it the loop", "messages a second", "the fleet's own CPU",
        "open pages", "of the rest", "first page", "stop to verdict", "evidence",
        "end of all trainers in place",
    )  # fmt: skip
    lines = [titles, ("---",) * len(titles)]
    for each in every:
        lines.append((
            f"{each.pods:,}", f"{each.cpu:.1%}", f"{each.loop_cpu:.1%}",
            f"{each.messages_per_second:.0f}", f"{each.fleet_cpu:.1%}",
            f"{each.page_cpu:.2%}", f"{each.page_share:.1%}", _shown(each.page_seconds),
            _shown(each.verdict_seconds), _shown(each.evidence_seconds),
            _shown(each.in_place_seconds),
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(seconds: float | None) -> str:
    return "none" if seconds is None else f"{seconds:.1f} s"


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
