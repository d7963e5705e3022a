# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The newest word of each witness, and since when it says so."""

from __future__ import annotations

from mwatch.model.job import SignSeen
from mwatch.model.observation import Sign, SignSource, SignState
from support.builders.fold import START, Story


def says(story: Story, state: SignState) -> SignSeen:
    story.wait(5).sees(Sign(SignSource.PROCESS, state, 0, state.value))
    return story.job.attempt.signs[SignSource.PROCESS, 0, "pod-0"]


def test_the_same_report_again_is_newer_but_no_change() -> None:
    story = Story()
    says(story, SignState.STOPPED)
    seen = says(story, SignState.STOPPED)
    assert (seen.at, seen.since) == (START + 10, START + 5)


def test_another_word_counts_from_its_own_moment() -> None:
    story = Story()
    says(story, SignState.STOPPED)
    assert says(story, SignState.DEAD).since == START + 10


def test_who_no_longer_answers_does_not_take_back_a_death() -> None:
    story = Story()
    says(story, SignState.DEAD)
    assert says(story, SignState.UNKNOWN).sign.state is SignState.DEAD
    assert says(story, SignState.DEAD).since == START + 5
    says(story, SignState.MOVING)
    assert says(story, SignState.UNKNOWN).sign.state is SignState.UNKNOWN


def test_the_last_movement_is_remembered() -> None:
    story = Story()
    says(story, SignState.MOVING)
    says(story, SignState.FLAT)
    key = SignSource.PROCESS, 0, "pod-0"
    assert story.job.attempt.moved_at == {key: START + 5}


def test_a_run_waits_since_a_person_let_go_of_it_until_it_progresses() -> None:
    story = Story().trains(1, 2, 3)
    for state in (SignState.TRACED, SignState.TRACED, SignState.UNKNOWN, SignState.TRACED):
        story.wait(5).sees(Sign(SignSource.PROCESS, state, 0, state.value))
    assert story.job.attempt.waits_since == story.at - 5
    story.wait(5).sees(Sign(SignSource.PROCESS, SignState.UNKNOWN, 0, "alive"))
    assert story.job.attempt.waits_since == story.at
    story.trains(4)
    assert story.job.attempt.waits_since == story.job.attempt.last_progress


def test_the_cpu_time_of_a_command_no_longer_counts_once_its_ranks_are_measured() -> None:
    story = Story()
    story.sees(Sign(SignSource.PROCESS, SignState.SUSPENDED, None, "stopped"))
    story.sees(Sign(SignSource.CPU_TIME, SignState.MOVING, None, "busy"))
    story.wait(5).sees(Sign(SignSource.CPU_TIME, SignState.FLAT, 0, "at rest"))
    assert {key[:2] for key in story.job.attempt.signs} == {
        (SignSource.PROCESS, None),
        (SignSource.CPU_TIME, 0),
    }
