# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The definition of an incident: which findings belong together, and its number, cause and times.

A finding of an attempt belongs to an incident of that attempt that is not over, if
1. the incident has a finding of the same cause;
2. mwatch has acted on the attempt: later findings are consequences of the action;
3. one of them is a silence, a death, or a cause outside the job that explains both, and no
   progress was made between them; or
4. the job falls silent or is stopped within `STOP_SECONDS` after an action for the incident was
   decided: the action is being carried out.
Any other finding opens a new incident. An incident is over when none of its findings was found for
`QUIET_SECONDS`, or when its attempt has ended; then it is counted and its findings no longer
change. The sidecar, `mwatch run`, the controller, `story.json` and the incident files all use this
module. It does no I/O and reads no clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mwatch.decide.policy import RULES, Resume
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action, Decision
from mwatch.model.finding import LOG_END, Culprit, Finding, Severity
from mwatch.model.incident import (
    IncidentRecord,
    IncidentStage,
    IncidentTimes,
    SavedEvidence,
    describe,
    incident_id,
)
from mwatch.model.job import Attempt, Job
from mwatch.model.snapshot.snapshot import OpenIncident
from mwatch.state.goodput import ledger

MAX_INCIDENTS = 256
MAX_OPEN = 16
QUIET_SECONDS = 60.0
STOP_SECONDS = 600.0
_MAX_BEHIND = 64
SILENCE = frozenset({"stalled", "rank_silent"})
DEATH = frozenset({"crashed", "finished_early", LOG_END})
_STOPPED = frozenset({Cause.KILLED, Cause.FINISHED_EARLY})
"""The causes found when a person or a controller stops a job."""

Key = tuple[int, str, Cause]


@dataclass(slots=True)
class Symptom:
    """The findings of one detector in an incident."""

    finding: Finding  # the newest
    detected_at: float
    since: float  # when it was found, or found again after it had closed
    closed_at: float | None = None
    times: int = 1


