# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The core, wired: what is told in comes out as findings, one decision, and incidents."""

from __future__ import annotations

from mwatch.engine.engine import Assessment, Engine
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.observation import Observed, ProcessExit
from mwatch.model.timeline import Rollback
from support.builders.events import events
from support.builders.fold import READY, WORLD, line, loaded, loading, saved, saving
from support.builders.job import entries

START = 1_000_000.0


class Watch:
    """An engine that is told one line a second, and looks after each."""

    def __init__(self) -> None:
        self.engine = Engine("run", entries())
        self.at = START
        self._text = ""
        self._told = 0

    def says(self, *lines: str) -> Assessment:
        for each in lines:
            self.at += 1
            self._text += f"{each}\n"
            told = events(self._text, faults=True)
            for event in told[self._told :]:
                self.engine.observe(Observed(self.at, "pod-0", event))
            self._told = len(told)
        return self.engine.evaluate(self.at)


def healthy(*iterations: int) -> list[str]:
    return [line(n, losses=f" lm loss: {6 - n / 100:.6E} |") for n in iterations]


def sick(*iterations: int) -> list[str]:
    return [line(iteration, losses="", change={"grad norm": "nan"}) for iteration in iterations]


def rolled_back() -> Watch:
    """NaN from 7 on, with checkpoints at 3, 6 and 8; the decision was carried out."""
    watch = Watch()
    watch.says(WORLD, READY, *healthy(1, 2, 3), saving(3), saved(3), *healthy(4, 5, 6))
    watch.says(saving(6), saved(6), *sick(7, 8), saving(8), saved(8))
    decision = watch.says(*sick(9)).decision
    assert (decision.action, decision.resume_from) == (Action.RESTART, 6)
    watch.engine.record_action(decision, watch.at)
    return watch


def test_what_was_decided_and_not_done_after_all_gives_nothing_up() -> None:
    watch = rolled_back()
    engine = watch.engine
    assert engine.job.checkpoints[8].is_abandoned
    (act,) = engine.record.acts
    engine.revert_action(act)
    assert not engine.record.acts and not engine.job.timeline.rollbacks
    assert not engine.job.checkpoints[8].is_abandoned
    assert all(each.acted_at is None for each in engine.incidents)
    again = watch.says(*sick(10)).decision
    assert (again.action, again.resume_from) == (Action.RESTART, 6), "it is due again"


def test_what_is_taken_back_leaves_earlier_rollbacks_and_suspicions_alone() -> None:
    watch = Watch()
    timeline = watch.engine.job.timeline
    timeline.roll_back(Rollback(START - 10, 2, None, "by a person"))
    timeline.suspect(START - 5, 7, "what an earlier attempt left")
    before, suspicion = list(timeline.rollbacks), timeline.quarantine
    watch.says(WORLD, READY, *healthy(1, 2, 3), saving(3), saved(3), *healthy(4, 5, 6))
    decision = watch.says(*sick(7, 8, 9)).decision
    watch.engine.record_action(decision, watch.at)
    assert timeline.quarantine is None and len(timeline.rollbacks) == 2
    watch.engine.revert_action(watch.engine.record.acts[0])
    assert (list(timeline.rollbacks), timeline.quarantine) == (before, suspicion)


def test_a_healthy_run_is_left_alone() -> None:
    watch = Watch()
    assessment = watch.says(WORLD, READY, *healthy(*range(1, 30)))
    assert assessment.findings == ()
    assert assessment.decision.action is Action.NONE
    assert assessment.decision.cause is Cause.HEALTHY
    assert not watch.engine.incidents


def test_an_attempt_has_one_action() -> None:
    watch = rolled_back()
    again = watch.says(*sick(10))
    assert again.decision.action is Action.NONE
    watch.engine.record_action(again.decision, watch.at)
    assert len(watch.engine.record.acts) == 1


def test_an_incident_runs_from_its_first_finding_to_the_end_of_the_attempt() -> None:
    watch = rolled_back()
    (incident,) = {each.cause: each for each in watch.engine.incidents}.values()
    assert incident.cause is Cause.NAN
    assert incident.attempt == 1
    assert incident.detected_at <= watch.at
    assert incident.closed_at is None
    watch.says(WORLD, loading(6), loaded(6), READY, *healthy(7, 8))
    assert all(each.closed_at is not None for each in watch.engine.incidents)


