# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The real remediation over a cluster in memory, in one thread: nothing runs but what a test runs.

The gang's wrappers ask the real attempt server. Workers' tasks wait in a queue until the test runs
them; where a worker waits, the simulated world goes on.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from mwatch.config.fleet import FleetSettings
from mwatch.engine.engine import Assessment
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.gang import restart as gang_restart
from mwatch.gang.restart import ledger_key
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.events import Events
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.lease import Lease
from mwatch.kube.resources import SECRETS
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Culprit, Finding, Severity
from mwatch.model.incident import SavedEvidence
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.job import JobKind
from mwatch.model.kube.ledger import LedgerData
from mwatch.model.snapshot.pod import PodId, WrapperState
from mwatch.model.snapshot.snapshot_wire import PodSnapshot, SidecarView
from mwatch.remediate import background, evidence, manager, worker
from mwatch.remediate.bookkeeping import FIELD, secret_name
from mwatch.remediate.manager import RemediationManager
from mwatch.remediate.pod_client import PodAddress, Reply
from support.fakes.kube_cluster import JOB, NAMESPACE, ClusterAccess, FakeCluster

KEY = ledger_key(JobKind.PYTORCH_JOB, JOB)


def snapshot(pod: str, attempt: int | None, mode: str = "act") -> PodSnapshot:
    """`attempt` None: its wrapper has begun nothing yet."""
    wrapper = None if attempt is None else WrapperState(
        attempt, mode, 0.0, 7, None, 0, 1, (), None, None, None, None, False
    )  # fmt: skip
    view = SidecarView()
    who = PodId("train", pod, None, None, None, None, "x", 0.0, mode)
    return PodSnapshot(
        0.0, 0.0, "", False, 0.0, who, view, (), (), {}, (), None, (), None, (), (), 0, wrapper
    )


def decided(watch: JobMonitor, action: Action = Action.RESTART, cause: Cause = Cause.HANG, *,
            resume_from: int | None = 450, pod: str | None = None, node: str | None = None,
            **more: Any) -> Decision:  # fmt: skip
    """The engine's decision about this attempt, due at once."""
    culprit = None if pod is None and node is None else Culprit(rank=3, pod=pod, node=node)
    finding = Finding("stalled", cause, Severity.CRITICAL, "no progress for 90 s",
                      since_time=more.pop("since", watch.facts.now), culprit=culprit,
                      fingerprint="hang/x")  # fmt: skip
    decision = Decision(
        action, cause, watch.attempt, "no progress for 90 s, and two witnesses", resume_from,
        "checkpoint 450: the newest complete one", 0.0, finding, **more,
    )  # fmt: skip
    watch.assessment = Assessment(watch.facts.now, (finding,), decision)
    return decision


def began(watch: JobMonitor, attempt: int, iteration: int | None = None) -> None:
    """The new gang has started, and nothing is wrong with it."""
    watch.engine.job.attempt.number = attempt
    watch.engine.job.attempt.iteration = iteration
    nothing = Decision(Action.NONE, Cause.HEALTHY, attempt, "healthy")
    watch.assessment = Assessment(watch.facts.now, (), nothing)


