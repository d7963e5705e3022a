# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Roll back from NaN at 600 to 400, crash at 450: the old 600 is never the newest again."""

from __future__ import annotations

from mwatch.decide.decide import decide, record_action
from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.job import Attempt, Job, KnownCheckpoint
from mwatch.model.settings import Settings
from mwatch.model.timeline import Rollback
from support.builders.decide import decided, died, finding, record, running
from support.builders.job import START, add_checkpoints


def rolled_back() -> tuple[Job, Rollback]:
    """The numbers went bad at 551; 500 and 600 were written before that was seen."""
    built = running(610)
    add_checkpoints(built, 200, 400, stored="complete")
    add_checkpoints(built, 600, stored="complete", written_at=START + 700.5)
    decision = decided(built, finding(Cause.NAN, since_iteration=551, since_time=START + 710))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 400)
    assert decision.act_at is not None
    assert decision.quarantine_from == 401
    return built, Rollback(decision.act_at, 400, 551, decision.reason)


def second_attempt(built: Job, back: Rollback, last: int) -> Job:
    """It has resumed from 400, as another job object would know it after a restart of mwatch."""
    later = died(last, number=2, started_at=back.at + 60, resumed_from=400, load="loaded")
    later.checkpoints = built.checkpoints
    later.timeline.rollbacks.append(back)
    return later


def test_the_abandoned_line_is_never_chosen_again() -> None:
    later = second_attempt(*rolled_back(), last=450)
    decision = decided(later, finding(Cause.CRASH))
    assert (decision.action, decision.resume_from) == (Action.RESTART, 400)
    assert decision.resume_reason == (
        "checkpoint 400: the newest complete one; 600 is of an abandoned line"
    )


def test_a_new_600_of_the_new_line_is() -> None:
    built, back = rolled_back()
    later = second_attempt(built, back, last=620)
    new = KnownCheckpoint(600, stored="complete", written_at=back.at + 900)
    later.checkpoints[600] = new
    assert decided(later, finding(Cause.CRASH)).resume_from == 600


def test_neither_is_it_the_target_of_a_second_rollback() -> None:
    later = second_attempt(*rolled_back(), last=900)
    decision = decided(later, finding(Cause.NAN, since_iteration=801))
    assert decision.resume_from == 400


def test_two_rollbacks_and_a_crash_with_one_record() -> None:
    built, back = rolled_back()
    done = record()
    nan = finding(Cause.NAN, since_iteration=551)
    record_action(done, decide(built, [nan], done, Settings()), built, at=back.at)
    later = second_attempt(built, back, last=450)
    crash = decide(later, [finding(Cause.CRASH)], done, Settings())
    assert (crash.action, crash.resume_from) == (Action.RESTART, 400)
    record_action(done, crash, later, at=later.now + 20)
    third = second_attempt(built, back, last=560)
    third.attempt.number = 3
    third.past.append(Attempt(2, START, iteration=450))
    again = decide(third, [nan], done, Settings())
    assert again.action is Action.STOP
    assert again.proposal is not None
    assert "--iterations-to-skip 551" in again.proposal
