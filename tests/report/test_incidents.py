# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""One trouble is one incident, whoever found it; what followed from it is told with it."""

from __future__ import annotations

from typing import Any

from mwatch.engine.engine import Incident
from mwatch.model.decision import Action, Decision, Witness
from mwatch.model.finding import Cause, Culprit, CulpritState, Evidence, Finding, Severity
from mwatch.report.model import AttemptReport, IncidentStory, tell, who


def incident(
    cause: Cause = Cause.HANG,
    detector: str = "stalled",
    detected: float = 10.0,
    *,
    attempt: int = 1,
    decided: float | None = None,
    acted: float | None = None,
    closed: float | None = None,
    **more: Any,
) -> Incident:
    usual: dict[str, Any] = {"since_time": detected - 5, "since_iteration": 7}
    finding = Finding(detector, cause, Severity.CRITICAL, f"{detector} says so", **(usual | more))
    decision = None
    if decided is not None:
        witnesses = (Witness("process", True, "rank 1 is stopped"),)
        decision = Decision(
            Action.RESTART, cause, attempt, "proof", 5, "the newest", None, finding, witnesses
        )
    return Incident(attempt, cause, finding, detected, decision, decided, acted, closed)


def told(*incidents: Incident, attempts: list[AttemptReport] | None = None) -> list[IncidentStory]:
    known = {each.number: each for each in attempts or [attempt(1, 1, 9, None)]}
    return list(tell(incidents, known, {}, {}, {}))


def attempt(number: int, first: int, last: int, resumed: int | None) -> AttemptReport:
    return AttemptReport(number, 0.0, None, first, last, resumed, 0, Cause.UNKNOWN, "")


def test_two_detectors_of_one_trouble_are_two_voices_of_one_incident() -> None:
    (one,) = told(incident(), incident(detector="rank_silent", detected=12.0))
    assert [voice.detector for voice in one.voices] == ["stalled", "rank_silent"]
    assert (one.detected_at, one.since_at, one.times) == (10.0, 5.0, 1)


def test_the_one_that_was_decided_on_leads() -> None:
    (one,) = told(incident(), incident(detector="rank_silent", detected=12.0, decided=13.0))
    assert one.voices[0].detector == "rank_silent"
    assert (one.action, one.resume_from, one.reason) == ("restart", 5, "proof")
    assert one.witnesses[0].text == "rank 1 is stopped"


def test_what_came_and_went_is_one_incident_with_a_count() -> None:
    (one,) = told(*(incident(detected=10.0 * n, closed=10.0 * n + 1) for n in range(1, 6)))
    assert (one.times, one.closed_at, one.action) == (5, 51.0, "none")


def test_a_hang_that_healed_is_not_the_one_that_was_acted_on_an_hour_later() -> None:
    healed, acted = told(
        incident(detected=10.0, closed=20.0),
        incident(detected=3600.0, decided=3601.0, acted=3602.0),
    )
    assert (healed.action, healed.closed_at) == ("none", 20.0)
    assert (acted.action, acted.detected_at) == ("restart", 3600.0)


def test_causes_and_attempts_are_kept_apart() -> None:
    found = told(incident(), incident(Cause.SLOW, "slow"), incident(attempt=2, detected=90.0))
    assert [(each.attempt, each.cause) for each in found] == [(1, "hang"), (1, "slow"), (2, "hang")]


def test_the_death_of_a_job_that_was_stopped_belongs_to_why_it_was_stopped() -> None:
    (one,) = told(
        incident(decided=11.0, acted=12.0), incident(Cause.KILLED, "crashed", detected=13.0)
    )
    assert (one.cause, [voice.detector for voice in one.voices]) == ("hang", ["stalled", "crashed"])


def test_what_was_there_before_the_decision_stays_an_incident_of_its_own() -> None:
    found = told(incident(Cause.SLOW, "slow", detected=3.0), incident(decided=11.0, acted=12.0))
    assert [each.cause for each in found] == ["slow", "hang"]


def test_the_cost_is_counted_from_the_checkpoint_that_was_really_loaded() -> None:
    attempts = [attempt(1, 1, 50, None), attempt(2, 31, 60, 30)]
    (one,) = told(incident(decided=11.0, acted=12.0), attempts=attempts)
    assert (one.resume_from, one.resumed_from, one.lost_steps) == (5, 30, 20)


def test_an_attempt_that_began_anew_has_lost_everything() -> None:
    attempts = [attempt(1, 1, 50, None), attempt(2, 1, 60, None)]
    (one,) = told(incident(decided=11.0, acted=12.0), attempts=attempts)
    assert (one.resumed_from, one.lost_steps) == (0, 50)


def test_the_last_attempt_tells_what_the_chosen_checkpoint_would_cost() -> None:
    (one,) = told(incident(decided=11.0), attempts=[attempt(1, 1, 50, None)])
    assert (one.resumed_from, one.lost_steps) == (None, 45)


def test_what_was_only_watched_has_cost_nothing() -> None:
    attempts = [attempt(1, 1, 50, None), attempt(2, 31, 60, 30)]
    (one,) = told(incident(closed=11.0), attempts=attempts)
    assert (one.resumed_from, one.lost_steps) == (None, None)


def test_the_culprit_is_told_by_whoever_knows_one() -> None:
    named = incident(detector="rank_silent", culprit=Culprit(3, CulpritState.SILENT, {"tp": 1}))
    (one,) = told(incident(decided=11.0), named)
    assert one.culprit == "rank 3 (tp 1): silent"


def test_culprits_in_words() -> None:
    whole = Culprit(0, CulpritState.NEVER_JOINED, {"tp": 0, "dp": 1}, "pod-1", "n7", "GPU-a", 79)
    assert who(whole) == (
        "rank 0 (tp 0, dp 1), pod pod-1, node n7, GPU GPU-a, Xid 79: never joined"
    )
    assert who(Culprit(state=CulpritState.ALL_EQUAL)) == "all equal"
    assert who(Culprit()) is who(None) is None


def test_a_line_of_megabytes_is_cut_and_scrubbed() -> None:
    secret = "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY "
    long = Evidence("a.log", 1, secret + "x" * 1_000_000)
    (one,) = told(incident(evidence=(long,) * 50))
    assert len(one.voices[0].evidence) == 8
    assert len(one.voices[0].evidence[0].text) <= 600
    assert "wJalrXUtnFEMI" not in one.voices[0].evidence[0].text