@dataclass(slots=True)
class Incident:
    """One problem in one attempt, however many detectors found it."""

    number: int  # from 1, in the order of detection
    id: str  # the name of its folder, which contains its first cause
    attempt: int
    detected_at: float
    symptoms: list[Symptom]  # one for each detector and cause, in the order of detection
    fault_at: float | None = None  # the first bad sign
    decision: Decision | None = None  # the newest one, or the one that was acted on
    decided_at: float | None = None
    acted_at: float | None = None
    is_carried_out: bool = False  # False: no action, or mwatch only observes
    reached: int | None = None  # iteration of the attempt when mwatch acted on it or it ended
    first_new_at: float | None = None  # when a later attempt passed `reached` with good numbers
    awaits_recovery: bool = False
    """Whether its attempt has ended and training is not past `reached` yet."""
    is_over: bool = False
    is_recalled: bool = False  # an earlier watcher of this run had found it

    @property
    def lead(self) -> Symptom:
        """The finding that was acted on, else a death, else the one decided on, else the first."""
        finding = self.decision.finding if self.decision is not None else None

        def rank(symptom: Symptom) -> tuple[bool, bool, bool]:
            is_judged = finding is not None and _is_same(symptom.finding, finding)
            is_death = symptom.finding.detector in DEATH
            return not (is_judged and self.is_decisive), not is_death, not is_judged

        return min(self.symptoms, key=rank)

    @property
    def finding(self) -> Finding:
        return self.lead.finding

    @property
    def cause(self) -> Cause:
        return self.finding.cause

    @property
    def action(self) -> Action:
        """The action that was or would have been taken."""
        is_acted = self.decision is not None and self.acted_at is not None
        return self.decision.action if self.decision is not None and is_acted else Action.NONE

    @property
    def is_decisive(self) -> bool:
        """Whether it was acted on, or an action was due."""
        decision = self.decision
        return self.acted_at is not None or (
            decision is not None and decision.action is not Action.NONE
        )

    @property
    def closed_at(self) -> float | None:
        """When the last detector stopped reporting it; None: a detector still does."""
        moments = [each.closed_at for each in self.symptoms]
        ended = [each for each in moments if each is not None]
        return max(ended) if len(ended) == len(moments) else None

    @property
    def stage(self) -> IncidentStage:
        """How far the incident is.

        It has recovered when training is past its earlier iteration or, without an action, when the
        incident is over. A job that mwatch has stopped does not recover.
        """
        is_passed = self.first_new_at is not None
        is_gone = self.is_over and not self.awaits_recovery and not self.is_carried_out
        if is_passed or is_gone:
            return IncidentStage.RECOVERED
        return IncidentStage.ACTED if self.is_carried_out else IncidentStage.OPENED

    @property
    def is_stop(self) -> bool:
        """Whether it is a sign that training stands still."""
        return any(_stop_kind(each.finding) is not None for each in self.symptoms)

    @property
    def times(self) -> IncidentTimes:
        return IncidentTimes(
            fault=self.fault_at,
            detected=self.detected_at,
            decided=self.decided_at,
            acted=self.acted_at,
            first_new_iteration=self.first_new_at,
            closed=self.closed_at,
        )

    def culprit(self, findings: Iterable[Finding]) -> Culprit | None:
        """Return the culprit.

        `findings`: the current ones, to which the controller adds the pod's node and GPU.
        """
        for each in findings:
            if _is_same(each, self.finding):
                return each.culprit
        decided = None if self.decision is None else self.decision.finding
        return (decided and decided.culprit) or self.finding.culprit

    def has_cause(self, cause: Cause) -> bool:
        return any(each.finding.cause is cause for each in self.symptoms)

    def record(
        self, run: str, *, world_size: int | None, evidence: SavedEvidence | None = None
    ) -> IncidentRecord:
        """The record for its file."""
        about = describe(
            self.id, run, self.finding, self.decision,
            attempt=self.attempt, is_act=self.is_carried_out,
        )  # fmt: skip
        lost = None
        if self.acted_at is not None and self.reached is not None:
            lost = max(0, self.reached - (about.resume_from or 0))
        whole = about.with_outcome(self.times, world_size=world_size, lost_iterations=lost)
        return replace(whole, evidence=evidence)

    def add(self, finding: Finding, at: float) -> Symptom:
        """Add a finding that is new, or was closed and is found again."""
        if self.acted_at is None and self.closed_at is not None:
            self.decided_at = None  # that decision ended with its findings
        for known in self.symptoms:
            if _is_same(known.finding, finding):
                known.since, known.closed_at, known.times = at, None, known.times + 1
                return known
        new = Symptom(finding, at, at)
        self.symptoms.append(new)
        return new

    def found(self, symptom: Symptom, finding: Finding) -> None:
        symptom.finding = finding
        since = finding.since_time
        if since is not None and self.acted_at is None:
            self.fault_at = since if self.fault_at is None else min(self.fault_at, since)


