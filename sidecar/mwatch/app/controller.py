# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch controller`: watches all jobs of a namespace that carry its label, for months.

One loop, once a second, owns all engines: it takes what the API server's watches and the sidecars'
answers have brought, looks at each job, and lets the hands act. A fault about one job is told and
the others go on. Who is not the leader does all of that but act.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mwatch import __version__
from mwatch.app import catalogue, policy
from mwatch.app.clock import Clock
from mwatch.app.controller_hands import HandsLike
from mwatch.app.controller_json import job_json
from mwatch.app.controller_lease import LeaseLoop
from mwatch.app.controller_metrics import FleetMetrics, Told
from mwatch.app.controller_news import ControllerNews
from mwatch.app.controller_pages import ControllerPages
from mwatch.app.controller_policies import Policies
from mwatch.app.controller_settings import DEFAULT_HOST, ControllerSettings
from mwatch.app.fleet_view import FleetView, JobSeen
from mwatch.app.job_watch import JobWatch, PodPlace
from mwatch.app.own_faults import OwnFaults
from mwatch.app.pod_poll import PodPoll, PollTarget
from mwatch.errors import InputError
from mwatch.export.http import Server
from mwatch.export.request import in_url
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.events import Events
from mwatch.kube.lease import Lease
from mwatch.model.kube_ledger import JobEntry
from mwatch.model.settings import Settings

TICK_SECONDS = 1.0
_MAX_CONNECTIONS = 128
"""All wrappers of a gang ask at once."""

MakeHands = Callable[[Lease, Events, Clock], HandsLike]


