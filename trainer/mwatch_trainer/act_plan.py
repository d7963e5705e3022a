# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The start of an attempt in act: who decides what it starts from.

In this order: the controller; `decision.json`; the wrapper of node 0, whose choice the others
read in `timeline.json`. Whoever decided, only node 0 writes beside the checkpoints. A wrapper
that cannot see what was chosen waits within a bound and exits for a restart; in a job of several
it never chooses alone. Where nobody ordered and nobody can be node 0 (an elastic range, a rank
that is not known), the command runs as it was given.
"""

from __future__ import annotations

from typing import Any, Mapping

from mwatch_trainer.exit_table import GIVE_UP
from mwatch_trainer.follow import follow
from mwatch_trainer.lead import lead
from mwatch_trainer.order import NODE_0
from mwatch_trainer.orders import of_controller, of_decision, of_first_node
from mwatch_trainer.plan import Clock, Options, Plan
from mwatch_trainer.preparation import Preparation, Refused
from mwatch_trainer.run_facts import Run


def plan(
    run: Run, environ: Mapping[str, str], options: Options, last: Mapping[str, Any], clock: Clock
) -> Plan:
    work = Preparation(run, environ, options, last, clock)
    try:
        return _plan(work, run)
    except Refused as refused:
        return work.answer(
            refused=str(refused),
            exit_code=refused.code,
            is_permanent=refused.code == GIVE_UP,
            resume_reason=str(refused),
        )


def _plan(work: Preparation, run: Run) -> Plan:
    save, place = run.save, run.place
    if save is not None:
        work.read_timeline(save)
    told = of_controller(work) or of_decision(work)
    if save is None:
        work.number = told.number if told is not None else work.number
        not_before = told.not_before if told is not None else None
        why = "no checkpoint folder is known: as it was given"
        return work.answer(resume_reason=why, not_before=not_before)
    if told is None and (place.is_elastic or place.node_rank is None):
        work.number = max(work.number, work.top)
        why = "which of the job's pods this is cannot be known: as it was given"
        return work.answer(resume_reason=why)
    if place.is_first:
        return lead(work, told, save)
    if told is None:
        told = of_first_node(work, save, place.node_rank or 0)
    if told.by == NODE_0:
        work.read_timeline(save)
    return follow(work, told, save)
