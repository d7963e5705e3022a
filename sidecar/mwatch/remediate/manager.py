# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The hands of the controller: what was decided about a job is carried out, once, or held back.

The loop that owns the engines calls `look`; what takes time is done by workers. A due action goes
through the gates (leader, sight, people, maintenance, common cause, breaker), then fresh facts
and evidence are taken, and only what is still due after that is written down and done. What is
under way is in the ledger: a controller that starts, or becomes the leader, goes on with it.

A fault of ours about one job keeps the hands from no other: it is raised at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mwatch.config.fleet import FleetSettings
from mwatch.kube.access import Access
from mwatch.kube.errors import KubeError
from mwatch.kube.events import Events
from mwatch.kube.lease import Lease
from mwatch.kube.ledger import LedgerClient, LedgerStore, same_job
from mwatch.model.decision import Decision
from mwatch.model.kube.gang import GangRefusal, GangStep
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.next_start import RestartRequest
from mwatch.remediate.attempt_server import AttemptServer
from mwatch.remediate.background import BackgroundJobs
from mwatch.remediate.bookkeeping import RestartBookkeeper
from mwatch.remediate.case import (
    Deferred,
    DoneBefore,
    Halted,
    Prepared,
    RestartCase,
    RestartStage,
    RestartTask,
    TaskResult,
    case_again,
    due,
    is_same,
    name_of,
    take_done,
    taken_up,
    task_of,
    wished,
    words_of,
)
from mwatch.remediate.gates import (
    CommonCauses,
    Gate,
    Waiting,
    admit,
    gate,
    not_back,
    stalled_together,
)
from mwatch.remediate.status import HeldBy, RemediationStatus
from mwatch.remediate.status_board import StatusBoard, TickState
from mwatch.remediate.worker import RestartWorker
from mwatch.runtime.clock import earlier

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor


class TurnErrors:
    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._first = self._first or error

    def raised(self) -> None:
        """The first of this turn, for whoever tells of it."""
        error, self._first = self._first, None
        if error is not None:
            raise error


_AGAIN_SECONDS, _SOON_SECONDS = 10.0, 3.0


