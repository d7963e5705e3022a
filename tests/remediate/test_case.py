# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When a restart is due, and what the next gang is told."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.kube.restart_state import RestartState
from mwatch.model.timeline import Rollback
from mwatch.remediate.case import (
    PREPARE_SECONDS,
    RestartCase,
    due,
    next_start,
    take_done,
    task_of,
)
from support.runs.job_monitor_runs import Fleet


def test_an_order_holds_the_rollbacks_of_its_own_decision_and_no_older_ones() -> None:
    fleet = Fleet().run(100)
    fleet.restart(2, resume_from=50)
    fleet.run(60)
    engine = fleet.watch.engine
    began = engine.job.attempt.started_at
    engine.job.timeline.roll_back(Rollback(began, 50, None, "attempt 2 resumed from 50"))
    back = Decision(
        Action.RESTART, Cause.NAN, 2, "the loss is gone", resume_from=80, quarantine_from=81
    )
    engine.record_action(back, fleet.now)
    told = next_start(fleet.watch, back, JobEntry())
    assert told.attempt == 3
    assert [each.to_iteration for each in told.rollbacks] == [80]


def test_a_pod_of_the_first_minutes_may_have_no_token_yet() -> None:
    fleet = Fleet().run(100)
    first, *_ = facts = fleet.watch.facts.pods
    young, old = (replace(first, created_at=fleet.now - age) for age in (60, 600))
    fleet.watch.pods[first.uid] = fleet.watch.pods[first.uid]._replace(address="10.0.0.1")
    decision = Decision(Action.RESTART, Cause.HANG, 1, "it hangs")
    made = []
    for pod in (young, old):
        fleet.watch.facts = replace(fleet.watch.facts, pods=(pod, *facts[1:]))
        task = task_of(
            fleet.watch, decision, "id", is_asked=False, token="t", in_place=True,
            waiting=frozenset(),
        )  # fmt: skip
        made.append(next(each for each in task.pods if each.uid == first.uid))
    assert [each.is_new for each in made] == [True, False]


def test_evidence_is_saved_early_and_used_when_the_restart_is_due() -> None:
    """Nothing is carried out before that, and what heals meanwhile is withdrawn."""
    fleet = Fleet().run(100)
    job, now = fleet.watch, fleet.now
    assert job.assessment is not None
    act_at = now + PREPARE_SECONDS - 1.0
    decision = Decision(Action.RESTART, Cause.HANG, 1, "it hangs", act_at=act_at)
    job.assessment = job.assessment._replace(decision=decision)
    assert due(job, now - 2.0, PREPARE_SECONDS) is None
    assert due(job, now, PREPARE_SECONDS) is decision
    assert due(job, now) is None
    case = RestartCase(job.key, job.kube.uid, "id", decision, now, now - 100.0)
    case.state = RestartState.PREPARING
    ready: Future[Any] = Future()
    ready.set_result("ready")
    case.future = ready
    assert take_done(case, job, now) is None
    assert case.future is ready
    assert take_done(case, job, act_at) is ready
    case.future = ready
    job.assessment = job.assessment._replace(decision=replace(decision, action=Action.NONE))
    assert take_done(case, job, now) is ready, "no longer wanted: the case ends"
