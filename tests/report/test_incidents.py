# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""An incident in the story of a run: who found it, what was done, and what it cost."""

from __future__ import annotations

from typing import Any

from mwatch.engine.incidents import Incident, Symptom
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision, Witness
from mwatch.model.finding import Culprit, CulpritState, Evidence, Finding, Severity
from mwatch.report.model import AttemptReport, IncidentStory, culprit_text, incident_stories


def symptom(
    detector: str = "stalled",
    cause: Cause = Cause.HANG,
    detected: float = 10.0,
    closed: float | None = None,
    times: int = 1,
    **more: Any,
) -> Symptom:
    usual: dict[str, Any] = {"since_time": detected - 5, "since_iteration": 7}
    finding = Finding(detector, cause, Severity.CRITICAL, f"{detector} says so", **(usual | more))
    return Symptom(finding, detected, detected, closed, times)


def incident(
    *symptoms: Symptom, decided: float | None = None, acted: float | None = None
) -> Incident:
    """The decision rests on the last symptom."""
    found = list(symptoms) or [symptom()]
    first = found[0]
    made = Incident(1, "id", 1, first.detected_at, found, fault_at=first.finding.since_time)
    if decided is not None:
        finding = found[-1].finding
        made.decision = Decision(
            Action.RESTART, finding.cause, 1, "proof", 5, "the newest", None, finding,
            (Witness("process", True, "rank 1 is stopped"),),
        )  # fmt: skip
    made.decided_at, made.acted_at = decided, acted
    return made


def told(*incidents: Incident, attempts: list[AttemptReport] | None = None) -> list[IncidentStory]:
    known = {each.number: each for each in attempts or [attempt(1, 1, 9, None)]}
    return list(incident_stories(incidents, known, {}, {}))


def attempt(number: int, first: int, last: int, resumed: int | None) -> AttemptReport:
    return AttemptReport(number, 0.0, None, first, last, resumed, 0, Cause.UNKNOWN, "")


def test_two_detectors_of_one_incident_are_two_voices() -> None:
    (one,) = told(incident(symptom(), symptom("rank_silent", detected=12.0)))
    assert [voice.detector for voice in one.voices] == ["stalled", "rank_silent"]
    assert (one.id, one.detected_at, one.since_at, one.times) == ("id", 10.0, 5.0, 1)


def test_the_one_that_was_decided_on_leads() -> None:
    (one,) = told(incident(symptom(), symptom("rank_silent", detected=12.0), decided=13.0))
    assert [voice.detector for voice in one.voices] == ["rank_silent", "stalled"]
    assert (one.action, one.resume_from, one.reason) == ("restart", 5, "proof")
    assert one.witnesses[0].text == "rank 1 is stopped"


def test_what_came_and_went_has_a_count() -> None:
    (one,) = told(incident(symptom(closed=51.0, times=5)))
    assert (one.times, one.closed_at, one.action) == (5, 51.0, "none")


def test_the_cost_is_counted_from_the_checkpoint_that_was_really_loaded() -> None:
    attempts = [attempt(1, 1, 50, None), attempt(2, 31, 60, 30)]
    (one,) = told(incident(decided=11.0, acted=12.0), attempts=attempts)
    assert (one.resume_from, one.resumed_from, one.lost_steps) == (5, 30, 20)


def test_an_attempt_that_began_anew_has_lost_everything() -> None:
    attempts = [attempt(1, 1, 50, None), attempt(2, 1, 60, None)]
    (one,) = told(incident(decided=11.0, acted=12.0), attempts=attempts)
    assert (one.resumed_from, one.lost_steps) == (0, 50)


def test_the_last_attempt_shows_what_the_chosen_checkpoint_would_cost() -> None:
    (one,) = told(incident(decided=11.0), attempts=[attempt(1, 1, 50, None)])
    assert (one.resumed_from, one.lost_steps) == (None, 45)


def test_what_was_only_watched_has_cost_nothing() -> None:
    attempts = [attempt(1, 1, 50, None), attempt(2, 31, 60, 30)]
    (one,) = told(incident(symptom(closed=11.0)), attempts=attempts)
    assert (one.resumed_from, one.lost_steps) == (None, None)


def test_the_culprit_is_identified_by_whoever_knows_one() -> None:
    named = symptom("rank_silent", culprit=Culprit(3, CulpritState.SILENT, {"tp": 1}))
    (one,) = told(incident(named, symptom(), decided=11.0))
    assert one.culprit == "rank 3 (tp 1): silent"


def test_culprits_in_words() -> None:
    whole = Culprit(0, CulpritState.NEVER_JOINED, {"tp": 0, "dp": 1}, "pod-1", "n7", "GPU-a", 79)
    assert culprit_text(whole) == (
        "rank 0 (tp 0, dp 1), pod pod-1, node n7, GPU GPU-a, Xid 79: never joined"
    )
    assert culprit_text(Culprit(state=CulpritState.ALL_EQUAL)) == "all equal"
    assert culprit_text(Culprit()) is culprit_text(None) is None


def test_a_line_of_megabytes_is_cut_and_scrubbed() -> None:
    secret = "AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY "
    long = Evidence("a.log", 1, secret + "x" * 1_000_000)
    (one,) = told(incident(symptom(evidence=(long,) * 50)))
    assert len(one.voices[0].evidence) == 8
    assert len(one.voices[0].evidence[0].text) <= 600
    assert "wJalrXUtnFEMI" not in one.voices[0].evidence[0].text