class RemediationManager:
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
        """`clock`: `app.clock.Clock.now`, seconds since 1970 that never jump. `evidence`: the
        folder for bundles that were fetched from the pods."""
        self._lease = lease
        self._settings = settings
        self._ledger = LedgerClient(LedgerStore(access, namespace), clock)
        self.desk = AttemptServer(clock, lease.may_act)
        self._tasks = RestartWorker(
            access, self._ledger, events, settings, self.desk,
            may_act=lease.may_act, clock=clock, folder=evidence,
        )  # fmt: skip
        # Evidence and steps hold a place for a while; a stop must not wait for them.
        places = 2 * settings.max_restarts_at_once + settings.workers
        self._pool = ThreadPoolExecutor(places, "mwatch-hands")
        self._chores = BackgroundJobs()
        self._common = CommonCauses(settings)
        self._notes = RestartBookkeeper(
            access, namespace, self._ledger, self._chores, events, lease
        )
        self._view = StatusBoard(settings, self.desk)
        self._faults = TurnErrors()
        self._cases: dict[str, RestartCase] = {}
        self._jobs: dict[str, JobMonitor] = {}

    def look(self, jobs: Sequence[JobMonitor], now: float) -> None:
        """Once a second, by the loop that owns the engines; never waits."""
        self._jobs = {job.key: job for job in jobs}
        self._tasks.nodes = next((job.facts.nodes for job in jobs if job.facts.nodes), None)
        self._notes.turn(jobs, now, is_leader=self._lease.may_act(), common=self._common)
        self._common.look(jobs, now)
        for key in self._cases.keys() - self._jobs.keys():
            if self._cases[key].future is None:
                del self._cases[key]
        if self._lease.may_act() and self._ledger.book is not None:
            self._notes.common_causes(self._jobs, self._common.news(), now)
            for job in jobs:
                with self._faults.kept():
                    self._consider(job, now)
            self._admit(now)
        for case in list(self._cases.values()):
            self._advance(case, now)
        moment = TickState(now, self._lease.may_act(), self._ledger.book, self._cases, self._common)
        self._view.look(jobs, moment, self._notes.tokens)
        for job in jobs:
            job.ours = self._ledger.ours(job.key, job.kube.uid)
        self._faults.raised()

    def answer(
        self, namespace: str, job: str, token: str, pod: str = "", after: int = 0, word: str = ""
    ) -> Mapping[str, Any] | None:
        """`GET /v1/jobs/NS/JOB/attempt`, from any thread; None: 404. `pod`, `after` and `word` are
        headers of the question: see the desk."""
        return self.desk.answer(namespace, job, token, pod=pod, after=after, word=word)

    def state(self, key: str) -> RemediationStatus:
        return self._view.states.get(key, RemediationStatus())

    @property
    def line(self) -> tuple[str, ...]:
        """Jobs that wait for the breaker, the next one first."""
        return self._view.line

    @property
    def ledger_errors(self) -> int:
        return self._ledger.ledger.errors

    def recall(self, key: str, uid: str) -> JobEntry:
        """What the ledger says of this very job; an empty one where it says nothing. KubeError
        where the ledger cannot be read: to be asked again."""
        return same_job(self._ledger.refresh().of(key), uid)

    def close(self) -> None:
        """Ends the workers within seconds; what is under way stays in the ledger."""
        self._tasks.closing.set()
        self._chores.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _consider(self, job: JobMonitor, now: float) -> None:
        """Whether something is due, and what keeps it back."""
        entry = self._ledger.entry(job.key, job.kube.uid)
        self._notes.sync(job, entry, self.desk.highest(job.key), now)
        case = self._cases.get(job.key)
        if case is not None and case.stage is not RestartStage.HELD:
            return
        is_open = entry.start is not None and entry.start.not_before is None
        if entry.step is not None and (entry.is_under_way or is_open):
            self._take_up(job, entry, entry.step, now)
            return
        wish = entry.wish
        decision = due(job, now) if wish is None else wished(job, wish)
        if decision is None:
            self._cases.pop(job.key, None)
            return
        if wish is None and job.kube.mode != "act":
            self._cases.pop(job.key, None)
            self._notes.would(job, decision, entry, now)
            return
        self._hold(job, decision, wish, entry, now)

    def _hold(
        self,
        job: JobMonitor,
        decision: Decision,
        wish: RestartRequest | None,
        entry: JobEntry,
        now: float,
    ) -> None:
        case = self._cases.get(job.key)
        if case is None or not is_same(case.decision, decision) or case.wish != wish:
            id = name_of(decision, entry, now) if wish is None else wish.id
            self._cases[job.key] = case = RestartCase(
                job.key, job.kube.uid, id, decision, now, now, wish
            )
        case.decision = decision
        at_desk = self.desk.waiting(job.key, decision.attempt)
        held = self._gated(job, wish, now) or not_back(job, case.due_at, at_desk, now)
        if held is not None:
            case.held_by, case.text = held
            self._notes.held(job, case, now)
        elif case.is_gated:
            case.held_by = case.text = ""
        case.is_gated = held is not None

    def _gated(self, job: JobMonitor, wish: RestartRequest | None, now: float) -> Gate | None:
        book = self._ledger.book
        found = gate(
            job.kube, self._settings, None if book is None else book.halt,
            now=earlier(now), sight_age=job.sight_age_seconds, is_asked=wish is not None,
        )  # fmt: skip
        if found is None and not self._notes.has_token(job.key, now):
            found = Gate(HeldBy.TOKEN, "the job's token is being made")
        if found is not None or wish is not None:
            return found
        return stalled_together(self._common.holding(job.key, now))

    def _admit(self, now: float) -> None:
        """Those that nothing else keeps back go, as many as the breaker lets."""
        free = [
            each
            for each in self._cases.values()
            if each.stage is RestartStage.HELD and not each.is_gated and each.retry_at <= now
        ]
        waiting = [
            Waiting(each.key, each.due_at, bool(each.wish)) for each in free if each.is_restart
        ]
        busy = {key for key, each in self._cases.items() if each.is_busy}
        busy |= self._view.recovering(self._jobs, self._ledger, now)
        admitted = admit(waiting, busy, self._settings.max_restarts_at_once)
        self._view.line = admitted.line
        for case in free:
            if case.key in admitted.line:
                names = ", ".join(sorted(busy)[:4])
                case.held_by = HeldBy.BREAKER
                case.text = f"{len(busy)} restarts are under way ({names})"
                self._notes.held(self._jobs[case.key], case, now)
            else:
                self._prepare(case, now)

    def _prepare(self, case: RestartCase, now: float) -> None:
        job = self._jobs[case.key]
        task = task_of(
            job, case.decision, case.id, is_asked=case.wish is not None,
            token=self._notes.tokens.get(job.key, ""), in_place=self._settings.in_place,
            at_desk=self.desk.waiting(job.key, case.decision.attempt),
        )  # fmt: skip
        case.stage, case.held_by, case.text, case.since = RestartStage.PREPARING, "", "", now
        case.future = self._pool.submit(lambda: (task, self._tasks.prepare(task)))

    def _advance(self, case: RestartCase, now: float) -> None:
        future = take_done(case, self._jobs.get(case.key), now)
        if future is None:
            return
        try:
            self._take(case, future.result(), now)
        except Exception as error:  # one job's trouble must not stop the others
            self._failed(case, error, now)

    def _take(
        self,
        case: RestartCase,
        result: TaskResult | tuple[RestartTask, Prepared | GangRefusal],
        now: float,
    ) -> None:
        if isinstance(result, TaskResult):
            self._notes.done(case, result, now)
            if not result.is_done:
                self._notes.undone(self._jobs.get(case.key), case)
            del self._cases[case.key]
            return
        task, found = result
        if isinstance(found, GangRefusal):
            self._back(case, found.why.value, found.text, now)
        else:
            self._enact(case, task, found, now)

    def _enact(self, case: RestartCase, task: RestartTask, ready: Prepared, now: float) -> None:
        """It may have healed, or a person may have spoken, while evidence was saved."""
        job = self._jobs.get(case.key)
        if job is None or job.kube.uid != case.uid:
            del self._cases[case.key]
            return
        decision = due(job, now) if case.wish is None else wished(job, case.wish)
        held = self._gated(job, case.wish, now)
        if not self._lease.may_act():
            held = Gate(HeldBy.NOT_LEADER, "another controller leads")
        if held is not None:
            self._back(case, held.held_by, held.text, now)
            return
        if decision is None or not is_same(case.decision, decision):
            del self._cases[case.key]
            return
        case.decision, case.way = decision, ready.plan.way.value
        job.engine.record_action(decision, now)
        entry = self._ledger.entry(job.key, job.kube.uid)
        words = words_of(job, decision, case.id, entry, self.desk.highest(job.key).attempt, now)
        case.stage, case.since = RestartStage.CARRYING, now
        case.again = partial(self._tasks.carry_out, task, ready, words)
        case.future = self._pool.submit(case.again)

    def _take_up(self, job: JobMonitor, entry: JobEntry, step: GangStep, now: float) -> None:
        """Begun by another controller, by this one before it lost the Lease, or kept back."""
        before = self._cases.get(job.key)
        if before is not None and before.tried and now < before.retry_at:
            return
        task = taken_up(job, entry, step, self._notes.tokens.get(job.key, ""))
        case = case_again(job, step, task.reason, before, now)
        case.again = partial(self._tasks.go_on, task, step, case.tried)
        case.future = self._pool.submit(case.again)
        self._cases[job.key] = case

    def _failed(self, case: RestartCase, error: Exception, now: float) -> None:
        """Before anything was written down it is due again; after that it is gone on with."""
        if case.stage is RestartStage.CARRYING and isinstance(error, KubeError):
            case.text = str(error)[:300]
            if self._lease.may_act() and case.again is not None:
                case.future = self._pool.submit(self._tasks.later, _SOON_SECONDS, case.again)
                return
        if isinstance(error, DoneBefore):
            del self._cases[case.key]
            return
        if isinstance(error, Deferred):
            case.tried = error.tried
            self._back(case, error.refusal.why.value, str(error)[:300], now)
            return
        self._notes.undone(self._jobs.get(case.key), case)
        held_by = HeldBy.HALT if isinstance(error, Halted) else HeldBy.CLUSTER
        self._back(case, held_by, f"{error or type(error).__name__}"[:300], now)

    def _back(self, case: RestartCase, held_by: str, text: str, now: float) -> None:
        case.stage, case.held_by, case.text = RestartStage.HELD, held_by, text
        case.retry_at = now + _AGAIN_SECONDS
        if (job := self._jobs.get(case.key)) is not None:
            self._notes.held(job, case, now)
