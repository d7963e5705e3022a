# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Prepares a start: the attempt number, and which command runs with which environment.

In observe mode nothing is changed, written beside the checkpoints or waited for; the plan records
what act mode would have changed.

In act mode the decision comes from the controller, else from `decision.json`, else from node 0,
whose choice the other nodes read in `timeline.json`. Only node 0 writes beside the checkpoints, and
except for the call that the other nodes answer, only after it owns the attempt number. A wrapper
that does not see the chosen checkpoint within a time limit exits for a restart; in a job of several
nodes it never chooses on its own. Without an order and a node 0 (an elastic range, an unknown rank)
the command runs as given.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, Sequence

from mwatch_trainer import contract
from mwatch_trainer.attempt import fencing
from mwatch_trainer.attempt import order as orders
from mwatch_trainer.attempt import plan as plans
from mwatch_trainer.attempt.order import NODE_0, Order
from mwatch_trainer.attempt.plan import (
    REAL_TIME,
    AttemptOptions,
    AttemptPlan,
    Preparation,
    StartRefused,
    WaitClock,
    started_before,
)
from mwatch_trainer.checkpoint import save_dir
from mwatch_trainer.checkpoint import timeline as timelines
from mwatch_trainer.checkpoint.files import CheckpointState
from mwatch_trainer.checkpoint.listing import NON_PERSISTENT
from mwatch_trainer.checkpoint.save_dir import Candidate, SaveDirView
from mwatch_trainer.checkpoint.timeline import GOOD, TimelineAttempt, TimelineFile, TimelineRollback
from mwatch_trainer.command.run_facts import RunFacts, child_environment, look
from mwatch_trainer.reporting import FENCED, GIVE_UP, NOT_AGREED

_SAME_MACHINE_SECONDS = 10.0


def prepare(
    argv: Sequence[str],
    environ: Mapping[str, str],
    options: AttemptOptions,
    clock: WaitClock = REAL_TIME,
) -> AttemptPlan:
    """Plan the start. Never raises: an error is in `refused`, or in `changes` if training starts
    anyway."""
    last = _read(options, contract.ATTEMPT)
    try:
        run = look(argv, environ, last)
        if options.mode == contract.ACT:
            plan = plan_attempt(run, environ, options, last, clock)
        else:
            plan = _observed(run, options, last)
    except Exception as error:  # a bug in mwatch must not prevent training
        why = f"the start could not be prepared: {type(error).__name__}: {error}"
        plan = AttemptPlan(
            started_before(last) + 1, tuple(argv), {}, (why,), resume_reason="as given"
        )
    env, problems = child_environment(
        environ, options.directory, plan.number, options.with_probe, argv
    )
    return plan._replace(env=env, changes=(*plan.changes, *problems))


def _observed(run: RunFacts, options: AttemptOptions, last: Mapping[str, Any]) -> AttemptPlan:
    order = orders.parse(_read(options, contract.DECISION), contract.DECISION)
    before = started_before(last)
    number = order.number if order and order.number > before else before + 1
    changes: list[str] = list(run.notes)
    resume_from = None
    reason = "observe: as given"
    if run.save is not None:
        try:
            start, resume_from, why = _would_be(run, order, number)
            changes += [f"would have: {each}" for each in start.changes]
            if start.tracker is not None:
                changes.append(f"would have: set the tracker to {start.tracker}")
            reason = f"observe: as given ({why})"
        except (OSError, timelines.BrokenTimeline) as error:
            changes.append(f"{run.save} cannot be read: {error}")
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
    run: RunFacts, order: Order | None, number: int
) -> tuple[plans.Start, int | None, str]:
    """Return what act mode would have started, the iteration from which the program resumes by
    itself, and the reason."""
    save = run.save or ""
    timeline, _ = fencing.current(save)
    if order is not None:
        timeline = timelines.with_rollbacks(timeline, order.rollbacks)
    view = save_dir.look(save, timeline)
    if order is not None and order.resume_from is not None:
        chosen = plans.by_order(order.resume_from, view, order.reason)
    else:
        chosen = plans.by_rule(number == 1, run.resumes_itself, view, timeline)
    seen = chosen.checkpoint
    iteration = seen.iteration if seen is not None else None
    newer = any(iteration is not None and each.iteration > iteration for each in view.candidates)
    start = plans.start_for(run, chosen.kind, seen, newer, run.by_step)
    own = save_dir.pointed(view)
    resume_from = own.iteration if own is not None and run.resumes_itself else None
    return start, resume_from, chosen.refused or chosen.reason