def test_what_was_written_after_the_first_bad_sign_is_never_resumed_from() -> None:
    watch = rolled_back()
    watch.says(WORLD, loading(6), loaded(6), READY, *healthy(7))
    watch.engine.observe(Observed(watch.at, "pod-0", ProcessExit(137, "SIGKILL", None)))
    watch.at += 60
    decision = watch.engine.evaluate(watch.at).decision
    assert (decision.action, decision.cause) == (Action.RESTART, Cause.KILLED)
    assert decision.resume_from == 6
    assert watch.engine.job.checkpoints[8].is_abandoned


def test_looking_twice_changes_nothing() -> None:
    watch = Watch()
    first = watch.says(WORLD, READY, *healthy(1, 2, 3), *sick(4, 5))
    second = watch.engine.evaluate(watch.at)
    assert first == second
    assert len({(each.attempt, each.finding.detector) for each in watch.engine.incidents}) == len(
        watch.engine.incidents
    )


def test_what_an_attempt_saved_with_bad_numbers_is_not_resumed_from_by_the_next() -> None:
    """Nobody acted in time: a person went on from the newest one, which is poisoned."""
    watch = Watch()
    watch.says(WORLD, READY, *healthy(1, 2, 3), saving(3), saved(3))
    watch.says(*sick(4, 5), saving(5), saved(5))
    decision = watch.says(WORLD, loading(5), loaded(5), READY, *sick(6)).decision
    assert (decision.cause, decision.resume_from) == (Cause.NAN, 3)


def test_bad_numbers_began_where_they_were_first_seen() -> None:
    watch = Watch()
    watch.says(WORLD, READY, *healthy(1, 2, 3), *sick(4))
    watch.engine.job.attempt.steps.popleft()
    for _ in range(3):
        watch.engine.job.attempt.steps.popleft()
    (missing,) = [f for f in watch.says(*sick(5)).findings if f.detector == "grad_norm_bad"]
    assert missing.since_iteration == 4


def test_a_save_that_ends_after_the_rollback_was_decided_is_poisoned_too() -> None:
    watch = rolled_back()
    watch.says(saving(9), saved(9))
    watch.says(WORLD, loading(6), loaded(6), READY, *healthy(7))
    assert watch.engine.job.checkpoints[9].is_abandoned


def test_a_peek_changes_nothing() -> None:
    watch = Watch()
    watch.says(WORLD, READY, *healthy(*range(1, 30)))
    later = watch.engine.preview(watch.at + 4000)
    assert [each.detector for each in later.findings] == ["stalled"]
    assert watch.engine.job.now == watch.at
    assert not watch.engine.incidents
    assert watch.engine.evaluate(watch.at + 4000).findings == later.findings


def silent_and_then(what: str | ProcessExit) -> Watch:
    """Nothing for a minute, in which the silence is noticed; then `what`."""
    watch = Watch()
    watch.says(WORLD, READY, *healthy(*range(1, 30)))
    watch.at += 60
    watch.engine.evaluate(watch.at)
    assert [each.cause for each in watch.engine.incidents] == [Cause.HANG]
    watch.at += 1
    if isinstance(what, str):
        watch.says(what)
    else:
        watch.engine.observe(Observed(watch.at, "pod-0", what))
        watch.engine.evaluate(watch.at)
    return watch


def test_the_silence_before_a_death_is_the_same_incident() -> None:
    watch = silent_and_then(ProcessExit(137, "SIGKILL", None))
    (incident,) = watch.engine.incidents
    assert incident.cause is Cause.HANG, "it was killed because it stood still"
    assert incident.detected_at == watch.at - 1


def test_a_silence_that_healed_before_a_death_was_another_thing() -> None:
    watch = silent_and_then(*healthy(30))
    watch.engine.observe(Observed(watch.at + 1, "pod-0", ProcessExit(137, "SIGKILL", None)))
    watch.engine.evaluate(watch.at + 1)
    assert [each.cause for each in watch.engine.incidents] == [Cause.HANG, Cause.KILLED]
