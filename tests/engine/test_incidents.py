# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which findings are one incident, when it is over, and what it is called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.decide.decide import record_action
from mwatch.engine.incidents import MAX_INCIDENTS, MAX_OPEN, open_incidents
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, DecisionRecord
from mwatch.model.finding import Culprit, Severity
from mwatch.model.incident import is_incident_id
from support.builders.incidents import (
    BAD_NORM,
    CRASH,
    DRAINED,
    HARDWARE,
    KILLED,
    NO_LOSS,
    OOM,
    PREEMPTED,
    RANK_SILENT,
    SLOW,
    STALLED,
    Findings,
)


@pytest.mark.parametrize(("one", "other"), [(STALLED, RANK_SILENT), (NO_LOSS, BAD_NORM)])
def test_two_detectors_of_one_cause_are_one_incident_and_count_once(
    one: tuple[str, Cause], other: tuple[str, Cause]
) -> None:
    found = Findings()
    found.at(10, one)
    found.at(12, one, other)
    found.at(20)
    found.at(80)
    (incident,) = found.incidents
    assert (incident.number, incident.detected_at, incident.closed_at) == (1, 10, 20)
    assert [each.finding.detector for each in incident.symptoms] == [one[0], other[0]]
    assert found.counts == {f"{one[1]}/none": 1}


def test_what_only_informs_is_no_incident() -> None:
    found = Findings()
    found.at(10, SLOW, severity=Severity.INFO)
    assert found.incidents == []


def test_causes_and_attempts_are_kept_apart() -> None:
    found = Findings()
    found.at(10, STALLED, SLOW)
    found.restarts(20)
    found.at(30, STALLED)
    assert [(each.number, each.attempt, each.cause) for each in found.incidents] == [
        (1, 1, Cause.HANG), (2, 1, Cause.SLOW), (3, 2, Cause.HANG),
    ]  # fmt: skip
    assert found.counts == {"hang/none": 1, "slow/none": 1}


def test_what_comes_and_goes_within_a_minute_is_one_incident() -> None:
    found = Findings()
    for moment in range(0, 500, 50):
        found.at(moment + 1, SLOW)
        found.at(moment + 2)
    (incident,) = found.incidents
    assert (incident.lead.times, incident.lead.since, incident.detected_at) == (10, 451, 1)
    assert found.counts == {}, "it may come again"
    found.at(600)
    assert found.counts == {"slow/none": 1}


def test_after_a_minute_of_quiet_it_is_another_incident() -> None:
    found = Findings()
    found.at(10, STALLED)
    found.at(20)
    found.at(80, STALLED)
    assert [each.detected_at for each in found.incidents] == [10, 80]
    assert found.counts == {"hang/none": 1}


def test_a_silence_that_becomes_a_death_is_one_incident_of_that_death() -> None:
    found = Findings()
    found.at(10, STALLED, since_time=4.0)
    found.at(20, KILLED, since_time=19.0)
    (incident,) = found.incidents
    assert (incident.cause, incident.detected_at, incident.fault_at) == (Cause.KILLED, 10, 4.0)
    assert incident.id.endswith("-hang"), "its folder keeps its name"


def test_a_crash_of_one_rank_and_the_silence_of_the_others_are_one_incident() -> None:
    found = Findings()
    found.at(10, CRASH)
    found.at(20, CRASH, STALLED)
    (incident,) = found.incidents
    assert incident.cause is Cause.CRASH


def test_a_death_whose_cause_is_learnt_later_is_one_incident() -> None:
    found = Findings()
    found.at(10, CRASH)
    found.at(11, OOM, decides=OOM)
    (incident,) = found.incidents
    assert incident.cause is Cause.OOM


def test_a_silence_that_healed_before_a_death_is_another_incident() -> None:
    found = Findings()
    found.at(10, STALLED)
    found.job.now = 11
    found.progresses(5)
    found.at(12)
    found.at(20, KILLED)
    assert [each.cause for each in found.incidents] == [Cause.HANG, Cause.KILLED]


def test_a_cause_outside_the_job_explains_its_silence_and_its_death() -> None:
    found = Findings()
    found.at(10, STALLED)
    found.at(20, KILLED)
    found.at(30, KILLED, PREEMPTED, decides=PREEMPTED)
    (incident,) = found.incidents
    assert incident.cause is Cause.PREEMPTED


def test_two_causes_outside_the_job_are_two_incidents() -> None:
    found = Findings()
    found.at(10, PREEMPTED)
    found.at(20, DRAINED)
    assert [each.cause for each in found.incidents] == [Cause.PREEMPTED, Cause.DRAINED]


def test_what_is_found_after_an_action_follows_from_it() -> None:
    found = Findings()
    found.at(10, NO_LOSS, decides=NO_LOSS)
    found.acts(NO_LOSS)
    found.at(11, NO_LOSS, HARDWARE)
    found.at(200, KILLED)
    (incident,) = found.incidents
    assert (incident.cause, incident.detected_at, incident.acted_at) == (Cause.NAN, 10, 10)
    found.restarts(210)
    assert found.counts == {"nan/restart": 1}


def test_an_action_that_no_incident_asked_for_makes_none() -> None:
    """A person restarts a healthy job."""
    found = Findings()
    found.at(10)
    found.acts(STALLED)
    found.at(11, KILLED)
    assert found.incidents == []


def test_when_only_observing_the_job_goes_on_and_may_have_another_incident() -> None:
    found = Findings()
    found.at(10, NO_LOSS, decides=NO_LOSS)
    found.acts(NO_LOSS, is_carried_out=False)
    found.at(3600, NO_LOSS, HARDWARE)
    assert [each.cause for each in found.incidents] == [Cause.NAN, Cause.HARDWARE]


