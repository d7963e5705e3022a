# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One watched job: the streams of all its pods, joined into one engine on the controller's clock.

The controller's loop alone touches it. A pod whose sidecar does not answer is *unseen*: where none
answers the job is blind, and never hung for that. What Kubernetes did to it is merged in.

What of the pods' snapshots is news for the job's engine.

Events are told once and in order. What can be seen at all is judged over all pods, so a pod's own
changes of sight are left out. Wrappers count attempts: once one of them has begun the next, what
other pods still do and print is of the last one, and only their last words count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from mwatch.checks.kube_causes import kube_phase
from mwatch.decide.decide import decide
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
    placed,
    policy_refused,
    unseen,
)
from mwatch.fleet.visibility import PodsAnswering, PodView, Polled, sights, split
from mwatch.gang.restart import ledger_key
from mwatch.model.decision import Action, Decision
from mwatch.model.event import Error, Fault
from mwatch.model.fault import CatalogueEntry
from mwatch.model.finding import Cause, Finding
from mwatch.model.kube.facts import KubeFacts
from mwatch.model.kube.job import KubeJob
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.observation import (
    AttemptStart,
    Observed,
    ProcessExit,
    SourceStatusChange,
    StoredCheckpoints,
    Unreachable,
)
from mwatch.model.phase import JobPhase
from mwatch.model.settings import Settings
from mwatch.model.snapshot.snapshot_wire import PodSnapshot
from mwatch.model.snapshot.wrapper import WrapperState
from mwatch.model.timeline import Rollback

_LAST_WORDS = (ProcessExit, Error, Fault)
_SAME_SECONDS = 10.0
"""Between two looks that found the folder the same: the later one knows what was saved since."""


def merged(newest: PodSnapshot, before: PodSnapshot | None) -> PodSnapshot:
    """With the parts that the sidecar leaves out because we know them; events are not kept."""
    if before is None:
        return replace(newest, events=())
    return replace(
        newest,
        events=(),
        wrapper=newest.wrapper or before.wrapper,
        stored=newest.stored or before.stored,
        pod=newest.pod or before.pod,
    )


class JobStreams:
    """Of one job."""

    def __init__(self) -> None:
        self._attempt = 0
        """The newest that any wrapper was told to have begun."""
        self._of_pod: dict[str, int] = {}
        """By UID: the attempt that its wrapper was last told to have begun."""
        self._stored: Observed | None = None
        """The newest look into the save folder that was told."""

    def news(self, polled: Polled, view: PodView) -> Iterator[Observed]:
        """In order. `sight`: as before this poll."""
        snapshot = self._with_folder(polled, view)
        reported = (each for each in snapshot.observed(polled.at) if self._is_new(each))
        every = [*_untold_start(polled, view), *reported]
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
            is_last_word = is_known and isinstance(what, _LAST_WORDS)
            if isinstance(what, AttemptStart) or not is_late or is_last_word:
                yield observed
        self._of_pod[polled.uid] = attempt

    def runs(self, uid: str, attempt: int) -> bool:
        """Whether that is the attempt that a pod's wrapper was last told to have begun."""
        return self._of_pod.get(uid) == attempt

    def keep(self, uids: set[str]) -> None:
        """Others are gone."""
        for uid in [uid for uid in self._of_pod if uid not in uids]:
            del self._of_pod[uid]

    def _with_folder(self, polled: Polled, view: PodView) -> PodSnapshot:
        """Of a look that found the folder as it was only the time is sent."""
        snapshot = polled.snapshot
        assert snapshot is not None
        at, known = snapshot.stored_at, view.snapshot
        if snapshot.stored is not None or at is None or known is None:
            return snapshot
        if self._stored and at + snapshot.shift(polled.at) <= self._stored.at + _SAME_SECONDS:
            return snapshot
        return replace(snapshot, stored=known.stored)

    def _is_new(self, observed: Observed) -> bool:
        """All pods see the same save folder: what one has told need not be told by all, and an
        older look of another pod does not know what was saved since."""
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
    """In which attempt a pod was that we have just met, before the first thing it tells."""
    starts = (each.what.attempt for each in every if isinstance(each.what, AttemptStart))
    first = next((number for number in starts if number is not None), None)
    if first is not None:
        return first - 1
    return 0 if wrapper is None else wrapper.attempt


def _untold_start(polled: Polled, view: PodView) -> list[Observed]:
    """The attempt began before all that the sidecar still has."""
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


NO_SIDECAR = "it has no sidecar of mwatch"
_BEAT_SECONDS = 3.0
"""Between a beat and the look that tells of it: each comes once a second."""
_STILL = frozenset({JobPhase.ENDED, JobPhase.QUEUED, JobPhase.SCHEDULING})