def _read(options: AttemptOptions, name: str) -> Mapping[str, Any]:
    if options.directory is None:
        return {}
    return contract.read_json(os.path.join(options.directory, name)) or {}


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
    order = orders.of_controller(work) or orders.of_decision(work)
    if save is None:
        work.number = order.number if order is not None else work.number
        not_before = order.not_before if order is not None else None
        why = "no checkpoint folder is known: as given"
        return work.answer(resume_reason=why, not_before=not_before)
    if order is None and (place.is_elastic or place.node_rank is None):
        work.number = max(work.number, work.highest)
        why = "it is unknown whether this is node 0: as given"
        return work.answer(resume_reason=why)
    if place.is_first:
        return _FirstNode(work, order, save).plan()
    if order is None:
        order = orders.of_first_node(work, save, place.node_rank or 0)
    if order.by == NODE_0:
        work.read_timeline(save)
    return _follow(work, order, save)


class _FirstNode:
    """The start of node 0: it chooses the checkpoint, takes the number, and announces both."""

    def __init__(self, work: Preparation, order: Order | None, save: str) -> None:
        self.work = work
        self.order = order
        self.save = save
        work.number = order.number if order is not None else max(work.number, work.highest + 1)
        self.timeline = self._after(work.timeline, ())
        self.chosen, self.view = self._choose()
        self.start = self._start()

    def plan(self) -> AttemptPlan:
        work, seen = self.work, self.chosen.checkpoint
        work.changes += self.start.changes
        agreed = self._agreed()
        self._claim(agreed)
        self._set_tracker()
        self._clear_non_persistent()
        self._protect()
        return work.answer(
            argv=self.start.argv,
            resume_from=seen.iteration if seen is not None and self.start.is_chosen else None,
            resume_reason=self.chosen.reason,
            not_before=agreed.not_before,
            changes=tuple(work.changes),
        )

    def _after(self, timeline: TimelineFile, present: tuple[Candidate, ...]) -> TimelineFile:
        order = self.order
        if order is None:
            return timeline
        rollbacks = [_marked(each, present) for each in order.rollbacks]
        timeline = timelines.with_rollbacks(timeline, rollbacks)
        if order.quarantine is not None:
            timeline = timeline._replace(quarantine=order.quarantine)
        return timeline

    def _choose(self) -> tuple[plans.StartChoice, SaveDirView]:
        order, run = self.order, self.work.run
        try:
            view = save_dir.look(self.save, self.timeline)
        except OSError as error:
            raise StartRefused(f"{self.save} cannot be listed: {error}", NOT_AGREED) from None
        if order is None or not order.has_choice:
            is_first = self.work.number == 1
            chosen = plans.by_rule(is_first, run.resumes_itself, view, self.timeline)
            if chosen.refused is not None:
                raise StartRefused(chosen.refused, GIVE_UP)
            return chosen, view
        if order.from_beginning:
            return plans.StartChoice(plans.BEGIN, order.reason or "the run starts over"), view
        if order.resume_from is None:
            seen = save_dir.pointed(view) if run.resumes_itself else None
            return plans.StartChoice(plans.AS_IS, order.reason or "as given", seen), view
        view = _wait_for(self.work, order, order.resume_from, self.save, self.timeline)
        return plans.by_order(order.resume_from, view, order.reason), view

    def _start(self) -> plans.Start:
        seen, run = self.chosen.checkpoint, self.work.run
        after = -1 if seen is None else seen.iteration
        has_newer = any(each.iteration > after for each in self.view.candidates)
        return plans.start_for(run, self.chosen.kind, seen, has_newer, run.by_step)

    def _agreed(self) -> Order:
        seen = self.chosen.checkpoint
        resumed = seen if self.chosen.kind == plans.RESUME else None
        return Order(
            self.work.number,
            NODE_0,
            None if resumed is None else resumed.iteration,
            self.chosen.kind == plans.BEGIN,
            not_before=None if self.order is None else self.order.not_before,
            reason=self.chosen.reason,
            name=None if resumed is None else resumed.name,
            may_be_unverified=resumed is None or resumed.state is not CheckpointState.COMPLETE,
            by_step=self.work.run.by_step,
        )

    def _claim(self, agreed: Order) -> None:
        work, seen = self.work, self.chosen.checkpoint
        resumed_from = seen.iteration if seen is not None and self.start.is_chosen else None
        noted = TimelineAttempt(work.number, work.clock.wall(), resumed_from)
        try:
            call, received = self._gather()

            def text(timeline: TimelineFile) -> str:
                after = self._after(timeline, self.view.candidates)
                attempts = (*after.attempts, noted)
                after = after._replace(attempt=work.number, attempts=attempts)
                return timelines.to_text(after, orders.to_claim(agreed, call, received))

            fencing.claim(self.save, work.number, work.highest, text)
        except fencing.NumberTaken as error:
            raise StartRefused(f"this is not the newest attempt: {error}", FENCED) from None
        except timelines.BrokenTimeline as error:
            raise StartRefused(f"{timelines.path_of(self.save)} {error}", GIVE_UP) from None
        except OSError as error:
            why = f"{self.save} cannot be written: {error.strerror or error}"
            if work.run.place.nnodes > 1:
                raise StartRefused(why, NOT_AGREED) from None
            work.changes.append(f"{why}; started without a fencing token")

    def _gather(self) -> tuple[str | None, dict[str, str]]:
        work = self.work
        nnodes = work.run.place.nnodes
        if nnodes <= 1 or self.order is not None:
            return None, {} if self.order is None else dict(self.order.received)
        _, top = fencing.current(self.save)
        if top > work.highest:
            raise fencing.NumberTaken(f"attempt {top} has started since")
        caller = fencing.FirstNode(self.save, nnodes)
        caller.call()
        if not work.wait(lambda: not caller.missing()):
            missing = ", ".join(map(str, caller.missing()[:8]))
            bound = f"{work.options.wait_seconds:g} s"
            raise StartRefused(
                f"node {missing} of {nnodes} did not join within {bound}", NOT_AGREED
            )
        return caller.nonce, caller.received()

    def _set_tracker(self) -> None:
        wanted = self.start.tracker
        try:
            if wanted == plans.NO_TRACKER:
                done = save_dir.set_aside(self.save, self.work.number)
            elif wanted is not None:
                done = save_dir.point_at(self.save, int(wanted), self.work.number)
            else:
                done = None
        except OSError as error:
            why = f"the tracker of {self.save} cannot be changed: {error.strerror or error}"
            raise StartRefused(why, NOT_AGREED) from None
        self.work.changes += [] if done is None else [done]

    def _clear_non_persistent(self) -> None:
        """Move newer non-persistent checkpoints aside, because Megatron prefers them."""
        seen, folder = self.chosen.checkpoint, os.path.join(self.save, NON_PERSISTENT)
        if self.chosen.kind == plans.AS_IS or self.work.run.is_composer:
            return
        try:
            own = save_dir.pointed(save_dir.look(folder, self.timeline))
            if own is None or (seen is not None and own.iteration < seen.iteration):
                return
            is_good = own.standing == GOOD and own.state is not CheckpointState.INCOMPLETE
            if is_good and self.chosen.kind == plans.RESUME:
                text = f"Megatron resumes from its newer non-persistent {own.name}, if enabled"
                self.work.changes.append(text)
                return
            done = save_dir.set_non_persistent_aside(self.save, self.work.number)
        except OSError as error:
            done = f"{folder} cannot be read: {error.strerror or error}"
        self.work.changes += [] if done is None else [done]

    def _protect(self) -> None:
        """Protect the checkpoint that a rollback resumes from: no newer one is good."""
        seen = self.chosen.checkpoint
        if self.chosen.kind != plans.RESUME or seen is None:
            return
        newer = [each for each in self.view.candidates if each.iteration > seen.iteration]
        if not any(each.standing != GOOD for each in newer):
            return
        problem = save_dir.protect(self.save, seen.name)
        done = f"protected {seen.name} in {timelines.FOLDER}/{save_dir.KEEP}"
        self.work.changes.append(problem or done)


