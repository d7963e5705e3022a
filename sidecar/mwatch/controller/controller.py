# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""`mwatch controller`: watches all jobs of a namespace that carry its label.

One loop owns all engines. Once a second it takes the changes from the API server's watches and the
answers of the sidecars, evaluates each job, and lets remediation act. An error in one job is logged
and does not affect the others. A controller that does not lead does everything except act.

The policies that jobs name (`mwatch.dev/policy`) are ConfigMaps with TOML, read by a thread. For a
policy that is missing or invalid the default is used, with an Event on the job; while the API
server does not answer, the last version stays in use.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

from mwatch import __version__
from mwatch.config import catalogue, loader
from mwatch.config.controller import ControllerSettings
from mwatch.config.fleet import FleetSettings
from mwatch.config.fleet import load as load_fleet
from mwatch.config.loader import load_policy
from mwatch.controller.history import HistoryStore, HistoryWriter
from mwatch.controller.notices import FleetNotices
from mwatch.controller.page import FleetPages, JobNow
from mwatch.controller.server import (
    ControllerPages,
    ControllerStats,
    FleetMetrics,
    job_json,
    listen,
)
from mwatch.errors import InputError
from mwatch.export.http.server import Server, in_url
from mwatch.fleet.cluster_view import FleetView, JobSeen, PodSeen
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.fleet.poller import PodPoll, PollTarget
from mwatch.fleet.poller import targets as poll_targets
from mwatch.kube.access import Access
from mwatch.kube.connect import connect
from mwatch.kube.errors import KubeError, Unavailable
from mwatch.kube.events import Events
from mwatch.kube.lease import Lease, LeaseLoop
from mwatch.kube.resources import CONFIG_MAPS
from mwatch.model.cause import Cause
from mwatch.model.kube.fields import text_map
from mwatch.model.kube.job import POLICY, KubeJob
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.settings import Settings
from mwatch.remediate.manager import Remediation, RemediationManager
from mwatch.remediate.status import RemediationStatus
from mwatch.report.run_report import RunReport
from mwatch.runtime.clock import Clock
from mwatch.runtime.self_monitoring import InternalErrors, tune_process
from mwatch.runtime.shutdown import asked_to_end

READ_SECONDS = 30.0
KEY = "policy.toml"
REASON = "PolicyRefused"


class Policy(NamedTuple):
    settings: Settings
    problem: str = ""


