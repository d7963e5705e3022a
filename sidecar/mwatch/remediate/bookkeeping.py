# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Bookkeeping of restarts: ledger, Events and tokens, and clean-up of expired state.

The engine's record and the ledger are synchronised here, so that this controller knows the actions
of other controllers before it decides.

A sidecar requires the token of its job before it serves evidence or restarts the trainer. All
tokens derive from one key in the Secret `mwatch-key`, so the controller needs permission to create
other Secrets but not to read them. The pods mount the Secret `mwatch-JOB`, which belongs to the job
and is deleted with it. If the key's Secret is lost, a new key is made, and existing pods refuse the
tokens derived from it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mwatch.gang.restart import ledger_key
from mwatch.gang.suspend import restart_of, resume_as_seen
from mwatch.kube.access import Access
from mwatch.kube.errors import NoPermission, Unavailable
from mwatch.kube.events import Events
from mwatch.kube.jobs import find_job, pods_of
from mwatch.kube.lease import Lease
from mwatch.kube.ledger import Ledger
from mwatch.kube.resources import OF_KIND, SECRETS
from mwatch.model.decision import Action, Decision
from mwatch.model.incident import IncidentRecord
from mwatch.model.kube.fields import text
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.ledger import JobEntry, LedgerNote
from mwatch.remediate.attempt_server import Highest
from mwatch.remediate.background import BackgroundJobs
from mwatch.remediate.case import RestartCase, name_of, record_of
from mwatch.remediate.gates import CommonCauses, Episode, storage_classes, written
from mwatch.remediate.node_avoidance import let_in
from mwatch.remediate.status import (
    first_new,
    is_fulfilled,
    number_is_taken,
    only_observed,
    reissue,
)

if TYPE_CHECKING:
    from mwatch.fleet.job_monitor import JobMonitor


KEY = "mwatch-key"
FIELD = "token"
_KEY_BYTES = 32
_TRIES = 3


def secret_name(job: str) -> str:
    return f"mwatch-{job}"


class Tokens:
    def __init__(self, access: Access, namespace: str) -> None:
        self._access = access
        self._namespace = namespace
        self._key: bytes | None = None

    def of(self, job: KubeJob) -> str:
        """The token, which is the same for every job of that kind, namespace and name."""
        name = f"{job.kind.value}/{job.namespace}/{job.name}"
        digest = hmac.new(self._secret_key(), name.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def ensure(self, job: KubeJob) -> str:
        """Return the token; create the job's Secret if it is missing. Safe to repeat."""
        if secret_name(job.name) == KEY:
            raise NoPermission(f"a job may not be called {job.name}: its token would be the key")
        token = self.of(job)
        owner = OF_KIND[job.kind].typed({"name": job.name, "uid": job.uid})
        self._create(secret_name(job.name), token.encode(), [owner])
        return token

    def _secret_key(self) -> bytes:
        for _ in range(_TRIES):
            if self._key is not None:
                return self._key
            answer = self._access.get(SECRETS, self._namespace, KEY)
            if answer.is_ok:
                self._key = base64.b64decode(text(answer.body, "data", FIELD))
            else:
                self._create(KEY, secrets.token_bytes(_KEY_BYTES), [])
        if not self._key:
            raise Unavailable(f"Secret {KEY} can neither be read nor created")
        return self._key

    def _create(self, name: str, value: bytes, owners: list[Mapping[str, str]]) -> None:
        """A Secret that exists (CONFLICT) is left as it is."""
        body = {
            "type": "Opaque",
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/managed-by": "mwatch"},
                "ownerReferences": owners,
            },
            "data": {FIELD: base64.b64encode(value).decode()},
        }
        self._access.create(SECRETS, self._namespace, body)


RESUMED = "MwatchResumed"


def resume_orphans(
    access: Access,
    ledger: Ledger,
    events: Events,
    jobs: Iterable[KubeJob],
    may_act: Callable[[], bool],
) -> None:
    """Resume jobs that were left suspended by a restart which is not in the ledger: a controller
    was killed and the ledger deleted. Which pods had to go is then unknown, so a job is resumed
    only once it has no pods. Pods on a lost node stay forever, and a person must resume their job.
    KubeError: the cluster cannot be read."""
    for known in jobs:
        job = find_job(access, known.namespace, known.name, known.kind)
        if job is None or not (id := restart_of(job)) or pods_of(access, job):
            continue
        # Read after the job: a restart is in the ledger before it suspends anything.
        book, key = ledger.read(), ledger_key(job.kind, job.name)
        step = book.of(key).step
        # An entry of a newer release cannot be decoded, and may be this restart.
        is_known = key in book.unread or (step is not None and step.id == id)
        if not is_known and may_act() and resume_as_seen(access, job):
            text = f"left suspended by restart {id}, which is not in the ledger: resumed"
            events.emit(job, RESUMED, text, is_warning=True)


