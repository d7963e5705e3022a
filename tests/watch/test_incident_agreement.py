# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to a run, everybody who speaks of its incidents speaks of the same ones.

A history of findings, attempts and actions is fed to a watched run (what the sidecar and `mwatch
run` are made of) and to the engine of a controller. The tracker, the incident files, `story.json`
and both metrics must agree on the number of incidents, their causes, lead findings and times.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mwatch.controller.page import snapshot_of
from mwatch.engine.engine import Assessment, Engine
from mwatch.engine.incidents import QUIET_SECONDS, Incident
from mwatch.evidence.incident_store import IncidentFiles
from mwatch.fleet.job_monitor import JobMonitor
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Finding, Severity
from mwatch.model.incident import IncidentRecord
from mwatch.model.observation import Observed
from mwatch.report import story_json
from mwatch.report.model import IncidentStory
from mwatch.stats import MonotonicCounters
from support.builders import incidents as known
from support.builders import kube
from support.builders.fold import READY, WORLD
from support.builders.job import entries
from support.builders.run import good
from support.runs.watched_runs import Watched, watching

SPECS = (
    known.STALLED, known.RANK_SILENT, known.SLOW, known.NO_LOSS, known.BAD_NORM, known.KILLED,
    known.CRASH, known.OOM, known.PREEMPTED, known.HARDWARE,
)  # fmt: skip


class Look(NamedTuple):
    seconds: float
    found: tuple[tuple[str, Cause], ...]
    severity: Severity = Severity.WARNING


class Act(NamedTuple):
    is_reverted: bool = False


class Restart(NamedTuple):
    """Another attempt begins."""


class Steps(NamedTuple):
    """Training goes on."""

    iterations: int


FOUND = st.lists(st.sampled_from(SPECS), max_size=3, unique=True).map(tuple)
LOOKS = st.builds(
    Look,
    st.sampled_from([0.5, 5.0, 30.0, QUIET_SECONDS, 700.0]),
    FOUND,
    st.sampled_from([Severity.WARNING, Severity.WARNING, Severity.CRITICAL, Severity.INFO]),
)
HISTORIES = st.lists(
    st.one_of(
        LOOKS,
        LOOKS,
        LOOKS,
        st.builds(Act, st.booleans()),
        st.builds(Restart),
        st.builds(Steps, st.integers(1, 4)),
    ),
    min_size=1,
    max_size=24,
)


class Told(Engine):
    """Finds what the history says besides what its detectors find; `twin` is told the same."""

    def __init__(self, twin: Engine) -> None:
        super().__init__("r", entries())
        self.twin = twin
        self.script: Sequence[Finding] = ()
        self.last: Assessment | None = None
        self.twin_last: Assessment | None = None

    def observe(self, observed: Observed) -> None:
        super().observe(observed)
        self.twin.observe(observed)

    def evaluate(self, now: float, besides: Sequence[Finding] = ()) -> Assessment:
        self.twin_last = self.twin.evaluate(now, self.script)
        self.last = super().evaluate(now, self.script)
        return self.last

    def record_action(self, decision: Decision, at: float, *, is_carried_out: bool = True) -> None:
        super().record_action(decision, at, is_carried_out=is_carried_out)
        self.twin.record_action(decision, at, is_carried_out=is_carried_out)


class Played:
    def __init__(self, watched: Watched, engine: Told) -> None:
        self._watched = watched
        self._engine = engine
        self._attempt = 1
        self._iteration = 0
        watched.start(1)
        watched.say(WORLD, READY)

    def play(self, history: Sequence[Look | Act | Restart | Steps]) -> None:
        for each in history:
            if isinstance(each, Look):
                self._look(each)
            elif isinstance(each, Act):
                self._act(each)
            elif isinstance(each, Restart):
                self._attempt += 1
                self._watched.start(self._attempt, resume_from=0)
                self._iteration = max(0, self._iteration - 2)
                self._watched.say(WORLD, READY)
            else:
                first = self._iteration + 1
                self._iteration += each.iterations
                self._watched.say(*good(*range(first, self._iteration + 1)))

    def _look(self, look: Look) -> None:
        watched = self._watched
        watched.clock.monotonic += look.seconds
        since = watched.clock.now() - 1.0
        self._engine.script = [
            known.finding(*each, severity=look.severity, since_time=since) for each in look.found
        ]
        watched.watch.look()

    def _act(self, act: Act) -> None:
        last = self._engine.last
        assert last is not None
        if last.decision.action is Action.NONE:
            return
        self._watched.watch.enacted(last.decision)
        for engine in (self._engine, self._engine.twin) if act.is_reverted else ():
            done = engine.record.of_attempt(last.decision.attempt)
            if done is not None:
                engine.revert_action(done)


