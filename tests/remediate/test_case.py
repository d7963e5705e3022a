# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What the next gang is told."""

from __future__ import annotations

from mwatch.model.decision import Action, Decision
from mwatch.model.finding import Cause
from mwatch.model.kube.ledger import JobEntry
from mwatch.model.timeline import Rollback
from mwatch.remediate.case import next_start
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