class IncidentLog:
    """The incidents of a run: groups findings into incidents and counts those that are over."""

    def __init__(self) -> None:
        self.kept: deque[Incident] = deque(maxlen=MAX_INCIDENTS)
        """Oldest first."""
        self.over: Counter[tuple[Cause, Action]] = Counter()
        """`mwatch_incidents_total`."""
        self._open: dict[Key, tuple[Incident, Symptom]] = {}
        self._current: list[Incident] = []
        self._behind: deque[Incident] = deque()
        """Incidents of ended attempts whose furthest iteration training has not passed yet."""
        self._passed: dict[int, float] = {}
        """When training passed that iteration, by incident number, until its numbers are judged."""
        self._carried_out: int | None = None
        """The newest attempt on which an action was carried out."""
        self._number = 0
        self._recalled: dict[tuple[int, Cause], IncidentRecord] = {}
        """Incidents of an earlier watcher that were open when it ended."""

    def recall(self, records: Iterable[IncidentRecord]) -> None:
        """Continue these incidents, if they are open, when they are found again."""
        for each in records:
            if each.times.closed is None and each.times.first_new_iteration is None:
                self._recalled[each.attempt, each.cause] = each

    @property
    def awaits_progress(self) -> bool:
        return bool(self._behind)

    def symptom(self, attempt: int, finding: Finding) -> Symptom | None:
        """The open symptom of a detector and cause."""
        opened = self._open.get((attempt, finding.detector, finding.cause))
        return None if opened is None else opened[1]

    def about(self, decision: Decision) -> Incident | None:
        """Return the incident that a decision is about."""
        finding = decision.finding
        if finding is not None:
            opened = self._open.get((decision.attempt, finding.detector, finding.cause))
            if opened is not None:
                return opened[0]
        return next(
            (
                each
                for each in reversed(self._current)
                if each.attempt == decision.attempt and each.has_cause(decision.cause)
            ),
            None,
        )

    def update(self, job: Job, findings: Iterable[Finding], decision: Decision) -> None:
        """Update the incidents; `findings`: all that were found at this moment."""
        now, number = job.now, job.attempt.number
        self._settle(job)
        seen = set()
        for finding in findings:
            if finding.severity is Severity.INFO:
                continue
            key = (number, finding.detector, finding.cause)
            seen.add(key)
            opened = self._open.get(key) or self._add(job, finding, decision)
            if opened is not None:
                incident, symptom = self._open[key] = opened
                incident.found(symptom, finding)
        self._judge(job, decision)
        for key in [key for key in self._open if key not in seen]:
            self._open.pop(key)[1].closed_at = now
        self._recover()

    def end_attempt(self, job: Job) -> list[Symptom]:
        """Close all incidents as another attempt begins; returns those that were open."""
        number, at = job.attempt.number, job.attempt.started_at
        closed = []
        for key in [key for key in self._open if key[0] != number]:
            _, symptom = self._open.pop(key)
            symptom.closed_at = max(at, symptom.since)
            closed.append(symptom)
        self._settle(job)
        return closed

    def acted(
        self, decision: Decision, at: float, *, is_carried_out: bool, reached: int | None
    ) -> None:
        if is_carried_out:
            self._carried_out = decision.attempt
        incident = self.about(decision)
        if incident is not None:
            incident.decision, incident.acted_at, incident.reached = decision, at, reached
            incident.decided_at = at if incident.decided_at is None else incident.decided_at
            incident.is_carried_out = is_carried_out

    def reverted(self, act: Act) -> None:
        if self._carried_out == act.attempt:
            self._carried_out = None
        for incident in self._current:
            if incident.attempt == act.attempt and incident.acted_at == act.at:
                incident.acted_at, incident.reached, incident.is_carried_out = None, None, False

    def progressed(self, attempt: Attempt, at: float) -> None:
        """Note which incidents training has passed; call for each observation while
        `awaits_progress`."""
        iteration = attempt.iteration
        if iteration is None:
            return
        for each in self._behind:
            if each.attempt < attempt.number and iteration > (each.reached or 0):
                self._passed.setdefault(each.number, at)

    def _add(
        self, job: Job, finding: Finding, decision: Decision
    ) -> tuple[Incident, Symptom] | None:
        attempt = job.attempt.number
        incident = self._home(job, finding, decision)
        if incident is None and self._carried_out == attempt:
            return None  # a consequence of an action that belongs to no incident
        if incident is None:
            self._number += 1
            symptom = Symptom(finding, job.now, job.now)
            incident = self._opened(job, symptom)
            self.kept.append(incident)
            self._current.append(incident)
            return incident, symptom
        return incident, incident.add(finding, job.now)

    def _opened(self, job: Job, symptom: Symptom) -> Incident:
        now, attempt, cause = job.now, job.attempt.number, symptom.finding.cause
        before = self._recalled.pop((attempt, cause), None)
        # If attempt numbers restart with each container, an older record is of another attempt.
        if before is None or (before.times.detected or 0.0) < job.attempt.began_at:
            id = incident_id(now, attempt, cause, {each.id for each in self.kept})
            return Incident(self._number, id, attempt, now, [symptom])
        decision = Decision(
            before.action, cause, attempt, before.reason, before.resume_from, before.resume_reason
        )
        detected = before.times.detected
        return Incident(
            self._number, before.id, attempt, now if detected is None else detected, [symptom],
            fault_at=before.times.fault,
            decision=None if before.times.acted is None else decision,
            decided_at=before.times.decided,
            acted_at=before.times.acted,
            is_carried_out=before.is_carried_out,
            is_recalled=True,
        )  # fmt: skip

    def _home(self, job: Job, finding: Finding, decision: Decision) -> Incident | None:
        """Return the open incident of a new finding, by the rules in the module docstring."""
        attempt, now = job.attempt, job.now
        known = [each for each in reversed(self._current) if each.attempt == attempt.number]
        same = next((each for each in known if each.has_cause(finding.cause)), None)
        if same is not None:
            return same
        acted = next((each for each in known if each.is_carried_out), None)
        if acted is not None:
            return acted
        stop = _stop_kind(finding)
        for each in known if stop is not None else ():
            if any(_is_one_stop(stop, symptom, attempt) for symptom in each.symptoms):
                return each
        due = self.about(decision)
        is_stopped = stop == "silence" or (stop == "death" and finding.cause in _STOPPED)
        if due is None or due.decided_at is None or not is_stopped:
            return None
        return due if now - due.decided_at < STOP_SECONDS else None

    def _judge(self, job: Job, decision: Decision) -> None:
        finding = decision.finding
        if finding is None:
            return
        opened = self._open.get((job.attempt.number, finding.detector, finding.cause))
        if opened is None:
            return
        incident, symptom = opened
        if decision.action is not Action.NONE and incident.decided_at is None:
            incident.decided_at = job.now
        if incident.acted_at is None:
            incident.decision = decision
        if finding.cause is Cause.HANG:
            ledger.stall_judged(job, detected_at=symptom.since, decided_at=incident.decided_at)

    def _settle(self, job: Job) -> None:
        number = job.attempt.number
        for incident in list(self._current):
            closed = incident.closed_at
            is_past = incident.attempt != number
            is_quiet = closed is not None and job.now - closed >= QUIET_SECONDS
            if is_past or (is_quiet and not incident.is_carried_out):
                self._current.remove(incident)
                incident.is_over = True
                self.over[incident.cause, incident.action] += 1
                if is_past:
                    self._await_recovery(job, incident)

    def _await_recovery(self, job: Job, incident: Incident) -> None:
        closed = incident.closed_at
        is_healed = closed is not None and closed < job.attempt.started_at
        if not incident.is_decisive or (is_healed and incident.acted_at is None):
            return
        past = next((each for each in reversed(job.past) if each.number == incident.attempt), None)
        if past is not None:
            incident.reached = past.iteration
        if len(self._behind) == _MAX_BEHIND:
            self._behind.popleft().awaits_recovery = False
        incident.awaits_recovery = True
        self._behind.append(incident)

    def _recover(self) -> None:
        """Mark incidents as recovered, unless the iterations that passed them had bad numbers."""
        if self._passed and not any(
            RULES[key[2]].resume is Resume.BEFORE_BAD for key in self._open
        ):
            for each in [each for each in self._behind if each.number in self._passed]:
                each.first_new_at, each.awaits_recovery = self._passed[each.number], False
                self._behind.remove(each)
        self._passed.clear()


