# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Before a start: which attempt this is, and what is run with which arguments and environment.

In observe nothing is changed, written beside the checkpoints or waited for; the plan says what
would have been changed. In act see `act_plan`.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

from mwatch_trainer import act_plan, choice, contract, environment, order, save_folder, start
from mwatch_trainer import claim as claims
from mwatch_trainer.plan import REAL_TIME, Clock, Options, Plan
from mwatch_trainer.preparation import started_before
from mwatch_trainer.run_facts import Run, look
from mwatch_trainer.timeline import Broken, with_rollbacks

__all__ = ["REAL_TIME", "Clock", "Options", "Plan", "prepare"]


def prepare(
    argv: Sequence[str],
    environ: Mapping[str, str],
    options: Options,
    clock: Clock = REAL_TIME,
) -> Plan:
    """Never raises; what went wrong is in `refused`, or in `changes` where training goes on."""
    last = _read(options, contract.ATTEMPT)
    try:
        run = look(argv, environ, last)
        if options.mode == contract.ACT:
            plan = act_plan.plan(run, environ, options, last, clock)
        else:
            plan = _observed(run, options, last)
    except Exception as error:  # a fault of ours must not keep anybody from training
        why = f"the start could not be prepared: {type(error).__name__}: {error}"
        plan = Plan(
            started_before(last) + 1, tuple(argv), {}, (why,), resume_reason="as it was given"
        )
    env, problems = environment.of_child(
        environ, options.directory, plan.number, options.with_probe, argv
    )
    return plan._replace(env=env, changes=(*plan.changes, *problems))


def _observed(run: Run, options: Options, last: Mapping[str, Any]) -> Plan:
    told = order.parse(_read(options, contract.DECISION), contract.DECISION)
    before = started_before(last)
    number = told.number if told and told.number > before else before + 1
    changes: list[str] = list(run.notes)
    resume_from = None
    reason = "observe: as it was given"
    if run.save is not None:
        try:
            start_of, resume_from, why = _would_be(run, told, number)
            changes += [f"would have: {each}" for each in start_of.changes]
            if start_of.tracker is not None:
                changes.append(f"would have: made the tracker say {start_of.tracker}")
            reason = f"observe: as it was given ({why})"
        except (OSError, Broken) as error:
            changes.append(f"{run.save} cannot be looked into: {error}")
    place = run.place
    return Plan(
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
    run: Run, told: order.Order | None, number: int
) -> tuple[start.Start, int | None, str]:
    """What act would have started; and what the program itself will resume from."""
    save = run.save or ""
    timeline, _ = claims.current(save)
    if told is not None:
        timeline = with_rollbacks(timeline, told.rollbacks)
    view = save_folder.look(save, timeline)
    if told is not None and told.resume_from is not None:
        chosen = choice.by_order(told.resume_from, view, told.reason)
    else:
        chosen = choice.by_rule(number == 1, run.resumes_itself, view, timeline)
    seen = chosen.checkpoint
    iteration = seen.iteration if seen is not None else None
    newer = any(iteration is not None and each.iteration > iteration for each in view.candidates)
    begun = start.of_choice(run, chosen.kind, seen, newer, run.by_step)
    own = save_folder.pointed(view)
    resume_from = own.iteration if own is not None and run.resumes_itself else None
    return begun, resume_from, chosen.refused or chosen.reason


def _read(options: Options, name: str) -> Mapping[str, Any]:
    if options.directory is None:
        return {}
    return contract.read_json(os.path.join(options.directory, name)) or {}
