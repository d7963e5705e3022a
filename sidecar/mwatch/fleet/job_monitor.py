# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One watched job: the streams of all its pods, merged into one engine on the controller's clock.

Only the controller's loop uses it. If no sidecar answers, the job is blind, not hung. Each event is
observed once and in order. Whether a source is readable is judged over all pods, so such changes
reported by a single pod are skipped. Wrappers count attempts: once one wrapper has begun the next
attempt, only exits, errors and faults of pods that are still in the previous one count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mwatch.checks.kube_causes import kube_phase
from mwatch.decide.decide import decide
from mwatch.decide.verdict import verdict
from mwatch.detect.shared.probe import one_evaluation, probed_ranks
from mwatch.detect.shared.stall import patience
from mwatch.engine.engine import Assessment, Engine
from mwatch.fleet.kube_findings import (
    TAKEN_CAUSES,
    ExternallyLostPods,
    HeldCauses,
    JobEnds,
    broken,
    is_whole,
    not_watched,
    placed,
    pods_unreachable,
    policy_refused,
)
from mwatch.fleet.visibility import (
    MIN_PODS,
    Calm,
    PodsAnswering,
    PodView,
    Polled,
    brings_changes,
    readable_sources,
    split,
)
from mwatch.gang.restart import ledger_key
from mwatch.model.cause import Cause
from mwatch.model.event import Error, Fault
from mwatch.model.fault import CatalogueEntry
from mwatch.model.finding import Finding, Verdict
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.observation import (
    AttemptStart,
    Beat,
    Observed,
    ProcessExit,
    Sign,
    SourceStatusChange,
    StoredCheckpoints,
    Unreachable,
)
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings
from mwatch.model.snapshot.pod import WrapperState
from mwatch.model.snapshot.snapshot_wire import PodSnapshot
from mwatch.model.timeline import Rollback
from mwatch.report.conclusion import RunConclusion
from mwatch.report.history import joined
from mwatch.report.recorder import ReportRecorder
from mwatch.report.run_report import RunReport

_LAST_EVENTS = (ProcessExit, Error, Fault)
_SAME_SECONDS = 10.0
"""Time until an unchanged listing of the save folder is observed again, which shows that nothing
was saved."""


class JobStreams:
    """Selects the events that the job's engine has not observed yet."""

    def __init__(self) -> None:
        self._attempt = 0
        self._of_pod: dict[str, int] = {}
        """By UID of the pod: the last attempt that its wrapper has begun."""
        self._stored: Observed | None = None

    def new_events(self, polled: Polled, view: PodView) -> Iterator[Observed]:
        """The new events in order. `view`: the pod before this poll."""
        snapshot = self._with_folder(polled, view)
        new = (each for each in snapshot.observed(polled.at) if self._is_new(each))
        every = [*_missed_start(polled, view), *new]
        attempt = self._of_pod.get(polled.uid)
        is_known = attempt is not None
        if attempt is None:
            attempt = _before(every, snapshot.wrapper)
        for observed in every:
            what = observed.what
            if isinstance(what, AttemptStart) and what.attempt is not None:
                attempt = what.attempt
                self._attempt = max(self._attempt, attempt)
            is_late = attempt < self._attempt
            is_last_event = is_known and isinstance(what, _LAST_EVENTS)
            if isinstance(what, AttemptStart) or not is_late or is_last_event:
                yield observed
        self._of_pod[polled.uid] = attempt

    def has_only_states(self, polled: Polled) -> bool:
        """Whether an answer without changes belongs to the newest attempt, and no listing of the
        save folder is due."""
        snapshot = polled.snapshot
        assert snapshot is not None
        if self._of_pod.get(polled.uid, -1) < self._attempt:
            return False
        at, known = snapshot.stored_at, self._stored
        if at is None or known is None:
            return at is None
        return at + snapshot.shift(polled.at) <= known.at + _SAME_SECONDS

    def runs(self, uid: str, attempt: int) -> bool:
        """Whether that is the last attempt that the pod's wrapper has begun."""
        return self._of_pod.get(uid) == attempt

    def keep(self, uids: set[str]) -> None:
        self._of_pod = {uid: each for uid, each in self._of_pod.items() if uid in uids}

    def _with_folder(self, polled: Polled, view: PodView) -> PodSnapshot:
        """Add the known listing if it is due: for an unchanged save folder the sidecar sends only
        the time of the listing."""
        snapshot = polled.snapshot
        assert snapshot is not None
        at, known = snapshot.stored_at, view.snapshot
        if snapshot.stored is not None or at is None or known is None:
            return snapshot
        if self._stored and at + snapshot.shift(polled.at) <= self._stored.at + _SAME_SECONDS:
            return snapshot
        return replace(snapshot, stored=known.stored)

    def _is_new(self, observed: Observed) -> bool:
        """All pods list the same save folder: one listing is enough, and an older listing of
        another pod lacks what was saved since."""
        if not isinstance(observed.what, StoredCheckpoints):
            return not isinstance(observed.what, SourceStatusChange)
        before = self._stored
        if before is not None:
            wait = _SAME_SECONDS if observed.what == before.what else 0.0
            if observed.at <= before.at + wait:
                return False
        self._stored = observed
        return True