WOULD = "MwatchWould"
HELD = "MwatchHeld"
COMMON = "MwatchCommonCause"
_LEDGER_SECONDS = 3.0
_UPKEEP_SECONDS = 60.0
LEFT_SECONDS = 15.0
_CLASSES_SECONDS = 300.0
_REQUEST_SECONDS = 600.0
_TOKEN_SECONDS = 20.0


class RestartBookkeeper:
    def __init__(
        self,
        access: Access,
        namespace: str,
        ledger: Ledger,
        background: BackgroundJobs,
        events: Events,
        lease: Lease,
    ) -> None:
        self._access = access
        self._namespace = namespace
        self._ledger = ledger
        self._background = background
        self._events = events
        self._maker = Tokens(access, namespace)
        self._may_act = lease.may_act
        self._made: dict[str, str] = {}
        self._missed: dict[str, float] = {}
        self.tokens: dict[str, str] = {}
        """By key of the job; missing until the token is created or computed."""

    def turn(
        self, jobs: Sequence[JobMonitor], now: float, *, is_leader: bool, common: CommonCauses
    ) -> None:
        self._background.every("ledger", _LEDGER_SECONDS, self._ledger.read, now)
        if common.wants_classes:
            self._background.every(
                "classes", _CLASSES_SECONDS, partial(self._read_classes, common), now
            )
        if is_leader:
            held = [job.kube for job in jobs]
            nodes = next((job.facts.nodes for job in jobs if job.facts.nodes), None)
            self._background.every(
                "upkeep", _UPKEEP_SECONDS, lambda: let_in(self._access, held, nodes, now), now
            )
        left = [job.kube for job in jobs if restart_of(job.kube)]
        self._background.every("left", LEFT_SECONDS, lambda: self._resume(left), now)
        there = {job.key for job in jobs}
        for known in (self.tokens, self._made, self._missed):
            for key in set(tuple(known)) - there:  # a copy: background jobs write here too
                known.pop(key, None)
        for job in jobs:
            self._token(job.kube, job.key, now, is_leader)
        self._background.turn(now)

    def has_token(self, key: str, now: float) -> bool:
        """Also True once the token has been missing for so long that it is no longer waited for."""
        if key in self.tokens:
            self._missed.pop(key, None)
            return True
        return now - self._missed.setdefault(key, now) > _TOKEN_SECONDS

    def sync(self, job: JobMonitor, entry: JobEntry, reported: Highest, now: float) -> None:
        """Copy actions from the ledger to the engine, and write fulfilled orders to the ledger.
        `reported`: the highest attempt that a wrapper has reported."""
        record, is_acting = job.engine.record, job.kube.mode == "act"
        if is_acting:  # actions from before the mode was act were only observed: no budget spent
            for act in [each for each in record.acts if only_observed(each, entry)]:
                job.engine.revert_action(act)
        for act in entry.acts:
            is_new = record.of_attempt(act.attempt) is None
            if is_new and not (is_acting and only_observed(act, entry)):
                record.acts.append(act)
        name = f"spent {job.key}"
        if is_fulfilled(job, entry) and not self._background.has(name):
            self._change(name, job, JobEntry.fulfilled, now)
        elif number_is_taken(job, entry, reported, now) and not self._background.has(name):
            self._change(name, job, lambda before: reissue(before, reported.attempt), now)
        after = first_new(job, entry, now)
        name = f"recovered {job.key}"
        if after is not None and not self._background.has(name):
            self._change(name, job, lambda before: _with_record(before, after), now)

    def would(self, job: JobMonitor, decision: Decision, entry: JobEntry, now: float) -> None:
        """Mode observe: record the decision once, without acting."""
        job.engine.record_action(decision, now, is_carried_out=False)
        act = job.engine.record.of_attempt(decision.attempt)
        assert act is not None
        record = record_of(name_of(decision, entry, now), job, decision, is_act=False, now=now)

        def change(before: JobEntry) -> JobEntry:
            if any(each.attempt == act.attempt for each in before.acts):
                return before
            note = LedgerNote(
                now, "mwatch", f"would {decision.action.value}", decision.reason[:300]
            )
            return replace(
                before, acts=(*before.acts, act), notes=(*before.notes, note),
                incidents=(*before.incidents, record),
            )  # fmt: skip

        self._change(f"would {job.key} {act.attempt}", job, change, now)
        what = _text(decision)
        self._report(job.kube, WOULD, f"in act mwatch would {what}: {decision.reason}", now)

    def held(self, job: JobMonitor, case: RestartCase, now: float) -> None:
        """Report each reason once, and drop a person's request that is too old."""
        if case.held_by and case.held_by not in case.reported:
            case.reported.add(case.held_by)
            what = _text(case.decision)
            self._report(job.kube, HELD, f"not done yet: {what}: {case.text} ({case.held_by})", now)
        request = case.request
        if request is not None and now - request.at > _REQUEST_SECONDS:
            text = f"the restart that {request.who} asked for was not done: {case.text}"
            self._report(job.kube, HELD, text, now)

            def drop(entry: JobEntry) -> JobEntry:
                return replace(entry, request=None) if entry.request == request else entry

            self._change(f"request {job.key}", job, drop, now)

    def refresh(self, now: float) -> None:
        self._background.once("ledger now", self._ledger.read, now)

    def undone(self, job: JobMonitor | None, case: RestartCase) -> None:
        """Remove an action that was not carried out from the engine: it is due again, unless it is
        in the ledger."""
        if job is None or not case.is_enacted:
            return
        act = job.engine.record.of_attempt(case.decision.attempt)
        if act is not None:
            job.engine.revert_action(act)

    def common_causes(
        self, jobs: Mapping[str, JobMonitor], changed: list[Episode], now: float
    ) -> None:
        for episode in changed:
            cause = episode.cause
            name = f"common {cause.id} {cause.ended_at is None}"
            self._background.once(name, partial(self._ledger.change, partial(written, cause)), now)
        for episode in (each for each in changed if each.cause.ended_at is None):
            names = ", ".join(episode.group.keys[:6])
            text = f"common_cause {episode.cause.id}: {names} stalled together and share "
            text += f"{episode.cause.shared}; none of them is restarted for that"
            for key in episode.group.keys:
                if key in jobs:
                    self._report(jobs[key].kube, COMMON, text, now)

    def announce(
        self,
        job: JobMonitor,
        name: str,
        change: Callable[[JobEntry], JobEntry],
        send: Callable[[], None],
        now: float,
    ) -> None:
        """Record a notification in the ledger, then send it, unless `change` changes nothing: a
        controller has sent it before."""
        key, uid = job.key, job.kube.uid

        def work() -> None:
            is_new = False

            def changed(before: JobEntry) -> JobEntry:
                nonlocal is_new
                after = change(before)
                is_new = after != before
                return after

            self._ledger.change_entry(key, uid, changed)
            if is_new:
                send()

        self._background.once(f"announce {key} {name}", work, now)

    def _resume(self, left: list[KubeJob]) -> None:
        if self._may_act():
            resume_orphans(self._access, self._ledger, self._events, left, self._may_act)

    def _read_classes(self, common: CommonCauses) -> None:
        common.classes = storage_classes(self._access, self._namespace)

    def _token(self, job: KubeJob, key: str, now: float, is_leader: bool) -> None:
        """The leader creates the Secret; every controller computes the token."""
        if self._made.get(key) == job.uid:
            return
        name = f"token {key}"

        def make() -> None:
            self.tokens[key] = self._maker.ensure(job) if is_leader else self._maker.of(job)
            if is_leader:
                self._made[key] = job.uid

        if not self._background.has(name) and (is_leader or key not in self.tokens):
            self._background.once(name, make, now)

    def _change(
        self, name: str, job: JobMonitor, change: Callable[[JobEntry], JobEntry], now: float
    ) -> None:
        key, uid = job.key, job.kube.uid
        self._background.once(name, lambda: self._ledger.change_entry(key, uid, change), now)

    def _report(self, job: KubeJob, reason: str, text: str, now: float) -> None:
        name = f"event {job.uid} {reason} {hash(text)}"
        self._background.once(
            name, lambda: self._events.emit(job, reason, text, is_warning=True), now
        )


def _with_record(entry: JobEntry, record: IncidentRecord) -> JobEntry:
    incidents = tuple(record if each.id == record.id else each for each in entry.incidents)
    return replace(entry, incidents=incidents)


def _text(decision: Decision) -> str:
    if decision.action is not Action.RESTART:
        return decision.action.value
    start = decision.resume_from
    return "restart the gang" + ("" if start is None else f" from checkpoint {start}")