class Policies:
    def __init__(
        self, access: Access, namespace: str, usual: Settings, events: Events | None = None
    ) -> None:
        """`usual`: for a job that names no policy, or an invalid one."""
        self._access = access
        self._namespace = namespace
        self._usual = Policy(usual)
        self._events = events
        self._known: dict[str, Policy] = {}
        self._wanted: dict[str, tuple[KubeJob, ...]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._stop = threading.Event()
        self._soon = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="mwatch-policies", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._soon.set()
        if self._thread.is_alive():
            self._thread.join(0.5)

    def want(self, jobs: Iterable[KubeJob]) -> None:
        wanted: dict[str, tuple[KubeJob, ...]] = {}
        for job in jobs:
            if name := job.annotations.get(POLICY, ""):
                wanted[name] = (*wanted.get(name, ()), job)
        self._wanted = wanted
        if any(name not in self._known for name in wanted):
            self._soon.set()

    def of(self, job: KubeJob) -> Policy | None:
        """None: the named policy has not been read yet."""
        name = job.annotations.get(POLICY, "")
        return self._known.get(name) if name else self._usual

    def read(self) -> None:
        for name, jobs in self._wanted.items():
            try:
                found = self._read(name)
            except Unavailable:
                continue  # keep the last version
            except KubeError as error:
                found = self._usual._replace(problem=f"ConfigMap {name}: {error}")
            self._known = {**self._known, name: found}
            if found.problem:
                self._report(jobs, found.problem)
        self._known = {name: each for name, each in self._known.items() if name in self._wanted}

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._soon.wait(READ_SECONDS)
            self._soon.clear()
            if not self._stop.is_set():
                self.read()
                self._stop.wait(1.0)  # a policy that stays missing is not read in a tight loop

    def _read(self, name: str) -> Policy:
        answer = self._access.get(CONFIG_MAPS, self._namespace, name)
        if not answer.is_ok:
            return self._usual._replace(problem=f"there is no ConfigMap {name}")
        data = text_map(answer.body, "data")
        key = KEY if KEY in data or len(data) != 1 else next(iter(data))
        if key not in data:
            return self._usual._replace(problem=f"ConfigMap {name} has no key {KEY}")
        try:
            usual = self._usual.settings
            return Policy(loader.parse(data[key], usual, f"ConfigMap {name}, {key}"))
        except InputError as error:
            return self._usual._replace(problem=str(error))

    def _report(self, jobs: Iterable[KubeJob], problem: str) -> None:
        for job in jobs:
            if self._events is not None and (job.uid, problem) not in self._reported:
                self._reported.add((job.uid, problem))
                self._events.emit(job, REASON, f"{problem}; the usual one is used", is_warning=True)
        if len(self._reported) > 1024:
            self._reported.clear()


_CALM = frozenset({Cause.HEALTHY, Cause.FINISHED, Cause.UNKNOWN})


class ControllerLog:
    """Logs each change once: jobs that come and go, their causes, the leader, the cluster view."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._known: dict[str, tuple[str, Cause | None, int]] = {}
        self._is_leader: bool | None = None
        self._problem = ""

    def update(self, jobs: Iterable[JobMonitor], *, is_leader: bool, problem: str) -> None:
        if is_leader is not self._is_leader:
            self._is_leader = is_leader
            self._log("leads" if is_leader else "does not lead: observes only")
        if problem != self._problem:
            self._log(f"cannot read the cluster: {problem}" if problem else "can read the cluster")
            self._problem = problem
        there = {}
        for each in jobs:
            uid, verdict = each.kube.uid, each.verdict
            cause = None if verdict is None else verdict.cause
            there[uid] = each.kube.key, cause, each.attempt
            before = self._known.get(uid)
            if before is None:
                self._log(
                    f"watches {each.kube.key} ({each.kube.mode}, {each.kube.pods_wanted} pods)"
                )
            if verdict is not None and (before is None or before[1] is not cause):
                self._changed(each.kube.key, before and before[1], cause, verdict.summary)
            if before is not None and before[2] != each.attempt:
                self._log(f"{each.kube.key}: attempt {each.attempt}")
        for uid, (key, _, _) in self._known.items():
            if uid not in there:
                self._log(f"{key} is no longer there, or no longer watched")
        self._known = there

    def _changed(self, key: str, before: Cause | None, cause: Cause | None, text: str) -> None:
        if cause in _CALM and (before is None or before in _CALM) and cause is not Cause.FINISHED:
            return
        self._log(f"{key}: {cause}: {text}")


TICK_SECONDS = 1.0


class _Recalled(NamedTuple):
    entry: JobEntry
    past: RunReport | None


class _Pods(NamedTuple):
    """Values derived from the pods of a job, computed when a pod changes, not every second."""

    seen: tuple[PodSeen, ...]
    uids: list[str]
    ports: dict[str, int]
    targets: dict[str, PollTarget]

    @classmethod
    def of(cls, seen: tuple[PodSeen, ...]) -> _Pods:
        ports = {pod.uid: port for pod, port in seen if port is not None}
        return cls(seen, [pod.uid for pod, _ in seen], ports, poll_targets(seen))


class Controller:
    def __init__(
        self,
        settings: ControllerSettings,
        access: Access,
        acting: FleetSettings | None,
        log: Callable[[str], None],
        *,
        fleet: FleetView | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`acting` None: observe only. InputError if the given policy cannot be used."""
        self.settings = settings
        self.access = access
        self.namespace = settings.namespace or access.namespace
        self.clock = clock or Clock()
        self.identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        self.faults = InternalErrors(log)
        self._log = log
        self._catalogue = {entry.id: entry for entry in catalogue.load([])}
        usual = load_policy(settings.policy)
        events = Events(access, self.identity)
        self.lease = LeaseLoop(Lease(access, self.namespace, self.identity))
        self.fleet = fleet or FleetView(access, self.namespace, self.clock.now)
        self.policies = Policies(access, self.namespace, usual, events)
        self.remediation = Remediation()
        if acting is not None:
            self.remediation = RemediationManager(
                access, self.namespace, lease=self.lease.lease, clock=self.clock.now,
                events=events, settings=acting, evidence=settings.evidence,
            )  # fmt: skip
        self.metrics = FleetMetrics(self.clock.now())
        self.live = None if settings.no_page else FleetPages(self.namespace)
        self.pages = ControllerPages(
            self.namespace, self.metrics, self.remediation, lambda: self.lease.is_leader, self.live
        )
        self.history: HistoryWriter | None = None
        if self.live is not None and acting is not None:
            store = HistoryStore(access, self.namespace, log)
            self.history = HistoryWriter(store, self.lease.lease.may_act)
        urls = () if acting is None else settings.notify
        self.notices = FleetNotices(urls, self.remediation, settings.external_url)
        self.poll = PodPoll(self.clock.now, period=settings.poll_seconds)
        self._changes = ControllerLog(log)
        self._watches: dict[str, JobMonitor] = {}
        self._of_pod: dict[str, JobMonitor] = {}
        self._pods: dict[str, _Pods] = {}
        """By UID of the job."""
        self._targets: dict[str, PollTarget] = {}
        self._server: Server | None = None
        self._pool = ThreadPoolExecutor(2, "mwatch-recall")
        self._recalls: dict[str, Future[_Recalled]] = {}
        self._pending = 0

    @property
    def jobs(self) -> list[JobMonitor]:
        return list(self._watches.values())

    @property
    def is_complete(self) -> bool:
        """Whether ledger entry and policy of each job have been read."""
        return not self._pending

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.port

    def start(self) -> None:
        """InputError if the port is taken."""
        self._server = listen(self.settings, self.pages.pages())
        self.fleet.start()
        self.poll.start()
        self.policies.start()
        self.lease.start()
        self._log(
            f"mwatch controller {__version__}: namespace {self.namespace}, "
            f"http://{in_url(self.settings.host)}:{self.port}/metrics"
        )

    def turn(self) -> None:
        """One pass over all jobs; failures are logged."""
        began, now = time.monotonic(), self.clock.now()
        for known in self.jobs:
            known.view_age_seconds = None  # unknown until this pass has read it
        with self.faults.guard():
            self._update_jobs(self.fleet.look(), now)
        for polled in self.poll.take():
            watch = self._of_pod.get(polled.uid)
            if watch is not None:
                with self.faults.guard():
                    watch.polled(polled)
        now = self.clock.now()  # after the newest answer, or its age would count as silence
        for watch in self.jobs:
            with self.faults.guard():
                watch.look(now)
        with self.faults.guard():
            self.remediation.look(self.jobs, now)
            if awaited := self.remediation.awaited(now):
                self.poll.ask(awaited)
        with self.faults.guard():
            self.notices.update(self.jobs, now, is_leader=self.lease.is_leader)
        with self.faults.guard():
            self._publish(now, time.monotonic() - began)
        if self.history is not None:
            with self.faults.guard():
                self.history.turn(self.jobs, now)

    def close(self) -> None:
        if self.history is not None:
            with self.faults.guard():
                self.history.close(self.jobs, self.clock.now())
        self._pool.shutdown(wait=False, cancel_futures=True)
        threads = self.lease, self.poll, self.policies, self.fleet
        for part in (self.remediation, *threads, self._server, self.notices):
            with self.faults.guard():
                if part is not None:
                    part.close()
        self._log("ended")

    def _update_jobs(self, seen: Sequence[JobSeen], now: float) -> None:
        """Watch new jobs and pods, and forget those that are gone."""
        watches: dict[str, JobMonitor] = {}
        self._of_pod = {}
        known, self._pods = self._pods, {}
        targets: dict[str, PollTarget] = {}
        pending = 0
        for each in seen:
            with self.faults.guard():
                watch = self._watch_of(each, now)
                if watch is None:
                    pending += 1
                    continue
                watches[watch.kube.uid] = watch
                pods = known.get(watch.kube.uid)
                if pods is None or pods.seen != each.pods:
                    pods = _Pods.of(each.pods)
                self._pods[watch.kube.uid] = pods
                watch.see(each.facts, pods.ports, each.view_age_seconds)
                self._of_pod |= dict.fromkeys(pods.uids, watch)
                targets |= pods.targets
        self._watches, self._pending = watches, pending
        if targets != self._targets:
            self._targets = targets
            self.poll.want(targets.values())
        self.policies.want(each.facts.job for each in seen if each.facts.job is not None)

    def _watch_of(self, seen: JobSeen, now: float) -> JobMonitor | None:
        """None: its ledger entry or policy has not been read yet."""
        job = seen.facts.job
        assert job is not None
        found = self.policies.of(job)
        watch = self._watches.get(job.uid)
        if watch is None and found is None:
            return None
        if watch is None:
            watch = JobMonitor(
                job, self._catalogue, now=now,
                answer_seconds=self.settings.poll_seconds + 2.0,
                has_record=self.live is not None,
            )  # fmt: skip
            recalled = self._recalled(watch.key, job.uid)
            if recalled is None:
                return None
            watch.restore(recalled.entry)
            watch.past = recalled.past
        if found is not None:
            watch.use(found.settings)
            watch.policy_problem = found.problem
        return watch

    def _recalled(self, key: str, uid: str) -> _Recalled | None:
        """None: not read yet. The loop does not wait for the API server."""
        future = self._recalls.get(uid)
        if future is None:
            self._recalls[uid] = self._pool.submit(self._recall, key, uid)
            return None
        if not future.done():
            return None
        del self._recalls[uid]
        try:
            return future.result()
        except KubeError:
            return None  # retried at the next turn

    def _recall(self, key: str, uid: str) -> _Recalled:
        entry = self.remediation.recall(key, uid)
        return _Recalled(entry, None if self.history is None else self.history.recall(key, uid))

    def _publish(self, now: float, seconds: float) -> None:
        states = [self.remediation.state(each.key) for each in self.jobs]
        stats = ControllerStats(
            self.lease.is_leader, self.poll.polls, dict(self.poll.failures), self.access.calls,
            self.fleet.mirrors, self.fleet.relists,
            self.faults.count + (0 if self._server is None else self._server.failures), seconds,
            states, self.remediation.ledger_errors, self.notices.counts(self._log),
        )  # fmt: skip
        self.metrics.update(self.jobs, stats, now)
        pairs = list(zip(self.jobs, states, strict=True))
        self.pages.update([job_json(each, state, now) for each, state in pairs])
        if self.live is not None:
            shown = [self._job_now(each, state) for each, state in pairs]
            self.live.update(shown, now, is_leader=stats.is_leader, problem=self.fleet.problem)
        self._changes.update(self.jobs, is_leader=stats.is_leader, problem=self.fleet.problem)

    def _job_now(self, watch: JobMonitor, status: RemediationStatus) -> JobNow:
        uid = watch.kube.uid
        return JobNow(watch, status, self.metrics.of(uid), self.remediation.entry(watch.key, uid))


_ONCE_SECONDS = 30.0
_HEALTHY = frozenset({"healthy", "finished"})


def run(settings: ControllerSettings, log: Callable[[str], None]) -> int:
    """Run until a signal. MwatchError for unusable settings."""
    tune_process()
    with asked_to_end() as asked, ExitStack() as stack:
        controller = make(settings, log)
        stack.callback(controller.access.close)
        stack.callback(controller.close)
        controller.start()
        while not asked.is_set():
            began = time.monotonic()
            controller.turn()
            asked.wait(max(0.0, TICK_SECONDS - (time.monotonic() - began)))
    return 0


def once(settings: ControllerSettings, log: Callable[[str], None]) -> dict[str, Any]:
    """Evaluate all jobs once, without acting. KubeError if the cluster cannot be read."""
    with ExitStack() as stack:
        controller = make(settings, log, can_act=False)
        stack.callback(controller.access.close)
        controller.access.server_version()
        for part in (controller.fleet, controller.poll, controller.policies):
            stack.callback(part.close)
            part.start()
        until = time.monotonic() + _ONCE_SECONDS
        while not controller.fleet.is_ready:
            if time.monotonic() > until:
                problem = controller.fleet.problem or "the API server does not answer in time"
                raise Unavailable(problem)
            time.sleep(0.05)
        enough = time.monotonic() + settings.poll_seconds + 3.0
        while True:
            controller.turn()
            if time.monotonic() > min(enough, until) or _have_all_answered(controller):
                break
            time.sleep(0.1)
        return controller.pages.document()


def exit_code(document: dict[str, Any]) -> int:
    """0: all jobs healthy, 1: a job has a fault, 3: a job is blind or unknown."""
    causes = [(job["verdict"] or {}).get("cause", "unknown") for job in document["jobs"]]
    if any(cause not in _HEALTHY | {"unknown", "blind"} for cause in causes):
        return 1
    return 3 if any(cause not in _HEALTHY for cause in causes) else 0


def make(
    settings: ControllerSettings, log: Callable[[str], None], *, can_act: bool = True
) -> Controller:
    fleet = FleetSettings() if settings.fleet is None else load_fleet(settings.fleet)
    access = Access(connect(settings.kubeconfig, settings.context))
    return Controller(settings, access, fleet if can_act else None, log)


def _have_all_answered(controller: Controller) -> bool:
    return controller.is_complete and all(
        each.snapshot is not None or each.problem or each.pod.phase != "Running"
        for watch in controller.jobs
        for each in watch.pods.values()
    )