def _before(every: list[Observed], wrapper: WrapperState | None) -> int:
    """The attempt of a new pod before its first event."""
    starts = (each.what.attempt for each in every if isinstance(each.what, AttemptStart))
    first = next((number for number in starts if number is not None), None)
    if first is not None:
        return first - 1
    return 0 if wrapper is None else wrapper.attempt


def _missed_start(polled: Polled, view: PodView) -> list[Observed]:
    """The start of an attempt that began before the oldest event that the sidecar still has."""
    snapshot = polled.snapshot
    if snapshot is None or snapshot.wrapper is None or not polled.is_whole:
        return []
    wrapper = snapshot.wrapper
    known = None if view.snapshot is None else view.snapshot.wrapper
    if known is not None and (not snapshot.gap or known.attempt == wrapper.attempt):
        return []
    starts = (each.what for each in snapshot.events if isinstance(each.what, AttemptStart))
    if any(start.attempt == wrapper.attempt for start in starts):
        return []
    at = wrapper.started_at + snapshot.shift(polled.at)
    start = AttemptStart(wrapper.attempt, wrapper.resume_from, None)
    return [Observed(min(at, polled.at), snapshot.who.pod, start)]


_MAX_BUCKETS = 512
_UNRECORDED = (Beat, Sign, StoredCheckpoints)
"""Each pod sends these with every answer; a report takes them from the job."""


class _JobRecord:
    """Records what the report of a job needs."""

    def __init__(self, engine: Engine, mode: str) -> None:
        self.recorder = ReportRecorder(engine, mode, max_buckets=_MAX_BUCKETS)
        self._newest = 0
        self._acted: set[int] = set()
        """Numbers of the incidents that were acted on."""

    def note(self, observed: Observed) -> None:
        if not isinstance(observed.what, _UNRECORDED):
            self.recorder.note(observed)

    def assessed(self, assessment: Assessment) -> None:
        self.recorder.assessed(assessment)
        for each in self.recorder.engine.incidents:
            if each.number > self._newest:  # it is updated in place
                self._newest = each.number
                self.recorder.incident(each)
            if each.acted_at is not None and each.decision and each.number not in self._acted:
                self._acted.add(each.number)
                self.recorder.enacted(each.decision, each.acted_at)

    def concluded(self, found: Verdict, assessment: Assessment) -> RunConclusion:
        done = self.recorder.conclusions.actions.get(assessment.decision.attempt)
        at = None if done is None else done[1]
        return RunConclusion(found, assessment.decision, at, assessment.findings)


NO_SIDECAR = "it has no sidecar of mwatch"
_BEAT_SECONDS = 3.0
"""Longest time from a heartbeat to the snapshot that shows it: each is made once a second."""
_STILL = frozenset({JobPhase.ENDED, JobPhase.QUEUED, JobPhase.SCHEDULING})


