# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Before a start: which attempt this is, and what is run with which arguments and environment.

In observe nothing is changed, written beside the checkpoints or waited for; the plan says what
would have been changed. In act see `act_plan`.

The start of an attempt in act: who decides what it starts from.

In this order: the controller; `decision.json`; the wrapper of node 0, whose choice the others
read in `timeline.json`. Whoever decided, only node 0 writes beside the checkpoints. A wrapper
that cannot see what was chosen waits within a bound and exits for a restart; in a job of several
it never chooses alone. Where nobody ordered and nobody can be node 0 (an elastic range, a rank
that is not known), the command runs as it was given.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

from mwatch_trainer import contract
from mwatch_trainer.attempt import choice, order
from mwatch_trainer.attempt import fencing as claims
from mwatch_trainer.attempt.order import NODE_0, of_controller, of_decision, of_first_node
from mwatch_trainer.attempt.plan import (
    REAL_TIME,
    AttemptOptions,
    AttemptPlan,
    Preparation,
    StartRefused,
    WaitClock,
    started_before,
)
from mwatch_trainer.attempt.roles import follow, lead
from mwatch_trainer.checkpoint import save_dir
from mwatch_trainer.checkpoint.timeline import BrokenTimeline, with_rollbacks
from mwatch_trainer.command import environment
from mwatch_trainer.command.run_facts import RunFacts, look
from mwatch_trainer.reporting import GIVE_UP


def plan_attempt(
    run: RunFacts,
    environ: Mapping[str, str],
    options: AttemptOptions,
    last: Mapping[str, Any],
    clock: WaitClock,
) -> AttemptPlan:
    work = Preparation(run, environ, options, last, clock)
    try:
        return _plan(work, run)
    except StartRefused as refused:
        return work.answer(
            refused=str(refused),
            exit_code=refused.code,
            is_permanent=refused.code == GIVE_UP,
            resume_reason=str(refused),
        )


def _plan(work: Preparation, run: RunFacts) -> AttemptPlan:
    save, place = run.save, run.place
    if save is not None:
        work.read_timeline(save)
    reported = of_controller(work) or of_decision(work)
    if save is None:
        work.number = reported.number if reported is not None else work.number
        not_before = reported.not_before if reported is not None else None
        why = "no checkpoint folder is known: as it was given"
        return work.answer(resume_reason=why, not_before=not_before)
    if reported is None and (place.is_elastic or place.node_rank is None):
        work.number = max(work.number, work.top)
        why = "which of the job's pods this is cannot be known: as it was given"
        return work.answer(resume_reason=why)
    if place.is_first:
        return lead(work, reported, save)
    if reported is None:
        reported = of_first_node(work, save, place.node_rank or 0)
    if reported.by == NODE_0:
        work.read_timeline(save)
    return follow(work, reported, save)


def prepare(
    argv: Sequence[str],
    environ: Mapping[str, str],
    options: AttemptOptions,
    clock: WaitClock = REAL_TIME,
) -> AttemptPlan:
    """Never raises; what went wrong is in `refused`, or in `changes` where training goes on."""
    last = _read(options, contract.ATTEMPT)
    try:
        run = look(argv, environ, last)
        if options.mode == contract.ACT:
            plan = plan_attempt(run, environ, options, last, clock)
        else:
            plan = _observed(run, options, last)
    except Exception as error:  # a fault of ours must not keep anybody from training
        why = f"the start could not be prepared: {type(error).__name__}: {error}"
        plan = AttemptPlan(
            started_before(last) + 1, tuple(argv), {}, (why,), resume_reason="as it was given"
        )
    env, problems = environment.of_child(
        environ, options.directory, plan.number, options.with_probe, argv
    )
    return plan._replace(env=env, changes=(*plan.changes, *problems))


def _observed(run: RunFacts, options: AttemptOptions, last: Mapping[str, Any]) -> AttemptPlan:
    reported = order.parse(_read(options, contract.DECISION), contract.DECISION)
    before = started_before(last)
    number = reported.number if reported and reported.number > before else before + 1
    changes: list[str] = list(run.notes)
    resume_from = None
    reason = "observe: as it was given"
    if run.save is not None:
        try:
            start_of, resume_from, why = _would_be(run, reported, number)
            changes += [f"would have: {each}" for each in start_of.changes]
            if start_of.tracker is not None:
                changes.append(f"would have: set the tracker to {start_of.tracker}")
            reason = f"observe: as it was given ({why})"
        except (OSError, BrokenTimeline) as error:
            changes.append(f"{run.save} cannot be looked into: {error}")
    place = run.place
    return AttemptPlan(
        number,
        run.command,
        {},
        tuple(changes),
        resume_from,
        reason,
        run.save,
        node_rank=place.node_rank or 0,
        nnodes=place.nnodes,
    )


def _would_be(
    run: RunFacts, reported: order.Order | None, number: int
) -> tuple[choice.Start, int | None, str]:
    """What act would have started; and what the program itself will resume from."""
    save = run.save or ""
    timeline, _ = claims.current(save)
    if reported is not None:
        timeline = with_rollbacks(timeline, reported.rollbacks)
    view = save_dir.look(save, timeline)
    if reported is not None and reported.resume_from is not None:
        chosen = choice.by_order(reported.resume_from, view, reported.reason)
    else:
        chosen = choice.by_rule(number == 1, run.resumes_itself, view, timeline)
    seen = chosen.checkpoint
    iteration = seen.iteration if seen is not None else None
    newer = any(iteration is not None and each.iteration > iteration for each in view.candidates)
    begun = choice.of_choice(run, chosen.kind, seen, newer, run.by_step)
    own = save_dir.pointed(view)
    resume_from = own.iteration if own is not None and run.resumes_itself else None
    return begun, resume_from, chosen.refused or chosen.reason


def _read(options: AttemptOptions, name: str) -> Mapping[str, Any]:
    if options.directory is None:
        return {}
    return contract.read_json(os.path.join(options.directory, name)) or {}