def _marked(rollback: TimelineRollback, present: tuple[Candidate, ...]) -> TimelineRollback:
    """Add the checkpoints present now; their times come from the file system, not from a clock."""
    marks = set(rollback.marked)
    for each in present:
        if each.iteration > rollback.to_iteration and each.written_at is not None:
            marks.add((each.iteration, each.written_at))
    return rollback._replace(marked=tuple(sorted(marks)))


def _wait_for(
    work: Preparation, order: Order, iteration: int, save: str, timeline: TimelineFile
) -> SaveDirView:
    """Wait until this machine sees the checkpoint and no longer considers it incomplete."""
    bound = work.options.wait_seconds
    if order.by == contract.DECISION:  # written on this machine, which sees the same file system
        bound = min(bound, _SAME_MACHINE_SECONDS)
    views: list[SaveDirView] = []

    def is_seen() -> bool:
        views.append(save_dir.look_for(save, timeline, iteration))
        seen = save_dir.find(views[-1], iteration)
        return seen is not None and seen.state is not CheckpointState.INCOMPLETE

    if not work.wait(is_seen, bound):
        why = f"checkpoint {iteration} of {save} is not complete on this node within {bound:g} s"
        raise StartRefused(why, NOT_AGREED)
    return views[-1]


def _follow(work: Preparation, order: Order, save: str) -> AttemptPlan:
    """Plan the start of a node other than 0: as ordered, writing nothing beside the checkpoints."""
    work.number = order.number
    if work.highest > order.number:
        why = f"attempt {work.highest} has started, and {order.by} names {order.number}"
        raise StartRefused(why, FENCED)
    kind, seen, has_newer = _chosen(work, order, save)
    by_step = work.run.by_step if order.by_step is None else order.by_step
    start = plans.start_for(work.run, kind, seen, has_newer, by_step)
    work.changes += start.changes
    _wait_for_tracker(work, start.tracker, save)
    return work.answer(
        argv=start.argv,
        resume_from=seen.iteration if seen is not None and start.is_chosen else None,
        resume_reason=f"{order.by}: {order.reason}" if order.reason else order.by,
        not_before=order.not_before,
        changes=tuple(work.changes),
    )


