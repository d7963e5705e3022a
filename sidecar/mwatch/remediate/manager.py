# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Carries out each decision about a job once, or holds it back with a reason.

A due action must pass the gates: leader, fresh view, overrides, maintenance, common cause, breaker.
Then workers gather fresh facts and evidence, and only an action that is still due is written to the
ledger and carried out. A controller that starts or becomes the leader continues the restarts in
the ledger. States and transitions are in `mwatch.model.kube.restart_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mwatch.config.fleet import FleetSettings
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.events import Events
from mwatch.kube.lease import Lease
from mwatch.kube.ledger import Ledger, same_job
from mwatch.model.decision import Decision
from mwatch.model.kube.gang import GangRefusal, GangStep, Method
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.next_start import RestartRequest
from mwatch.model.kube.restart_state import RULES, RestartEvent, RestartState
from mwatch.remediate.attempt_server import AttemptServer
from mwatch.remediate.background import BackgroundJobs
from mwatch.remediate.bookkeeping import RestartBookkeeper
from mwatch.remediate.case import (
    PREPARE_SECONDS,
    Deferred,
    DoneBefore,
    Halted,
    Prepared,
    RestartCase,
    RestartTask,
    TaskResult,
    case_again,
    due,
    is_same,
    ledger_update,
    name_of,
    requested_decision,
    take_done,
    taken_up,
    task_of,
)
from mwatch.remediate.evidence import EvidenceStore
from mwatch.remediate.gates import (
    CommonCauses,
    Gate,
    HeldBy,
    Waiting,
    admit,
    gate,
    not_back,
    stalled_together,
)
from mwatch.remediate.status import RemediationStatus, StatusBoard, TickState
from mwatch.remediate.worker import RestartWorker
from mwatch.runtime.clock import earlier

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor


_AGAIN_SECONDS, _SOON_SECONDS = 10.0, 3.0
_MAX_TEXT = 300


class Remediation:
    """The interface to the controller's loop; this base class only observes."""

    ledger_errors: int = 0

    def look(self, jobs: Sequence[JobMonitor], now: float) -> None:
        """Called once a second by the loop that owns the engines; never blocks."""

    def awaited(self, now: float) -> list[str]:
        """UIDs of pods that must report once more before a job can be restarted."""
        return []

    def answer(
        self, namespace: str, job: str, token: str, pod: str = "", after: int = 0, word: str = ""
    ) -> Mapping[str, Any] | None:
        """`GET /v1/jobs/NS/JOB/attempt`, from any thread; None: 404. `pod`, `after` and `word` are
        headers of the request: see `AttemptServer`."""
        return None

    def state(self, key: str) -> RemediationStatus:
        return RemediationStatus()

    def recall(self, key: str, uid: str) -> JobEntry:
        """The ledger's entry of this job; KubeError if it cannot be read."""
        return JobEntry()

    def entry(self, key: str, uid: str) -> JobEntry:
        """The entry as last read from the ledger; never blocks."""
        return JobEntry(uid=uid)

    def announce(
        self,
        job: JobMonitor,
        name: str,
        change: Callable[[JobEntry], JobEntry],
        send: Callable[[], None],
        now: float,
    ) -> None:
        """Record a notification in the ledger, then call `send` from a thread; do not call it if
        `change` changes nothing. Needs the Lease."""

    def close(self) -> None:
        """End the workers within seconds; restarts under way stay in the ledger."""


class RemediationManager(Remediation):
    def __init__(
        self,
        access: Access,
        namespace: str,
        *,
        lease: Lease,
        clock: Callable[[], float],
        events: Events,
        settings: FleetSettings,
        evidence: Path | None = None,
    ) -> None:
        """`clock`: seconds since 1970 that never jump (`runtime.clock`). `evidence`: the folder for
        bundles of the pods."""
        self._lease = lease
        self._settings = settings
        self._ledger = Ledger(access, namespace, clock=clock)
        self.server = AttemptServer(clock, lease.may_act)
        self._worker = RestartWorker(
            access, self._ledger, events, settings, self.server,
            may_act=lease.may_act, clock=clock,
            evidence=EvidenceStore(evidence, settings.evidence_seconds),
        )  # fmt: skip
        # Spare threads: a stop must not wait until evidence and other restarts are done.
        places = 2 * settings.max_restarts_at_once + settings.workers
        self._pool = ThreadPoolExecutor(places, "mwatch-restart")
        self._background = BackgroundJobs()
        self._common = CommonCauses(settings)
        self._bookkeeper = RestartBookkeeper(
            access, namespace, self._ledger, self._background, events, lease
        )
        self._board = StatusBoard(settings, self.server)
        self._cases: dict[str, RestartCase] = {}
        self._jobs: dict[str, JobMonitor] = {}

    def look(self, jobs: Sequence[JobMonitor], now: float) -> None:
        errors: list[Exception] = []
        self._jobs = {job.key: job for job in jobs}
        self._worker.nodes = next((job.facts.nodes for job in jobs if job.facts.nodes), None)
        self._bookkeeper.turn(jobs, now, is_leader=self._lease.may_act(), common=self._common)
        self._common.look(jobs, now)
        for key in self._cases.keys() - self._jobs.keys():
            if self._cases[key].future is None:
                del self._cases[key]
        if self._lease.may_act() and self._ledger.book is not None:
            self._bookkeeper.common_causes(self._jobs, self._common.changed(), now)
            for job in jobs:
                try:
                    self._consider(job, now)
                except Exception as error:
                    errors.append(error)
            self._admit(now)
        for case in list(self._cases.values()):
            self._advance(case, now)
        moment = TickState(now, self._lease.may_act(), self._ledger.book, self._cases, self._common)
        self._board.look(jobs, moment, self._bookkeeper.tokens)
        for job in jobs:
            job.ours = self._ledger.entry(job.key, job.kube.uid).ours
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("several jobs", errors)

    def awaited(self, now: float) -> list[str]:
        waiting = (each for each in self._cases.values() if each.state is RestartState.PREPARING)
        return [
            uid
            for case in waiting
            if (job := self._jobs.get(case.key)) is not None
            for uid in job.unreported_since(case.since, now)
        ]

    def answer(
        self, namespace: str, job: str, token: str, pod: str = "", after: int = 0, word: str = ""
    ) -> Mapping[str, Any] | None:
        return self.server.answer(namespace, job, token, pod=pod, after=after, word=word)

    def state(self, key: str) -> RemediationStatus:
        return self._board.states.get(key, RemediationStatus())

    @property
    def line(self) -> tuple[str, ...]:
        """Jobs that the breaker holds back, the next one first."""
        return self._board.line

    @property
    def ledger_errors(self) -> int:  # type: ignore[override]
        return self._ledger.errors

    def entry(self, key: str, uid: str) -> JobEntry:
        return self._ledger.entry(key, uid)

    def recall(self, key: str, uid: str) -> JobEntry:
        return same_job(self._ledger.read().of(key), uid)

    def announce(
        self,
        job: JobMonitor,
        name: str,
        change: Callable[[JobEntry], JobEntry],
        send: Callable[[], None],
        now: float,
    ) -> None:
        if self._lease.may_act():
            self._bookkeeper.announce(job, name, change, send, now)

    def close(self) -> None:
        self._worker.closing.set()
        self._background.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _consider(self, job: JobMonitor, now: float) -> None:
        entry = self._ledger.entry(job.key, job.kube.uid)
        self._bookkeeper.sync(job, entry, self.server.highest(job.key), now)
        case = self._cases.get(job.key)
        if case is not None and case.is_running:
            return
        if entry.step is not None and entry.must_finish:
            self._take_up(job, entry, entry.step, now)
            return
        request = entry.request
        is_act = job.kube.mode == "act"
        lead = PREPARE_SECONDS if is_act else 0.0
        decision = due(job, now, lead) if request is None else requested_decision(job, request)
        if decision is None:
            self._withdraw(job.key)
            return
        if request is None and not is_act:
            self._withdraw(job.key)
            self._bookkeeper.would(job, decision, entry, now)
            return
        self._hold(job, decision, request, entry, now)

    def _hold(
        self,
        job: JobMonitor,
        decision: Decision,
        request: RestartRequest | None,
        entry: JobEntry,
        now: float,
    ) -> None:
        case = self._cases.get(job.key)
        is_held = case is not None and case.state is RestartState.HELD
        if (
            case is None
            or not is_held
            or not is_same(case.decision, decision)
            or case.request != request
        ):
            id = name_of(decision, entry, now) if request is None else request.id
            self._cases[job.key] = case = RestartCase(
                job.key, job.kube.uid, id, decision, now, now, request
            )
            case.move(RestartEvent.DUE)
        case.decision = decision
        waiting = self.server.waiting(job.key, decision.attempt)
        held = self._gated(job, request, now) or not_back(job, case.due_at, waiting, now)
        if held is not None:
            case.move(RestartEvent.REFUSED)
            case.held_by, case.text = held
            self._bookkeeper.held(job, case, now)
        elif case.is_gated:
            case.held_by = case.text = ""
        case.is_gated = held is not None

    def _gated(self, job: JobMonitor, request: RestartRequest | None, now: float) -> Gate | None:
        book = self._ledger.book
        found = gate(
            job.kube, self._settings, None if book is None else book.halt,
            now=earlier(now), view_age=job.view_age_seconds, is_asked=request is not None,
        )  # fmt: skip
        if found is None and not self._bookkeeper.has_token(job.key, now):
            found = Gate(HeldBy.TOKEN, "the job's token is being made")
        if found is not None or request is not None:
            return found
        return stalled_together(self._common.holding(job.key, now))

    def _admit(self, now: float) -> None:
        """Start the cases that no gate holds back, as many as the breaker allows."""
        free = [
            each
            for each in self._cases.values()
            if each.state is RestartState.HELD and not each.is_gated and each.retry_at <= now
        ]
        waiting = [
            Waiting(each.key, each.due_at, bool(each.request)) for each in free if each.is_restart
        ]
        busy = {key for key, each in self._cases.items() if each.is_restart and each.is_running}
        busy |= self._board.recovering(self._jobs, self._ledger, now)
        admitted = admit(waiting, busy, self._settings.max_restarts_at_once)
        self._board.line = admitted.line
        for case in free:
            if case.key in admitted.line:
                names = ", ".join(sorted(busy)[:4])
                case.move(RestartEvent.REFUSED)
                case.held_by = HeldBy.BREAKER
                case.text = f"{len(busy)} restarts are under way ({names})"
                self._bookkeeper.held(self._jobs[case.key], case, now)
            else:
                self._prepare(case, now)

    def _prepare(self, case: RestartCase, now: float) -> None:
        job = self._jobs[case.key]
        task = task_of(
            job, case.decision, case.id, is_asked=case.request is not None,
            token=self._bookkeeper.tokens.get(job.key, ""), in_place=self._settings.in_place,
            waiting=self.server.waiting(job.key, case.decision.attempt),
        )  # fmt: skip
        case.move(RestartEvent.ADMITTED)
        case.held_by, case.text, case.since = "", "", now
        case.future = self._pool.submit(lambda: (task, self._worker.prepare(task)))

    def _advance(self, case: RestartCase, now: float) -> None:
        future = take_done(case, self._jobs.get(case.key), now)
        if future is None:
            return
        try:
            self._take(case, future.result(), now)
        except Exception as error:  # a failure of one job must not stop the others
            self._failed(case, error, now)

    def _take(
        self,
        case: RestartCase,
        result: TaskResult | tuple[RestartTask, Prepared | GangRefusal],
        now: float,
    ) -> None:
        if isinstance(result, TaskResult):
            self._bookkeeper.refresh(now)
            if not result.is_done:
                self._bookkeeper.undone(self._jobs.get(case.key), case)
            del self._cases[case.key]
            return
        task, found = result
        if isinstance(found, GangRefusal):
            self._hold_back(case, RestartEvent.REFUSED, found.why.value, found.text, now)
        else:
            self._enact(case, task, found, now)

    def _enact(self, case: RestartCase, task: RestartTask, ready: Prepared, now: float) -> None:
        """Check everything again: much may have changed while evidence was saved."""
        job = self._jobs.get(case.key)
        if job is None or job.kube.uid != case.uid:
            self._withdraw(case.key)
            return
        decision = due(job, now) if case.request is None else requested_decision(job, case.request)
        held = self._gated(job, case.request, now)
        if not self._lease.may_act():
            held = Gate(HeldBy.NOT_LEADER, "another controller leads")
        if held is not None:
            self._hold_back(case, RestartEvent.REFUSED, held.held_by, held.text, now)
            return
        if decision is None or not is_same(case.decision, decision):
            self._withdraw(case.key)
            return
        case.decision, case.way = decision, ready.plan.way.value
        job.engine.record_action(decision, now)
        entry = self._ledger.entry(job.key, job.kube.uid)
        highest = self.server.highest(job.key).attempt
        update = ledger_update(job, decision, case.id, entry, highest, now)
        case.move(RestartEvent.PREPARED)
        case.since = now
        case.again = partial(self._worker.carry_out, task, ready, update)
        case.future = self._pool.submit(case.again)

    def _take_up(self, job: JobMonitor, entry: JobEntry, step: GangStep, now: float) -> None:
        """Continue a deferred step, or one that was begun under an earlier Lease."""
        before = self._cases.get(job.key)
        is_deferred = before is not None and before.state is RestartState.DEFERRED
        if before is not None and is_deferred and now < before.retry_at:
            return
        if step.way is Method.IN_PLACE and not self._bookkeeper.has_token(job.key, now):
            return  # without a token every pod would refuse and be replaced
        task = taken_up(job, entry, step, self._bookkeeper.tokens.get(job.key, ""))
        case = case_again(job, step, task.reason, before, now)
        case.again = partial(self._worker.go_on, task, step, case.tried)
        case.future = self._pool.submit(case.again)
        self._cases[job.key] = case

    def _failed(self, case: RestartCase, error: Exception, now: float) -> None:
        """After a failure, a restart in the ledger is continued; any other becomes due again."""
        if isinstance(error, DoneBefore):
            self._withdraw(case.key)
            return
        if isinstance(error, Deferred):
            if case.state is RestartState.COMMITTING:
                case.move(RestartEvent.WRITTEN)  # the worker has written it to the ledger
            case.tried = error.tried
            self._hold_back(case, RestartEvent.BLOCKED, error.refusal.why.value, str(error), now)
            return
        text, is_written = str(error) or type(error).__name__, RULES[case.state].is_written
        is_leader = self._lease.may_act()
        if isinstance(error, KubeError) and case.is_enacted and is_leader and case.again:
            case.text = text[:_MAX_TEXT]
            case.future = self._pool.submit(self._worker.later, _SOON_SECONDS, case.again)
            return
        self._bookkeeper.undone(self._jobs.get(case.key), case)
        held_by = HeldBy.HALT if isinstance(error, Halted) else HeldBy.CLUSTER
        if not is_written:
            self._hold_back(case, RestartEvent.REFUSED, held_by, text, now)
            return
        del self._cases[case.key]  # the leader continues it with fresh facts
        if is_leader and (job := self._jobs.get(case.key)) is not None:
            case.held_by, case.text = held_by, text[:_MAX_TEXT]
            self._bookkeeper.held(job, case, now)

    def _hold_back(
        self, case: RestartCase, event: RestartEvent, held_by: str, text: str, now: float
    ) -> None:
        case.move(event)
        case.held_by, case.text, case.retry_at = held_by, text[:_MAX_TEXT], now + _AGAIN_SECONDS
        if (job := self._jobs.get(case.key)) is not None:
            self._bookkeeper.held(job, case, now)

    def _withdraw(self, key: str) -> None:
        case = self._cases.pop(key, None)
        if case is not None and case.state is not RestartState.DEFERRED:  # it is in the ledger
            case.move(RestartEvent.WITHDRAWN)