class JobMonitor:
    def __init__(
        self,
        kube: KubeJob,
        catalogue: Mapping[str, CatalogueEntry],
        *,
        now: float,
        settings: Settings | None = None,
        answer_seconds: float = 7.0,
        has_record: bool = False,
    ) -> None:
        """`answer_seconds`: period and time limit of a poll; after that a pod is unreachable.
        `has_record`: keep what `report` needs."""
        self.kube = kube
        self.facts = KubeFacts(now, kube, kube.name)
        self.view_age_seconds: float | None = None
        self.pods: dict[str, PodView] = {}
        self._answer_seconds = answer_seconds
        self.engine = Engine(kube.name, catalogue)
        self.past: RunReport | None = None
        """The report that an earlier controller has stored."""
        self._record = _JobRecord(self.engine, kube.mode) if has_record else None
        self._given: Settings | None = None
        self.use(settings or Settings())
        self.hang_deadline_seconds: float | None = None
        """How long it may be silent in its current phase; None: no limit."""
        self.assessment: Assessment | None = None
        self.phase: JobPhase | None = None
        self.ours: frozenset[str] = frozenset()
        """UIDs of pods that remediation is deleting."""
        self.policy_problem = ""
        """Why the policy that the job names is not used; empty: no problem."""
        self.is_broken = False
        """Pods were lost for an outside reason and others are left: the gang must be restarted."""
        self._ends = JobEnds()
        self._losses = ExternallyLostPods()
        self._held = HeldCauses()
        self._streams = JobStreams()
        self._calm = Calm()
        self.evaluations = 0
        self._were_ours: set[str] | frozenset[str] = frozenset()
        self._ran_since: float | None = None
        self._ports: Mapping[str, int] = {}
        self._seen: tuple[float, PodsAnswering] | None = None
        """Cache of `seen` for the last requested time, until a pod changes."""

    @property
    def attempt(self) -> int:
        return self.engine.job.attempt.number

    @property
    def key(self) -> str:
        return ledger_key(self.kube.kind.value, self.kube.name)

    def use(self, settings: Settings) -> None:
        """Apply a policy. The heartbeat limit is raised to the age that a pod's last answer may
        have, so that ranks do not count as silent between two polls."""
        if settings is self._given:
            return
        self._given = settings
        silence = max(settings.hang.beat_silence_seconds, self._answer_seconds + _BEAT_SECONDS)
        hang = replace(settings.hang, beat_silence_seconds=silence)
        self.engine.settings = replace(settings, hang=hang)

    def is_catching_up(self, now: float) -> bool:
        """A pod has not answered yet or has more to send, so the state may be outdated."""
        bound = 2 * self._answer_seconds
        return any(each.is_catching_up(now, bound) for each in self.pods.values())

    def unreported_since(self, moment: float, now: float) -> list[str]:
        """UIDs of answering pods that have taken no snapshot since `moment`. Once there are none,
        all that these pods printed before is known. Also empty once the wait is over."""
        if now - moment > 2 * self._answer_seconds:
            return []
        looks = ((each.pod.uid, each.looked_at) for each in self.seen(now).answering)
        return [uid for uid, at in looks if at is not None and at < moment]

    def seen(self, now: float) -> PodsAnswering:
        if self._seen is None or self._seen[0] != now:
            self._seen = now, split(self.pods, now, self._answer_seconds)
        return self._seen[1]

    def see(self, facts: KubeFacts, ports: Mapping[str, int], view_age: float | None) -> None:
        """Update from the API server's view; `ports`: of the sidecars, by pod UID."""
        assert facts.job is not None
        self.kube = facts.job
        if self._record is not None:
            self._record.recorder.use(self.kube.mode)
        if self._were_ours or self.ours:
            there = self.pods.keys() | {pod.uid for pod in facts.left}
            self._were_ours = (self._were_ours & there) | self.ours
        known_facts, self.facts = self.facts, replace(facts, ours=frozenset(self._were_ours))
        self._calm.note_facts(self.facts, known_facts)
        self.view_age_seconds = view_age
        if facts.pods != known_facts.pods or ports != self._ports:
            self._see_pods(facts, ports)

    def _see_pods(self, facts: KubeFacts, ports: Mapping[str, int]) -> None:
        self._ports, self._seen = ports, None
        before, self.pods = self.pods, {}
        for pod in facts.pods:
            port, known = ports.get(pod.uid), before.get(pod.uid)
            if known is not None and known.pod is pod and known.port and port is not None:
                self.pods[pod.uid] = known
                continue
            if known is None:
                known = PodView(pod, pod.ip, 0, asked_since=facts.now)
            if port is None:
                known = known._replace(problem=NO_SIDECAR)
            elif not known.port:
                known = known._replace(port=port)
            self.pods[pod.uid] = known._replace(pod=pod, address=pod.ip)
        self._streams.keep(set(self.pods))

    def polled(self, polled: Polled) -> None:
        view = self.pods.get(polled.uid)
        if view is None:
            return  # the pod is gone
        self._calm.note_poll(polled, view)
        if polled.snapshot is None:
            self.pods[polled.uid] = view._replace(problem=polled.problem or "no answer")
            self._seen = None
            return
        whole = polled.snapshot
        if not polled.is_steady:
            whole = whole.after(view.snapshot)
        brings_nothing = polled.is_steady or not brings_changes(polled.snapshot)
        has_only_states = brings_nothing and self._streams.has_only_states(polled)
        if not has_only_states or not self.engine.observe_steady(polled.snapshot, polled.at):
            for observed in self._streams.new_events(polled, view):
                self._observe(observed)
        step, calibration = whole.view.step_seconds, self.engine.job.calibration
        if step and not polled.is_steady and calibration.step_p99() is None:
            calibration.rises.append(step)  # until this engine has observed steps
        # Last: a pod whose events raise an error here is unreachable, not silent.
        self.pods[polled.uid] = PodView(
            view.pod, view.address, polled.port or view.port, polled.at, "", whole,
            view.asked_since, polled.is_whole,
        )  # fmt: skip
        self._seen = None

    def look(self, now: float) -> Assessment:
        if self._is_calm(now) and self.assessment is not None:
            self.engine.job.now = max(self.engine.job.now, now)
            self.assessment = self.assessment._replace(at=now)
            return self.assessment
        self.assessment = None  # if this evaluation fails, the last one must not be acted on
        self.facts = self._losses.see(self.facts, self.engine.job)
        seen = self.seen(now)
        for observed in self._ends.look(self.facts, self.pods, now):
            if observed.stream in self.engine.job.streams:  # the end of an idle pod has no effect
                self._observe(observed)
        self._observe_sources(seen, now)
        found = self._findings(seen, now)
        self.hang_deadline_seconds = None
        if self._can_evaluate(seen, now):
            with one_evaluation():
                assessment = self.engine.evaluate(now, found)
                self.hang_deadline_seconds = self._deadline()
        else:
            decision = decide(self.engine.job, found, self.engine.record, self.engine.settings)
            if decision.finding is None and self.kube.finished == "Succeeded":
                decision = replace(decision, cause=Cause.FINISHED, reason="its job has succeeded")
            assessment = Assessment(now, tuple(found), decision)
        self.assessment = placed(assessment, self.pods)
        self.phase = self._phase()
        if self._record is not None:
            self._record.assessed(self.assessment)
        self._calm.evaluated(now)
        self.evaluations += 1
        return self.assessment

    @property
    def verdict(self) -> Verdict | None:
        """None: not evaluated."""
        if self.assessment is None:
            return None
        return verdict(self.engine.job, self.assessment.findings, self.assessment.decision)

    def report(self, now: float) -> RunReport | None:
        """Over all pods and attempts; None: nothing is recorded."""
        if self._record is None:
            return None
        found, assessment, concluded = self.verdict, self.assessment, None
        if found is not None and assessment is not None:
            concluded = self._record.concluded(found, assessment)
        is_over = bool(self.kube.finished)
        return joined(
            self.past, self._record.recorder.report(now, is_over=is_over, concluded=concluded)
        )

    def _observe(self, observed: Observed) -> None:
        self.engine.observe(observed)
        if self._record is not None:
            self._record.note(observed)

    def restore(self, entry: JobEntry) -> None:
        """Take over past actions from the ledger."""
        self.engine.record.acts.extend(entry.acts)
        timeline = self.engine.job.timeline
        for act in entry.acts:
            if act.quarantine_from is not None:
                text = f"{act.cause.value} in attempt {act.attempt}"
                to = act.quarantine_from - 1
                timeline.roll_back(Rollback(act.at, to, act.first_bad, text))
        timeline.attempt = max(timeline.attempt, entry.attempt)
        if entry.is_under_way:
            self.ours = entry.ours

    def _is_calm(self, now: float) -> bool:
        if len(self.pods) < MIN_PODS or self.ours or self.engine.awaits_progress:
            return False
        return self._calm.is_calm(self.engine.job, self.assessment, self.hang_deadline_seconds, now)

    def _findings(self, seen: PodsAnswering, now: float) -> list[Finding]:
        causes = self._held.look(self.facts, now, self.attempt)
        found = causes[:1]
        is_taken = any(each.cause in TAKEN_CAUSES for each in causes)
        left = {pod.uid for pod in self.facts.left}
        survivors = (self._streams.runs(uid, self.attempt) for uid in self.pods.keys() - left)
        self.is_broken = is_taken and bool(left) and any(survivors)
        gone_at = self._losses.gone_at
        if self.is_broken and gone_at is not None and is_whole(self.facts):
            found = [broken(each, gone_at) for each in found]
        if seen.answering and seen.silent:
            found.append(pods_unreachable(seen))
        if not self.kube.finished and (alone := not_watched(seen)) is not None:
            found.append(alone)
        if self.policy_problem:
            found.append(policy_refused(self.policy_problem))
        return found

    def _observe_sources(self, seen: PodsAnswering, now: float) -> None:
        job = self.engine.job
        if not job.has_started or not (seen.answering or seen.silent):
            return
        for each in seen.silent:
            name = each.pod.name
            if name in job.streams and name not in job.attempt.unreachable:
                why = each.problem or "its last answer is too old"
                self.engine.observe(Observed(now, name, Unreachable(why)))
        any_stream = (seen.answering or seen.silent)[0].pod.name
        # A trainer that has just started need not have printed anything.
        age = now - job.attempt.started_at
        is_early = bool(seen.answering) and age < self.engine.settings.hang.blind_after_seconds
        for source, is_up in readable_sources(job, seen).items():
            if is_early and not is_up:
                continue
            if job.sees(source) != is_up or source not in job.sources:
                change = SourceStatusChange(source, is_up, "seen" if is_up else seen.reason)
                self.engine.observe(Observed(now, any_stream, change))

    def _can_evaluate(self, seen: PodsAnswering, now: float) -> bool:
        """Before the first answer, pods that have just started are not blind yet."""
        if self.engine.job.has_started:
            return True
        if not seen.silent or kube_phase(self.facts) is not None or self.kube.finished:
            self._ran_since = None
            return False
        self._ran_since = now if self._ran_since is None else self._ran_since
        return now - self._ran_since >= self.engine.settings.hang.blind_after_seconds

    def _deadline(self) -> float | None:
        job, settings = self.engine.job, self.engine.settings
        is_still = self._phase() in _STILL or job.attempt.phase in _STILL
        if is_still or not job.has_started:
            return None
        allowed = patience(job, probed_ranks(job, settings), settings)
        return None if allowed is None else allowed.seconds

    def _phase(self) -> JobPhase | None:
        phase = kube_phase(self.facts)
        if phase is None and self.engine.job.has_started:
            phase = self.engine.job.attempt.phase
        return phase

    @property
    def is_acting(self) -> bool:
        return self.kube.mode == "act"