@pytest.mark.parametrize("stop", [KILLED, STALLED])
def test_somebody_who_stops_a_job_that_is_due_for_a_restart_opens_no_incident(
    stop: tuple[str, Cause],
) -> None:
    found = Findings()
    found.at(10, NO_LOSS, decides=NO_LOSS)
    found.at(20, NO_LOSS, stop, decides=NO_LOSS)
    (incident,) = found.incidents
    assert (incident.cause, incident.acted_at) == (Cause.NAN, None)


def test_what_stops_a_job_long_after_a_restart_was_due_is_an_incident_of_its_own() -> None:
    found = Findings()
    found.at(10, NO_LOSS, decides=NO_LOSS)
    found.at(3600, NO_LOSS, STALLED, decides=NO_LOSS)
    assert [each.cause for each in found.incidents] == [Cause.NAN, Cause.HANG]


def test_what_the_action_was_decided_for_leads() -> None:
    found = Findings()
    found.at(10, STALLED)
    found.at(12, STALLED, RANK_SILENT, decides=RANK_SILENT)
    (incident,) = found.incidents
    assert incident.finding.detector == "rank_silent"
    assert (incident.detected_at, incident.decided_at) == (10, 12)


def test_an_action_that_was_not_carried_out_after_all_is_taken_back() -> None:
    found = Findings()
    found.at(10, STALLED, decides=STALLED)
    made = found.at(11, STALLED, decides=STALLED)
    found.acts(STALLED)
    (incident,) = found.incidents
    act = record_action(DecisionRecord(), made, found.job, found.job.now)
    found.log.reverted(act)
    assert (incident.acted_at, incident.is_carried_out) == (None, False)
    found.at(20)
    found.at(90)
    assert found.counts == {"hang/none": 1}


def test_a_decision_falls_with_what_it_rested_on() -> None:
    found = Findings()
    found.at(10, STALLED, decides=STALLED)
    found.at(20)
    found.at(30, STALLED)
    (incident,) = found.incidents
    assert incident.decided_at is None


def test_an_incident_is_recovered_from_at_the_first_new_iteration_with_good_numbers() -> None:
    found = Findings()
    found.progresses(9)
    found.at(10, NO_LOSS, decides=NO_LOSS)
    found.acts(NO_LOSS)
    found.restarts(20)
    for moment, iteration, bad in ((30, 9, False), (31, 10, True), (32, 11, False)):
        found.job.now = moment
        found.progresses(iteration)
        found.at(moment, *([NO_LOSS] if bad else []))
    assert found.incidents[0].first_new_at == 32
    assert not found.log.awaits_progress


def test_what_healed_by_itself_waits_for_no_recovery() -> None:
    found = Findings()
    found.at(10, STALLED, decides=STALLED)
    found.at(20)
    found.restarts(30)
    assert not found.log.awaits_progress


def test_two_incidents_of_one_second_have_two_names() -> None:
    found = Findings()
    found.at(10, SLOW)
    found.at(10.1)
    found.log.end_attempt(found.job)
    found.restarts(10.2)
    found.job.attempt.number = 1  # a wrapper that counts from 1 again
    found.at(10.4, SLOW)
    names = [each.id for each in found.incidents]
    assert len(set(names)) == len(names)
    assert all(map(is_incident_id, names))


@pytest.mark.parametrize("moment", [-5.0, 1e17])
def test_a_time_that_no_calendar_has_gives_a_name_all_the_same(moment: float) -> None:
    found = Findings()
    found.at(moment, SLOW)
    assert is_incident_id(found.incidents[0].id)


def test_the_number_of_incidents_is_bounded_and_the_count_is_not() -> None:
    found = Findings()
    for number in range(MAX_INCIDENTS + 50):
        found.at(1000.0 * number, SLOW)
        found.at(1000.0 * number + 1)
    found.at(1e6)
    assert len(found.incidents) == MAX_INCIDENTS
    assert found.incidents[-1].number == MAX_INCIDENTS + 50
    assert found.counts == {"slow/none": MAX_INCIDENTS + 50}


def test_open_incidents_name_the_culprit_of_the_newest_finding_and_are_bounded() -> None:
    found = Findings()
    found.at(10, SLOW)
    found.at(11, SLOW, NO_LOSS, decides=NO_LOSS)
    (slow, bad) = found.incidents
    placed = Culprit(rank=3, pod="gpt-0", node="node-17", gpu_uuid="GPU-3")
    now = [replace(bad.finding, culprit=placed)]
    first, second = open_incidents(found.incidents, now)
    assert (first.cause, first.action, first.culprit) == (Cause.SLOW, Action.NONE, None)
    assert (second.cause, second.culprit) == (Cause.NAN, placed)
    assert (second.action, second.stage.value) == (Action.RESTART, "opened")
    assert len(open_incidents([slow] * 99, now)) == MAX_OPEN
    slow.is_over = bad.is_over = True
    assert open_incidents(found.incidents, now) == ()


def test_the_stages_of_an_incident() -> None:
    found = Findings()
    found.progresses(9)
    found.at(10, SLOW)
    found.at(11, SLOW, NO_LOSS, decides=NO_LOSS)

    def stages() -> list[str]:
        return [each.stage.value for each in found.incidents]

    found.acts(NO_LOSS, is_carried_out=False)
    assert stages() == ["opened", "opened"]
    found.acts(NO_LOSS)
    assert stages() == ["opened", "acted"]
    found.at(12, NO_LOSS)
    assert stages() == ["opened", "acted"], "the first may come back within a minute"
    found.at(80, NO_LOSS)
    assert stages() == ["recovered", "acted"]
    found.restarts(90)
    assert stages() == ["recovered", "acted"]
    found.job.now = 100
    found.progresses(10)
    found.at(100)
    assert stages() == ["recovered", "recovered"]
