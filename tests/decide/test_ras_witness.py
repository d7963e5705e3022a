# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Answers of NCCL RAS may confirm, contradict and name a rank, but never act alone."""

from __future__ import annotations

from mwatch.detect.stalled import DETECTOR
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import CulpritState
from mwatch.model.job import Job, SignSeen
from mwatch.model.observation import Source
from mwatch.parse.ras import read_answer
from mwatch.sources.nccl_ras import RasCounts
from support.builders.decide import decided, running
from support.builders.job import found
from support.fakes.ras_answers import Comm, Lost, as_json

WORLD = 8


def answer(count: int, **late: int) -> str:
    begun = dict.fromkeys(range(WORLD), count) | {int(rank[1:]): n for rank, n in late.items()}
    return as_json(Comm(0xA, begun))


def reports(built: Job, *texts: str) -> Job:
    """One answer every ten seconds, the last one now."""
    counts = RasCounts()
    for place, text in enumerate(texts, start=1 - len(texts)):
        for sign in counts.report(100.0 + 10.0 * place, read_answer(text), WORLD).signs:
            seen = SignSeen(built.now + 10.0 * place, "pod-0", sign)
            built.attempt.signs[sign.source, sign.rank, "pod-0"] = seen
    return built


def silent() -> Job:
    return running(silent=400, sights=(Source.LOG,))


def decision(built: Job) -> Decision:
    return decided(built, *found(DETECTOR, built))


def test_frozen_counts_are_the_second_witness_of_a_silent_job() -> None:
    built = reports(silent(), answer(8), *[answer(9)] * 3)
    made = decision(built)
    assert made.action is Action.RESTART
    assert "nccl_ras agrees" in made.reason


def test_counts_that_move_speak_against_it() -> None:
    built = reports(silent(), answer(8), answer(9), answer(10))
    made = decision(built)
    assert made.action is Action.NONE
    assert "nccl_ras" in made.reason


def test_counts_that_have_not_stood_for_long_say_nothing() -> None:
    built = reports(silent(), answer(8), answer(9), answer(9))
    assert decision(built).action is Action.NONE


def test_frozen_counts_of_a_job_with_progress_do_nothing() -> None:
    built = reports(running(silent=1.0, sights=(Source.LOG,)), answer(8), *[answer(9)] * 3)
    assert decided(built, *found(DETECTOR, built)).action is Action.NONE


def test_the_rank_that_is_behind_is_the_culprit() -> None:
    built = reports(silent(), answer(8), *[answer(10, r5=9)] * 3)
    (finding,) = found(DETECTOR, built)
    assert finding.culprit is not None
    assert (finding.culprit.rank, finding.culprit.state) == (5, CulpritState.BEHIND)


def test_a_dead_rank_is_the_culprit_and_cannot_heal_and_still_needs_a_witness() -> None:
    gone = as_json(Comm(0xA, dict.fromkeys(range(7), 9), [Lost(7, is_dead=True)]))
    built = reports(silent(), answer(8), gone, gone)
    (finding,) = found(DETECTOR, built)
    assert finding.culprit is not None
    assert finding.culprit.rank == 7
    assert finding.cannot_heal
    assert decided(built, finding).action is Action.NONE
    assert decision(reports(silent(), answer(8), *[gone] * 3)).action is Action.RESTART