def _chosen(work: Preparation, order: Order, save: str) -> tuple[str, Candidate | None, bool]:
    timeline = timelines.with_rollbacks(work.timeline, order.rollbacks)
    if order.from_beginning:
        return plans.BEGIN, None, True
    if order.resume_from is None:
        return plans.AS_IS, None, False
    if order.name is not None:
        _wait_for_name(work, order, save, order.name)
    view = _wait_for(work, order, order.resume_from, save, timeline)
    seen = save_dir.find(view, order.resume_from)
    has_newer = any(each.iteration > order.resume_from for each in view.candidates)
    return plans.RESUME, seen, has_newer


def _wait_for_name(work: Preparation, order: Order, save: str, name: str) -> None:
    why = ["it was not checked"]

    def is_seen() -> bool:
        why[0] = save_dir.why_unlisted(save, name, order.may_be_unverified) or ""
        return not why[0]

    if not work.wait(is_seen):
        bound = f"{work.options.wait_seconds:g} s"
        text = f"{name}, chosen by {order.by}, is incomplete here after {bound}: {why[0]}"
        raise StartRefused(text, NOT_AGREED)


def _wait_for_tracker(work: Preparation, wanted: str | None, save: str) -> None:
    """Wait until this node sees the tracker: Megatron uses the largest number any node reads."""
    if wanted is None:
        return
    expected = None if wanted == plans.NO_TRACKER else wanted
    if not work.wait(lambda: save_dir.tracker_value(save) == expected):
        bound = f"{work.options.wait_seconds:g} s"
        why = f"the tracker of {save} is not {wanted} here within {bound}"
        raise StartRefused(why, NOT_AGREED)