class PodPlace(NamedTuple):
    """Where a pod's sidecar answers."""

    address: str
    port: int


class JobMonitor:
    def __init__(
        self,
        kube: KubeJob,
        catalogue: Mapping[str, CatalogueEntry],
        *,
        now: float,
        settings: Settings | None = None,
        answer_seconds: float = 7.0,
    ) -> None:
        """`answer_seconds`: a poll and its time limit; whose last answer is older is unseen."""
        self.kube = kube
        self.facts = KubeFacts(now, kube, kube.name)
        self.sight_age_seconds: float | None = None
        self.pods: dict[str, PodView] = {}
        self._answer_seconds = answer_seconds
        self.engine = Engine(kube.name, catalogue)
        self._given: Settings | None = None
        self.use(settings or Settings())
        self.hang_deadline_seconds: float | None = None
        """How long it may be silent in what it does now; None: there is no such time."""
        self.assessment: Assessment | None = None
        self.phase: JobPhase | None = None
        self.ours: frozenset[str] = frozenset()
        """UIDs of pods that mwatch itself is deleting: the hands say so."""
        self.policy_problem = ""
        """Why the policy that the job names is not used; empty: it is, or none is named."""
        self.is_broken = False
        """Somebody outside took pods of a gang whose others are left: it has to be restarted."""
        self._ends = JobEnds()
        self._losses = ExternallyLostPods()
        self._held = HeldCauses()
        self._streams = JobStreams()
        self._were_ours: set[str] | frozenset[str] = frozenset()
        self._ran_since: float | None = None

    @property
    def attempt(self) -> int:
        return self.engine.job.attempt.number

    @property
    def key(self) -> str:
        return ledger_key(self.kube.kind.value, self.kube.name)

    def use(self, settings: Settings) -> None:
        """A policy. That a pod was not asked again yet is no silence of its ranks: of one that is
        still taken for seen, the last beat may be as old as its answer and a little more."""
        if settings is self._given:
            return
        self._given = settings
        silence = max(settings.hang.beat_silence_seconds, self._answer_seconds + _BEAT_SECONDS)
        hang = replace(settings.hang, beat_silence_seconds=silence)
        self.engine.settings = replace(settings, hang=hang)

    def is_half_told(self, now: float) -> bool:
        """A pod was not asked yet, or has more to tell: what the others tell may be old news."""
        bound = 2 * self._answer_seconds
        return any(each.is_half_told(now, bound) for each in self.pods.values())

    def is_told_since(self, moment: float, now: float) -> bool:
        """Every pod that answers has looked since then: what one printed before that is known,
        also where another one's words came first. Nobody waits for long."""
        if now - moment > 2 * self._answer_seconds:
            return True
        looks = (each.looked_at for each in self.seen(now).answering)
        return all(at is None or at >= moment for at in looks)

    def seen(self, now: float) -> PodsAnswering:
        return split(self.pods, now, self._answer_seconds)

    def see(
        self, facts: KubeFacts, places: Mapping[str, PodPlace], sight_age: float | None
    ) -> None:
        """What the API server tells of it now; `places`: by pod UID, of those with a sidecar."""
        assert facts.job is not None
        self.kube = facts.job
        there = self.pods.keys() | {pod.uid for pod in facts.left}
        self._were_ours = (self._were_ours & there) | self.ours
        self.facts = replace(facts, ours=frozenset(self._were_ours))
        self.sight_age_seconds = sight_age
        before, self.pods = self.pods, {}
        for pod in facts.pods:
            place, known = places.get(pod.uid), before.get(pod.uid)
            if known is None:
                known = PodView(pod, pod.ip, 0, asked_since=facts.now)
            if place is None:
                known = known._replace(problem=NO_SIDECAR)
            elif not known.port:
                known = known._replace(port=place.port)
            self.pods[pod.uid] = known._replace(pod=pod, address=pod.ip)
        self._streams.keep(set(self.pods))

    def polled(self, polled: Polled) -> None:
        view = self.pods.get(polled.uid)
        if view is None:
            return  # it has gone meanwhile
        if polled.snapshot is None:
            self.pods[polled.uid] = view._replace(problem=polled.problem or "no answer")
            return
        whole = merged(polled.snapshot, view.snapshot)
        for observed in self._streams.news(polled, view):
            self.engine.observe(observed)
        self._learn(whole.view.step_seconds)
        # Last: a pod whose news we fail to take is unseen, and not silent.
        self.pods[polled.uid] = view._replace(
            answered_at=polled.at, problem="", snapshot=whole, port=polled.port or view.port,
            is_whole=polled.is_whole,
        )  # fmt: skip

    def look(self, now: float) -> Assessment:
        self.assessment = None  # should this look fail, nobody acts on the one before it
        self.facts = self._losses.see(self.facts, self.engine.job)
        seen = self.seen(now)
        for observed in self._ends.look(self.facts, self.pods, now):
            if self._takes_part(observed):
                self.engine.observe(observed)
        self._tell_sights(seen, now)
        found = self._findings(seen, now)
        self.hang_deadline_seconds = None
        if self._has_anything_to_say(seen, now):
            with one_evaluation():
                assessment = self.engine.evaluate(now, found)
                self.hang_deadline_seconds = self._deadline()
        else:
            decision = decide(self.engine.job, found, self.engine.record, self.engine.settings)
            assessment = Assessment(now, tuple(found), self._without_sight(decision))
        self.assessment = placed(assessment, self.pods)
        self.phase = self._phase()
        return self.assessment

    def restore(self, entry: JobEntry) -> None:
        """What was done before outlives the controller: the ledger says it."""
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

    def _findings(self, seen: PodsAnswering, now: float) -> list[Finding]:
        causes = self._held.look(self.facts, now, self.attempt)
        found = causes[:1]
        is_taken = any(each.cause in TAKEN_CAUSES for each in causes)
        self.is_broken = is_taken and bool(self.facts.left) and self._has_survivors
        gone_at = self._losses.gone_at
        if self.is_broken and gone_at is not None and is_whole(self.facts):
            found = [broken(each, gone_at) for each in found]
        if seen.answering and seen.silent:
            found.append(unseen(seen))
        if self.policy_problem:
            found.append(policy_refused(self.policy_problem))
        return found

    @property
    def _has_survivors(self) -> bool:
        left = {pod.uid for pod in self.facts.left}
        return any(self._streams.runs(uid, self.attempt) for uid in self.pods.keys() - left)

    def _takes_part(self, observed: Observed) -> bool:
        """A pod that was never seen to do anything ends nothing."""
        return observed.stream in self.engine.job.streams

    def _tell_sights(self, seen: PodsAnswering, now: float) -> None:
        """Where nothing runs there is nothing to see, and nobody is blind for that."""
        job = self.engine.job
        if not job.has_started or not (seen.answering or seen.silent):
            return
        for each in seen.silent:
            name = each.pod.name
            if name in job.streams and name not in job.attempt.unreachable:
                why = each.problem or "its last answer is too old"
                self.engine.observe(Observed(now, name, Unreachable(why)))
        any_stream = (seen.answering or seen.silent)[0].pod.name
        # What has just been started need not have said anything yet.
        age = now - job.attempt.started_at
        is_early = bool(seen.answering) and age < self.engine.settings.hang.blind_after_seconds
        for view, is_up in sights(job, seen).items():
            if is_early and not is_up:
                continue
            if job.sees(view) != is_up or view not in job.sources:
                why = "seen" if is_up else seen.reason
                self.engine.observe(Observed(now, any_stream, SourceStatusChange(view, is_up, why)))

    def _has_anything_to_say(self, seen: PodsAnswering, now: float) -> bool:
        """Before the first answer a pod that has just started need not have said anything."""
        if self.engine.job.has_started:
            return True
        if not seen.silent or kube_phase(self.facts) is not None or self.kube.finished:
            self._ran_since = None
            return False
        self._ran_since = now if self._ran_since is None else self._ran_since
        return now - self._ran_since >= self.engine.settings.hang.blind_after_seconds

    def _without_sight(self, decision: Decision) -> Decision:
        if decision.finding is None and self.kube.finished == "Succeeded":
            return replace(decision, cause=Cause.FINISHED, reason="its job has succeeded")
        return decision

    def _deadline(self) -> float | None:
        job, settings = self.engine.job, self.engine.settings
        is_still = self._phase() in _STILL or job.attempt.phase in _STILL
        if is_still or not job.has_started:
            return None
        allowed = patience(job, probed_ranks(job, settings), settings)
        return None if allowed is None else allowed.seconds

    def _phase(self) -> JobPhase | None:
        reported = kube_phase(self.facts)
        if reported is not None:
            return reported
        return self.engine.job.attempt.phase if self.engine.job.has_started else None

    def _learn(self, step_seconds: float | None) -> None:
        """Until our own engine has seen steps."""
        calibration = self.engine.job.calibration
        if step_seconds and calibration.step_p99() is None:
            calibration.rises.append(step_seconds)

    @property
    def is_acting(self) -> bool:
        return self.kube.mode == "act"

    @property
    def wants_action(self) -> bool:
        """Somebody should do something about it now, or soon."""
        assessment = self.assessment
        return assessment is not None and assessment.decision.action is not Action.NONE
