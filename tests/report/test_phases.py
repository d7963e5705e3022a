# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Phases are told without gaps inside an attempt, and in a bounded number."""

from __future__ import annotations

from itertools import pairwise

from mwatch.model.job import Attempt
from mwatch.model.phase import JobPhase
from mwatch.report.model import PhaseSpan
from mwatch.report.recorder import PhaseBand, fewer


def go(attempt: Attempt, phase: JobPhase, since: float) -> Attempt:
    attempt.phase, attempt.phase_since = phase, since
    return attempt


def test_phases_follow_each_other() -> None:
    band = PhaseBand()
    attempt = Attempt(1, 10.0)
    band.note(attempt, 10.0)
    band.note(go(attempt, JobPhase.TRAINING, 15.0), 16.0)
    band.note(go(attempt, JobPhase.SAVING, 20.0), 20.0)
    assert band.spans(25.0) == (
        PhaseSpan(1, "starting", 10.0, 15.0),
        PhaseSpan(1, "training", 15.0, 20.0),
        PhaseSpan(1, "saving", 20.0, 25.0),
    )


def test_nothing_is_reported_after_the_end_of_an_attempt() -> None:
    band = PhaseBand()
    attempt = Attempt(1, 0.0)
    band.note(attempt, 0.0)
    band.note(go(attempt, JobPhase.ENDED, 5.0), 5.0)
    band.note(Attempt(2, 8.0), 9.0)
    assert band.spans(10.0) == (
        PhaseSpan(1, "starting", 0.0, 5.0),
        PhaseSpan(2, "starting", 8.0, 10.0),
    )


def test_an_attempt_that_gets_its_number_late_is_identified_by_it() -> None:
    band = PhaseBand()
    attempt = Attempt(1, 0.0)
    band.note(attempt, 0.0)
    attempt.number = 7
    assert band.spans(1.0) == (PhaseSpan(7, "starting", 0.0, 1.0),)


def test_a_phase_that_is_known_late_never_goes_back_in_time() -> None:
    band = PhaseBand()
    attempt = Attempt(1, 10.0)
    band.note(attempt, 10.0)
    band.note(go(attempt, JobPhase.TRAINING, 12.0), 12.0)
    band.note(go(attempt, JobPhase.SAVING, 3.0), 14.0)
    assert all(each.began_at <= each.ended_at for each in band.spans(15.0))
    assert all(one.ended_at <= other.began_at for one, other in pairwise(band.spans(15.0)))


def test_thousands_of_saves_are_bounded_and_the_long_ones_stay() -> None:
    band = PhaseBand(most=64)
    attempt = go(Attempt(1, 0.0), JobPhase.TRAINING, 0.0)
    at = 0.0
    for number in range(5000):
        band.note(go(attempt, JobPhase.TRAINING, at), at)
        at += 100.0
        band.note(go(attempt, JobPhase.SAVING, at), at)
        at += 5000.0 if number == 2500 else 1.0
    spans = band.spans(at)
    assert len(spans) <= 65
    assert (spans[0].began_at, spans[-1].ended_at) == (0.0, at)
    assert any(each.phase == "saving" and each.ended_at - each.began_at >= 5000 for each in spans)


def test_of_too_many_attempts_the_newest_spans_stay() -> None:
    spans = [PhaseSpan(number, "starting", number, number + 0.5) for number in range(100)]
    assert fewer(spans, 10)[-1].attempt == 99
    assert len(fewer(spans, 10)) <= 20
