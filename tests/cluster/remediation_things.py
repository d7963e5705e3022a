# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Remediation on the real API server, with jobs whose pods and sidecars the test plays.

The sidecars' pages are the real ones on loopback; who makes evidence and ends trainers is fake.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import kube_things as things
from mwatch.config.fleet import FleetSettings
from mwatch.export.http.control import control_pages
from mwatch.export.http.server import Server
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.gang.restart import ledger_key
from mwatch.kube.access import Access
from mwatch.kube.events import Events
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.lease import Lease
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import EVENTS, JOBS, PODS, WORKLOADS
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.job import JobKind, KubeJob
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.restart import RestartAnswer, RestartOrder, RestartOutcome
from mwatch.remediate.bookkeeping import Tokens
from mwatch.remediate.manager import RemediationManager
from mwatch.runtime.clock import Clock
from support.runs.remediation_runs import began as began
from support.runs.remediation_runs import decided as decided
from support.runs.remediation_runs import snapshot

QUICK = FleetSettings(evidence_seconds=60.0, rendezvous_wait_seconds=0.5)
"""Nobody waits so long for evidence that comes; on a busy machine it may come late."""
KEY = ledger_key("Job", "train")
BUNDLE = "20260101T000000Z-a1-asked"


def make_job(access: Access, namespace: str, name: str = "train", *, pods: int = 2,
             mode: str = "act", in_queue: bool = True, claim: str = "") -> KubeJob:  # fmt: skip
    """Admitted to a queue, where a Job's pods are deleted; else it would be suspended."""
    made = things.make_job(access, namespace, name, pods=pods, claim=claim)
    words: dict[str, Any] = {"annotations": {"mwatch.dev/mode": mode}}
    if in_queue:
        words["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
        _admit(access, made)
    assert access.patch(JOBS, namespace, name, {"metadata": words}).is_ok
    found = find_job(access, namespace, name, JobKind.JOB)
    assert found is not None
    return found


def _admit(access: Access, job: KubeJob) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job.name, "uid": job.uid,
             "controller": True}  # fmt: skip
    container = {"name": "pytorch", "image": "localhost/pause:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    sets = [{"name": "main", "count": 1, "template": template}]
    name = f"work-{job.name}"
    about = {"name": name, "ownerReferences": [owner]}
    body = {"apiVersion": WORKLOADS.api_version, "kind": WORKLOADS.kind, "metadata": about,
            "spec": {"queueName": "q", "podSets": sets}}  # fmt: skip
    assert access.create(WORKLOADS, job.namespace, body).is_ok
    admitted(access, job, is_so=True)


def admitted(access: Access, job: KubeJob, *, is_so: bool) -> None:
    state = {"type": "Admitted", "status": str(is_so), "reason": "Test", "message": "",
             "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    status = {"status": {"conditions": [state]}}
    name = f"work-{job.name}"
    assert access.patch(WORKLOADS, job.namespace, name, status, part="status").is_ok


def make_pods(access: Access, job: KubeJob, count: int) -> list[str]:
    """Running, as far as their status says."""
    made = []
    for index in range(count):
        name = f"{job.name}-{index}"
        made.append(things.make_pod(access, job, name))
        run(access, job.namespace, name)
    return made


def run(access: Access, namespace: str, pod: str) -> None:
    status = {"status": {"phase": "Running", "podIP": "127.0.0.1"}}
    assert access.patch(PODS, namespace, pod, status, part="status").is_ok


class FakePod:
    """The real pages of a sidecar, over a wrapper that only answers."""

    def __init__(self, name: str, token: str, folder: Path, log: list[str]) -> None:
        self.name = name
        self.token = token
        self.log = log
        self.outcome = RestartOutcome.ACCEPTED
        self.is_slow = threading.Event()
        self.is_new = False
        """Its wrapper has begun nothing yet."""
        self.asked: list[RestartOrder] = []
        self._folder = folder / name
        self._folder.mkdir(parents=True)
        (self._folder / "stacks.txt").write_text("Thread 0x1\n")
        (self._folder / "manifest.json").write_text("{}")
        file = folder / f"{name}.token"
        file.write_text(token)
        self._server = Server(control_pages(file, self, self._restart), port=0)

    @property
    def port(self) -> int:
        return self._server.port

    def close(self) -> None:
        self._server.close()

    def ask(self, reason: str) -> str | None:
        self.log.append(f"evidence {self.name}")
        return BUNDLE

    def manifest(self, id: str, wait_seconds: float) -> Mapping[str, Any] | None:
        return {}

    def listing(self) -> Sequence[Mapping[str, Any]]:
        return [{"id": BUNDLE, "state": "not there" if self.is_slow.is_set() else "there"}]

    def folder(self, id: str) -> Path | None:
        return None if self.is_slow.is_set() else self._folder

    def _restart(self, order: RestartOrder) -> RestartAnswer:
        self.asked.append(order)
        self.log.append(f"restart {self.name}")
        return RestartAnswer(self.outcome, "as the test has it", order.attempt)


class Controller:
    """One process of a fleet, in this one."""

    def __init__(self, access: Access, namespace: str, identity: str = "one", *,
                 settings: FleetSettings = QUICK, folder: Path | None = None,
                 lease: Lease | None = None) -> None:  # fmt: skip
        self.access = access
        self.namespace = namespace
        self.clock = Clock().now
        self.lease = lease or Lease(access, namespace, identity)
        self.lease.turn()
        self.manager = RemediationManager(
            access, namespace, lease=self.lease, clock=self.clock,
            events=Events(access, identity), settings=settings, evidence=folder,
        )  # fmt: skip
        self.watches: dict[str, JobMonitor] = {}
        self.fakes: dict[str, FakePod] = {}

    def watch(self, job: KubeJob, *, attempt: int = 1, fakes: Sequence[FakePod] = ()) -> JobMonitor:
        watch = JobMonitor(job, {}, now=self.clock())
        watch.engine.job.attempt.number = attempt
        watch.engine.job.has_started = True
        self.watches[watch.key] = watch
        self.fakes.update({each.name: each for each in fakes})
        self.see(watch)
        return watch

    def see(self, watch: JobMonitor) -> None:
        job = find_job(self.access, self.namespace, watch.kube.name, watch.kube.kind)
        if job is None:
            self.watches.pop(watch.key)
            return
        pods = pods_of(self.access, job)
        facts = KubeFacts(self.clock(), job, job.name, pods=pods)
        places = {pod.uid: 0 for pod in pods}
        watch.see(facts, places, 0.0)
        for pod in pods:
            fake = self.fakes.get(pod.name)
            if fake is not None:
                watch.pods[pod.uid] = watch.pods[pod.uid]._replace(
                    port=fake.port, answered_at=self.clock(),
                    snapshot=snapshot(pod.name, None if fake.is_new else watch.attempt),
                )  # fmt: skip

    def turn(self) -> bool:
        """False: it is never the answer to anything."""
        self.lease.turn()
        for watch in list(self.watches.values()):
            self.see(watch)
        self.manager.look(list(self.watches.values()), self.clock())
        return False

    def until(self, is_so: Callable[[], object], seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            states = {key: self.manager.state(key) for key in self.watches}
            assert time.monotonic() < end, (states, self.manager._background.problems)
            self.turn()
            time.sleep(0.05)

    def entry(self, key: str = KEY) -> JobEntry:
        return Ledger(self.access, self.namespace).read().of(key)

    def close(self) -> None:
        """Ends when its threads have: what follows is not disturbed by a late one."""
        self.manager.close()
        for pool in (self.manager._pool, self.manager._background._pool):
            pool.shutdown(wait=True)


@contextmanager
def fakes(access: Access, job: KubeJob, count: int, folder: Path) -> Iterator[list[FakePod]]:
    token = Tokens(access, job.namespace).of(job)
    log: list[str] = []
    made = [FakePod(f"{job.name}-{index}", token, folder, log) for index in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()


def events(access: Access, namespace: str) -> list[tuple[str, str]]:
    found = access.call("GET", EVENTS.path(namespace)).body["items"]
    return [(each["reason"], each["message"]) for each in found]