class Controller:
    def __init__(
        self,
        settings: ControllerSettings,
        access: Access,
        make_hands: MakeHands,
        say: Callable[[str], None],
        *,
        fleet: FleetView | None = None,
        clock: Clock | None = None,
    ) -> None:
        """InputError where a policy that was given cannot be used."""
        self.settings = settings
        self.access = access
        self.namespace = settings.namespace or access.namespace
        self.clock = clock or Clock()
        self.identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self.faults = OwnFaults(say)
        self._say = say
        self._catalogue = {entry.id: entry for entry in catalogue.load([])}
        usual = Settings() if settings.policy is None else policy.load(settings.policy)
        events = Events(access, self.identity)
        self.lease = LeaseLoop(Lease(access, self.namespace, self.identity))
        self.fleet = fleet or FleetView(access, self.namespace, self.clock.now)
        self.poll = PodPoll(self.clock.now, period=settings.poll_seconds)
        self.policies = Policies(access, self.namespace, usual, events)
        self.hands = make_hands(self.lease.lease, events, self.clock)
        self.metrics = FleetMetrics(self.clock.now())
        self.pages = ControllerPages(
            self.namespace, self.metrics, self.hands, lambda: self.lease.is_leader
        )
        self.news = ControllerNews(say)
        self._watches: dict[str, JobWatch] = {}
        self._of_pod: dict[str, JobWatch] = {}
        self._targets: dict[str, PollTarget] = {}
        self._server: Server | None = None
        self._aside = ThreadPoolExecutor(2, "mwatch-recall")
        self._recalls: dict[str, Future[JobEntry]] = {}
        self._unmet = 0

    @property
    def jobs(self) -> list[JobWatch]:
        return list(self._watches.values())

    @property
    def has_met_all(self) -> bool:
        """What the ledger and its policy say was read for each job that was seen."""
        return not self._unmet

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.port

    def start(self) -> None:
        """InputError where no port can be had."""
        self._server = _bound(self.settings, self.pages)
        self.fleet.start()
        self.poll.start()
        self.policies.start()
        self.lease.start()
        self._say(
            f"mwatch controller {__version__}: namespace {self.namespace}, "
            f"http://{in_url(self.settings.host)}:{self.port}/metrics"
        )

    def turn(self) -> None:
        """Once around: whatever fails is told, and the next turn comes."""
        began, now = time.monotonic(), self.clock.now()
        for known in self.jobs:
            known.sight_age_seconds = None  # what we fail to look at now was not seen
        with self.faults.survived():
            self._meet(self.fleet.look(), now)
        for polled in self.poll.take():
            watch = self._of_pod.get(polled.uid)
            if watch is not None:
                with self.faults.survived():
                    watch.polled(polled)
        now = self.clock.now()  # after the newest answer: else its time would count as silence
        for watch in self.jobs:
            with self.faults.survived():
                watch.look(now)
        with self.faults.survived():
            self.hands.look(self.jobs, now)
        with self.faults.survived():
            self._tell(now, time.monotonic() - began)

    def close(self) -> None:
        """Within seconds; what is under way stays in the ledger."""
        self._aside.shutdown(wait=False, cancel_futures=True)
        for part in (self.hands, self.lease, self.poll, self.policies, self.fleet, self._server):
            with self.faults.survived():
                if part is not None:
                    part.close()
        self._say("ended")

    def documents(self, now: float) -> list[dict[str, Any]]:
        return [job_json(each, self.hands.state(each.key), now) for each in self.jobs]

    def _meet(self, seen: Sequence[JobSeen], now: float) -> None:
        """Jobs and pods as they are now: new ones are watched, others are forgotten."""
        watches: dict[str, JobWatch] = {}
        self._of_pod = {}
        targets: dict[str, PollTarget] = {}
        unmet = 0
        for each in seen:
            with self.faults.survived():
                watch = self._watch_of(each, now)
                if watch is None:
                    unmet += 1
                    continue
                watches[watch.kube.uid] = watch
                watch.see(each.facts, _places(each), each.sight_age_seconds)
                for pod in each.pods:
                    self._of_pod[pod.pod.uid] = watch
                targets.update(_targets(each))
        self._watches, self._unmet = watches, unmet
        if targets != self._targets:
            self._targets = targets
            self.poll.want(targets.values())
        self.policies.want(each.facts.job for each in seen if each.facts.job is not None)

    def _watch_of(self, seen: JobSeen, now: float) -> JobWatch | None:
        """None: what was done to it before is not known yet, or by which policy it is judged."""
        job = seen.facts.job
        assert job is not None
        found = self.policies.of(job)
        watch = self._watches.get(job.uid)
        if watch is None and found is None:
            return None
        if watch is None:
            watch = JobWatch(
                job, self._catalogue, now=now,
                answer_seconds=self.settings.poll_seconds + 2.0,
            )  # fmt: skip
            entry = self._recalled(watch.key, job.uid)
            if entry is None:
                return None
            watch.restore(entry)
        if found is not None:
            watch.use(found.settings)
            watch.policy_problem = found.problem
        return watch

    def _recalled(self, key: str, uid: str) -> JobEntry | None:
        """What the ledger says; None: not yet. The loop does not wait for the API server."""
        future = self._recalls.get(uid)
        if future is None:
            self._recalls[uid] = self._aside.submit(self.hands.recall, key, uid)
            return None
        if not future.done():
            return None
        del self._recalls[uid]
        try:
            return future.result()
        except KubeError:
            return None  # asked again at the next turn

    def _tell(self, now: float, seconds: float) -> None:
        told = Told(
            self.lease.is_leader, self.poll.polls, dict(self.poll.failures), self.access.calls,
            self.fleet.sights, self.fleet.relists,
            self.faults.count + (0 if self._server is None else self._server.failures), seconds,
            [self.hands.state(each.key) for each in self.jobs], self.hands.ledger_errors,
        )  # fmt: skip
        self.metrics.looked(self.jobs, told, now)
        self.pages.looked(self.documents(now))
        self.news.looked(self.jobs, is_leader=told.is_leader, problem=self.fleet.problem)


def _places(seen: JobSeen) -> dict[str, PodPlace]:
    return {
        each.pod.uid: PodPlace(each.pod.ip, each.port)
        for each in seen.pods
        if each.port is not None
    }


def _targets(seen: JobSeen) -> dict[str, PollTarget]:
    return {
        each.pod.uid: PollTarget(
            each.pod.uid, each.pod.namespace, each.pod.name, each.pod.ip, each.port,
            each.pod.has_host_network,
        )
        for each in seen.pods
        if each.port is not None and each.pod.ip and each.pod.phase == "Running"
    }  # fmt: skip


def _bound(settings: ControllerSettings, pages: ControllerPages) -> Server:
    hosts = (settings.host, "0.0.0.0") if settings.host == DEFAULT_HOST else (settings.host,)
    error: OSError | None = None
    for host in hosts:  # where there is no IPv6, without it
        try:
            return Server(
                pages.pages(), port=settings.port, host=host, max_connections=_MAX_CONNECTIONS
            )
        except OSError as failed:
            error = failed
    words = f"{settings.host} port {settings.port}: cannot be had ({error and error.strerror})"
    raise InputError(f"{words}; name another with --port")