def open_incidents(
    incidents: Iterable[Incident], findings: Sequence[Finding]
) -> tuple[OpenIncident, ...]:
    """Return the newest incidents that are not over, oldest first.

    `findings`: as for `Incident.culprit`.
    """
    found = [each for each in incidents if not each.is_over]
    return tuple(
        OpenIncident(
            cause=each.cause,
            detector=each.finding.detector,
            severity=each.finding.severity,
            action=Action.NONE if each.decision is None else each.decision.action,
            stage=each.stage,
            culprit=each.culprit(findings),
        )
        for each in found[-MAX_OPEN:]
    )


def _is_same(one: Finding, other: Finding) -> bool:
    return (one.detector, one.cause) == (other.detector, other.cause)


def _stop_kind(finding: Finding) -> str | None:
    """Return which sign of stopped training the finding is; None if it is none."""
    if RULES[finding.cause].explains_all:
        return "outside"
    if finding.detector in DEATH:
        return "death"
    return "silence" if finding.detector in SILENCE else None


def _is_one_stop(kind: str | None, known: Symptom, attempt: Attempt) -> bool:
    other = _stop_kind(known.finding)
    if other is None or kind == other == "outside":
        return False  # two causes outside the job are two incidents
    return known.closed_at is None or known.since >= attempt.progress_at