class QueueExecutor(Executor):
    """Runs a task when the test says so; a Crash leaves it and the executor behind."""

    def __init__(self, *_: object) -> None:
        self.tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.tasks.append((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.tasks.clear()

    def run_one(self) -> None:
        future, task = self.tasks.popleft()
        try:
            result = task()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)


class InlineExecutor(QueueExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        self.run_one()
        return future


class Gang:
    """The wrappers of the pods that are there, by the pods' UIDs."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.running: dict[str, int] = {}
        """The attempt that a wrapper runs; missing: it waits for one."""
        self.last: dict[str, int] = {}
        self.top = 0
        """The highest attempt that the checkpoint volume knows."""
        self.before_start: Callable[[str, int], None] = lambda uid, attempt: None
        self.refuses = False
        """To restart in place."""
        self.sick: set[int] = set()
        """Attempts that hang."""
        self.hopeless: set[int] = set()
        """Attempts that no restart helps: their job is to be stopped."""

    @property
    def attempt(self) -> int:
        return max(self.running.values(), default=0)

    @property
    def is_training(self) -> bool:
        uids = [pod["metadata"]["uid"] for pod in self.cluster.pods]
        numbers = {self.running.get(uid, 0) for uid in uids}
        return len(uids) == 2 and numbers == {self.attempt} and self.attempt > 0

    def restart_in_place(self, uid: str, attempt: int) -> Reply:
        running = self.running.get(uid)
        if self.refuses:
            return Reply(409, {"error": "the wrapper refuses"})
        if running is not None and running != attempt:
            return Reply(409, {"error": "another attempt", "attempt": running})
        self.running.pop(uid, None)
        return Reply(202, {})

    def ask(self, remediation: RemediationManager, now: float) -> None:
        there = {pod["metadata"]["uid"] for pod in self.cluster.pods}
        self.running = {uid: number for uid, number in self.running.items() if uid in there}
        for pod in self.cluster.pods:
            about = pod["metadata"]
            if about["uid"] in self.running or "deletionTimestamp" in about:
                continue
            is_first = about["name"].endswith("-0")
            last = max(self.last.get(about["uid"], 0), self.top if is_first else 0)
            answer = remediation.answer(NAMESPACE, JOB, self._token(), about["name"], last)
            if answer is None or answer.get("wait") is True:
                continue
            if answer.get("by_rule") is True:  # node 0 names one, and the others join it
                self._begin(about["uid"], self.attempt or self.top + 1)
            elif answer["not_before"] <= now:
                self._begin(about["uid"], answer["attempt"])

    def _begin(self, uid: str, attempt: int) -> None:
        self.before_start(uid, attempt)
        self.running[uid] = self.last[uid] = attempt
        self.top = max(self.top, attempt)

    def _token(self) -> str:
        secret = self.cluster.objects.get(SECRETS.path(NAMESPACE, secret_name(JOB)))
        return "" if secret is None else base64.b64decode(secret["data"][FIELD]).decode()


class World:
    """One job, its gang, and the clock that all share."""

    def __init__(self, policy: str) -> None:
        self.now = 1_700_000_000.0
        self.cluster = FakeCluster(policy, self.clock)
        self.gang = Gang(self.cluster)

    def clock(self) -> float:
        return self.now


class _Closing:
    """In place of the worker's Event: where it waits, the world goes on."""

    def __init__(self, controller: SimulatedController) -> None:
        self._controller = controller

    def is_set(self) -> bool:
        return False

    def set(self) -> None: ...

    def wait(self, seconds: float) -> bool:
        self._controller.world.now += seconds
        self._controller.live()
        return False


def leading_manager(access: Access, clock: Callable[[], float]) -> RemediationManager:
    """Of a controller that holds the Lease of the namespace `ns`."""
    lease = Lease(access, "ns", "me")
    lease.turn()
    return RemediationManager(
        access, "ns", lease=lease, clock=clock, events=Events(access, "me"),
        settings=FleetSettings(),
    )  # fmt: skip


class SimulatedController:
    """One process: its memory is its own, and ends with it."""

    def __init__(
        self,
        world: World,
        identity: str,
        settings: FleetSettings,
        before: Callable[[str, str, Mapping[str, Any]], None],
    ) -> None:
        self.world = world
        self.access = ClusterAccess(world.cluster, before)
        self.lease = Lease(self.access, NAMESPACE, identity, clock=world.clock, wall=world.clock)
        events = Events(self.access, identity, clock=world.clock, wall=world.clock)
        self.manager = RemediationManager(
            self.access, NAMESPACE, lease=self.lease, clock=world.clock, events=events,
            settings=settings,
        )  # fmt: skip
        self.manager._worker.closing = _Closing(self)  # type: ignore[assignment]
        self.watch: JobMonitor | None = None
        self.stale_attempt: int | None = None
        """The attempt that the controller still observes as hung; None: its view is current."""

    def hold_back(self, book: LedgerData | None, attempt: int | None) -> None:
        """Show this ledger and this hung attempt, and no newer ones; None: end that."""
        ledger = self.manager._ledger
        ledger.book, self.stale_attempt, self.watch = book, attempt, None
        ledger.read_at = None if book is None else self.world.now + 1e6

    @property
    def queues(self) -> list[QueueExecutor]:
        pools = self.manager._pool, self.manager._background._pool
        assert all(isinstance(each, QueueExecutor) for each in pools)
        return list(pools)  # type: ignore[arg-type]

    def live(self) -> None:
        """A second of everything but the workers."""
        self.lease.turn()
        self.world.cluster.kubelet()
        self.world.cluster.job_controller()
        self.world.gang.ask(self.manager, self.world.now)
        self.look()

    def look(self) -> None:
        watch = self._seen()
        if watch is not None:
            self.manager.look([watch], self.world.now)

    def work(self, most: int = 100) -> None:
        """The tasks that wait, those of the workers first."""
        for queue in self.queues:
            for _ in range(min(most, len(queue.tasks))):
                queue.run_one()

    def _seen(self) -> JobMonitor | None:
        try:
            job = find_job(self.access, NAMESPACE, JOB, JobKind.PYTORCH_JOB)
            assert job is not None
            pods = pods_of(self.access, job)
            if self.watch is None:
                watch = JobMonitor(job, {}, now=self.world.now)
                held_back = None if self.stale_attempt is None else self.manager._ledger.book
                watch.restore(held_back.of(KEY) if held_back else self.manager.recall(KEY, job.uid))
                watch.engine.job.has_started = True
                self.watch = watch
        except KubeError:
            return None  # the loop of the controller comes again
        gang, now = self.world.gang, self.world.now
        facts = KubeFacts(now, job, job.name, pods=pods)
        self.watch.see(facts, {pod.uid: 1 for pod in pods}, 0.0)
        for pod in pods:
            running = self.stale_attempt or gang.running.get(pod.uid)
            self.watch.pods[pod.uid] = self.watch.pods[pod.uid]._replace(
                port=1, answered_at=now, snapshot=snapshot(pod.name, running)
            )
        if self.stale_attempt is not None:
            began(self.watch, self.stale_attempt, 500 + self.stale_attempt)
            decided(self.watch)
            return self.watch
        number = max(gang.attempt, self.watch.attempt)
        began(self.watch, number, 500 + number if gang.is_training else None)
        if gang.attempt in gang.hopeless:
            decided(self.watch, Action.STOP, Cause.OOM, resume_from=None)
        elif gang.attempt in gang.sick:
            decided(self.watch)
        return self.watch


def one_thread(
    patch: pytest.MonkeyPatch,
    gang: Gang,
    before_in_place: Callable[[int, str], None],
    before_evidence: Callable[[], None],
) -> None:
    """The executors are queues, and the pods' sidecars answer in memory."""
    patch.setattr(manager, "ThreadPoolExecutor", QueueExecutor)
    patch.setattr(background, "ThreadPoolExecutor", QueueExecutor)
    patch.setattr(gang_restart, "ThreadPoolExecutor", InlineExecutor)

    def ask_all(
        pods: Sequence[PodAddress], path: str, token: str, *, body: Mapping[str, Any], **_: object
    ) -> dict[str, Reply]:
        assert path == "/v1/restart"
        found = {}
        for each in pods:
            before_in_place(body["attempt"], token)
            found[each.pod] = gang.restart_in_place(each.uid, body["attempt"])
        return found

    def save(*_: object, **more: object) -> SavedEvidence:
        before_evidence()
        return SavedEvidence("", (), ())

    patch.setattr(worker, "ask_all", ask_all)
    patch.setattr(evidence, "gather", lambda asks, **_: {name: asks[name]() for name in asks})
    patch.setattr(evidence, "collect", save)