def of_incident(incident: Incident) -> tuple[Any, ...]:
    lead = incident.finding.detector
    return incident.id, incident.attempt, incident.cause.value, lead, incident.times


def of_record(record: IncidentRecord) -> tuple[Any, ...]:
    return record.id, record.attempt, record.cause.value, record.detector, record.times


def of_story(story: IncidentStory) -> tuple[Any, ...]:
    times = (
        story.since_at, story.detected_at, story.decided_at, story.acted_at, story.recovered_at,
        story.closed_at,
    )  # fmt: skip
    return story.id, story.attempt, story.cause, story.voices[0].detector, times


@settings(max_examples=60, deadline=None)
@given(HISTORIES, st.booleans())
@example([Look(1.0, (known.STALLED, known.RANK_SILENT)), Look(1.0, ()), Look(60.0, ())], False)
@example([Look(1.0, (known.NO_LOSS, known.BAD_NORM)), Restart()], False)
@example(
    [
        Look(0.5, (known.NO_LOSS, known.STALLED), Severity.CRITICAL), Act(False),
        Look(0.5, ()), Look(60.0, (known.STALLED,)),
    ],
    True,
)  # fmt: skip
def test_sidecar_controller_story_and_files_agree_on_the_incidents(
    history: list[Look | Act | Restart | Steps], is_act: bool
) -> None:
    monitor = JobMonitor(kube.pytorch_job(workers=1), entries(), now=0.0)
    engine = Told(monitor.engine)
    engine.settings = monitor.engine.settings
    with tempfile.TemporaryDirectory() as folder:
        with watching(Path(folder), is_act=is_act, engine=engine) as watched:
            Played(watched, engine).play(history)
            watched.watch.look()
            (sidecar,) = watched.metrics.snapshots()
        monitor.assessment = engine.twin_last
        controller = snapshot_of(monitor, MonotonicCounters(), watched.clock.now())
        files = IncidentFiles(watched.folder.incidents).read()
        story = story_json.read(watched.folder.story)
    assert not watched.view.of("noted")
    expected = [of_incident(each) for each in engine.incidents]
    assert [of_incident(each) for each in engine.twin.incidents] == expected
    assert [of_record(each.record) for each in watched.watch.keeper.tracked] == expected
    assert sorted(map(of_record, files.records)) == sorted(expected)
    assert [of_story(each) for each in story.incidents] == [
        (*each[:4], tuple(getattr(each[4], name) for name in each[4].__slots__))
        for each in expected
    ]
    over = Counter((each.cause, each.action) for each in engine.incidents if each.is_over)
    assert controller is not None
    assert sidecar.incidents == controller.incidents == over
    assert [each.number for each in engine.incidents] == list(range(1, len(expected) + 1))
    for incident in engine.incidents:
        is_sound(incident, engine.incidents)


def is_sound(incident: Incident, every: Sequence[Incident]) -> None:
    """What follows from the definition, whatever the history."""
    times = incident.times
    steps = [times.detected, times.decided, times.acted]
    assert sorted(at for at in steps if at is not None) == [at for at in steps if at is not None]
    for other in every:
        if other is incident or other.attempt != incident.attempt or other.number < incident.number:
            continue
        # What the older one took in later is not why the other one should have joined it.
        before = [each for each in incident.symptoms if each.detected_at <= other.detected_at]
        causes = {each.finding.cause for each in before}
        first = other.symptoms[0]
        if first.finding.cause in causes:
            assert incident.closed_at is not None
            assert other.detected_at - incident.closed_at >= QUIET_SECONDS
