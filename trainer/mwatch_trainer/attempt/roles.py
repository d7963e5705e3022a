# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The wrapper of node 0: chooses the checkpoint, takes the number, and tells the others.

Nothing is written beside the checkpoints before the number is owned, but for the call that the
job's other wrappers answer. Where the volume cannot be written at all, a job of one node starts
without a token (its saves will fail by themselves), and a job of several does not start.

A wrapper that is not node 0: does what was agreed, and writes nothing beside the checkpoints.

It waits until its own machine sees what was chosen: a network file system may show it minutes
after node 0 has seen it.
"""

from __future__ import annotations

import os

from mwatch_trainer import contract
from mwatch_trainer.attempt import choice
from mwatch_trainer.attempt import fencing as claims
from mwatch_trainer.attempt.handshake import Caller
from mwatch_trainer.attempt.order import NODE_0, Order, to_claim
from mwatch_trainer.attempt.plan import AttemptPlan, Preparation, StartRefused
from mwatch_trainer.checkpoint import save_dir
from mwatch_trainer.checkpoint import timeline as timelines
from mwatch_trainer.checkpoint.listing import NON_PERSISTENT
from mwatch_trainer.checkpoint.save_dir import Candidate, SaveDirView
from mwatch_trainer.checkpoint.timeline import GOOD, TimelineAttempt, TimelineFile, TimelineRollback
from mwatch_trainer.checkpoint.verdict import CheckpointState
from mwatch_trainer.reporting import FENCED, GIVE_UP, NOT_AGREED

_SAME_MACHINE_SECONDS = 10.0


def lead(work: Preparation, reported: Order | None, save: str) -> AttemptPlan:
    return _Lead(work, reported, save).plan()


class _Lead:
    def __init__(self, work: Preparation, reported: Order | None, save: str) -> None:
        self.work = work
        self.order = reported
        self.save = save
        work.number = reported.number if reported is not None else max(work.number, work.top + 1)
        self.timeline = self._after(work.timeline, ())
        self.chosen, self.view = self._choose()
        self.begun = self._begin()

    def plan(self) -> AttemptPlan:
        work, seen = self.work, self.chosen.checkpoint
        work.changes += self.begun.changes
        agreed = self._agreed()
        self._take(agreed)
        self._set_tracker()
        self._clear_non_persistent()
        self._protect()
        return work.answer(
            argv=self.begun.argv,
            resume_from=seen.iteration if seen is not None and self.begun.is_chosen else None,
            resume_reason=self.chosen.reason,
            not_before=agreed.not_before,
            changes=tuple(work.changes),
        )

    def _after(self, timeline: TimelineFile, lying: tuple[save_dir.Candidate, ...]) -> TimelineFile:
        """The timeline with what was ordered."""
        reported = self.order
        if reported is None:
            return timeline
        rollbacks = [_marked(each, lying) for each in reported.rollbacks]
        timeline = timelines.with_rollbacks(timeline, rollbacks)
        if reported.quarantine is not None:
            timeline = timeline._replace(quarantine=reported.quarantine)
        return timeline

    def _choose(self) -> tuple[choice.StartChoice, SaveDirView]:
        reported, run = self.order, self.work.run
        try:
            view = save_dir.look(self.save, self.timeline)
        except OSError as error:
            raise StartRefused(f"{self.save} cannot be listed: {error}", NOT_AGREED) from None
        if reported is None or not reported.has_choice:
            is_first = self.work.number == 1
            chosen = choice.by_rule(is_first, run.resumes_itself, view, self.timeline)
            if chosen.refused is not None:
                raise StartRefused(chosen.refused, GIVE_UP)
            return chosen, view
        if reported.from_beginning:
            return choice.StartChoice(choice.BEGIN, reported.reason or "the run begins again"), view
        if reported.resume_from is None:
            seen = save_dir.pointed(view) if run.resumes_itself else None
            return choice.StartChoice(
                choice.AS_IS, reported.reason or "as it was given", seen
            ), view
        view = wait_for(self.work, reported, reported.resume_from, self.save, self.timeline)
        return choice.by_order(reported.resume_from, view, reported.reason), view

    def _begin(self) -> choice.Start:
        seen, run = self.chosen.checkpoint, self.work.run
        after = -1 if seen is None else seen.iteration
        has_newer = any(each.iteration > after for each in self.view.candidates)
        return choice.of_choice(run, self.chosen.kind, seen, has_newer, run.by_step)

    def _agreed(self) -> Order:
        seen = self.chosen.checkpoint
        resumed = seen if self.chosen.kind == choice.RESUME else None
        return Order(
            self.work.number,
            NODE_0,
            None if resumed is None else resumed.iteration,
            self.chosen.kind == choice.BEGIN,
            not_before=None if self.order is None else self.order.not_before,
            reason=self.chosen.reason,
            name=None if resumed is None else resumed.name,
            may_be_unverified=resumed is None or resumed.state is not CheckpointState.COMPLETE,
            by_step=self.work.run.by_step,
        )

    def _take(self, agreed: Order) -> None:
        """The number is owned after this."""
        work, seen = self.work, self.chosen.checkpoint
        resumed_from = seen.iteration if seen is not None and self.begun.is_chosen else None
        noted = TimelineAttempt(work.number, work.clock.wall(), resumed_from)
        try:
            call, received = self._gather()

            def text(timeline: TimelineFile) -> str:
                after = self._after(timeline, self.view.candidates)
                attempts = (*after.attempts, noted)
                after = after._replace(attempt=work.number, attempts=attempts)
                return timelines.to_text(after, to_claim(agreed, call, received))

            claims.take(self.save, work.number, work.top, text)
        except claims.Taken as error:
            raise StartRefused(f"this is not the newest attempt: {error}", FENCED) from None
        except timelines.BrokenTimeline as error:
            raise StartRefused(f"{timelines.path_of(self.save)} {error}", GIVE_UP) from None
        except OSError as error:
            why = f"{self.save} cannot be written: {error.strerror or error}"
            if work.run.place.nnodes > 1:
                raise StartRefused(why, NOT_AGREED) from None
            work.changes.append(f"{why}; started without a fencing token")

    def _gather(self) -> tuple[str | None, dict[str, str]]:
        """The words of the other nodes; not needed where each has its own order."""
        work = self.work
        nnodes = work.run.place.nnodes
        if nnodes <= 1 or self.order is not None:
            return None, {} if self.order is None else dict(self.order.received)
        _, top = claims.current(self.save)
        if top > work.top:
            raise claims.Taken(f"attempt {top} has begun since")
        caller = Caller(self.save, nnodes)
        caller.call()
        if not work.wait(lambda: not caller.missing()):
            missing = ", ".join(map(str, caller.missing()[:8]))
            bound = f"{work.options.wait_seconds:g} s"
            raise StartRefused(
                f"node {missing} of {nnodes} did not join within {bound}", NOT_AGREED
            )
        return caller.word, caller.received()

    def _set_tracker(self) -> None:
        wanted = self.begun.tracker
        try:
            if wanted == choice.NO_TRACKER:
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
        """Megatron prefers a non-persistent checkpoint that is not older than the chosen one."""
        seen, folder = self.chosen.checkpoint, os.path.join(self.save, NON_PERSISTENT)
        if self.chosen.kind == choice.AS_IS or self.work.run.is_composer:
            return
        try:
            own = save_dir.pointed(save_dir.look(folder, self.timeline))
            if own is None or (seen is not None and own.iteration < seen.iteration):
                return
            is_good = own.standing == GOOD and own.state is not CheckpointState.INCOMPLETE
            if is_good and self.chosen.kind == choice.RESUME:
                text = f"Megatron resumes from its newer non-persistent {own.name}, if enabled"
                self.work.changes.append(text)
                return
            done = save_dir.set_non_persistent_aside(self.save, self.work.number)
        except OSError as error:
            done = f"{folder} cannot be looked into: {error.strerror or error}"
        self.work.changes += [] if done is None else [done]

    def _protect(self) -> None:
        """The checkpoint of a rollback: nothing newer is good."""
        seen = self.chosen.checkpoint
        if self.chosen.kind != choice.RESUME or seen is None:
            return
        newer = [each for each in self.view.candidates if each.iteration > seen.iteration]
        if not any(each.standing != GOOD for each in newer):
            return
        problem = save_dir.protect(self.save, seen.name)
        done = f"protected {seen.name} in {timelines.FOLDER}/{save_dir.KEEP}"
        self.work.changes.append(problem or done)


def _marked(rollback: TimelineRollback, lying: tuple[save_dir.Candidate, ...]) -> TimelineRollback:
    """With what lies there now: its times come from this file system, not from a clock."""
    marks = set(rollback.marked)
    for each in lying:
        if each.iteration > rollback.to_iteration and each.written_at is not None:
            marks.add((each.iteration, each.written_at))
    return rollback._replace(marked=tuple(sorted(marks)))


def wait_for(
    work: Preparation, reported: Order, iteration: int, save: str, timeline: TimelineFile
) -> SaveDirView:
    """Until this machine sees that checkpoint whole, or as whole as can be told."""
    bound = work.options.wait_seconds
    if reported.by == contract.DECISION:  # whoever wrote it looks at the same file system
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


def follow(work: Preparation, reported: Order, save: str) -> AttemptPlan:
    work.number = reported.number
    if work.top > reported.number:
        why = f"attempt {work.top} has begun, and {reported.by} speaks of {reported.number}"
        raise StartRefused(why, FENCED)
    kind, seen, has_newer = _chosen(work, reported, save)
    by_step = work.run.by_step if reported.by_step is None else reported.by_step
    begun = choice.of_choice(work.run, kind, seen, has_newer, by_step)
    work.changes += begun.changes
    _wait_for_tracker(work, begun.tracker, save)
    return work.answer(
        argv=begun.argv,
        resume_from=seen.iteration if seen is not None and begun.is_chosen else None,
        resume_reason=f"{reported.by}: {reported.reason}" if reported.reason else reported.by,
        not_before=reported.not_before,
        changes=tuple(work.changes),
    )


def _chosen(work: Preparation, reported: Order, save: str) -> tuple[str, Candidate | None, bool]:
    timeline = timelines.with_rollbacks(work.timeline, reported.rollbacks)
    if reported.from_beginning:
        return choice.BEGIN, None, True
    if reported.resume_from is None:
        return choice.AS_IS, None, False
    if reported.name is not None:
        _wait_for_name(work, reported, save, reported.name)
    view = wait_for(work, reported, reported.resume_from, save, timeline)
    seen = save_dir.find(view, reported.resume_from)
    has_newer = any(each.iteration > reported.resume_from for each in view.candidates)
    return choice.RESUME, seen, has_newer


def _wait_for_name(work: Preparation, reported: Order, save: str, name: str) -> None:
    why = ["it was not checked"]

    def is_seen() -> bool:
        why[0] = save_dir.why_unlisted(save, name, reported.may_be_unverified) or ""
        return not why[0]

    if not work.wait(is_seen):
        bound = f"{work.options.wait_seconds:g} s"
        text = f"{name}, chosen by {reported.by}, is incomplete here after {bound}: {why[0]}"
        raise StartRefused(text, NOT_AGREED)


def _wait_for_tracker(work: Preparation, wanted: str | None, save: str) -> None:
    """Megatron takes the largest number that any of its nodes reads in the tracker."""
    if wanted is None:
        return
    reported = None if wanted == choice.NO_TRACKER else wanted
    if not work.wait(lambda: save_dir.named_by(save) == reported):
        bound = f"{work.options.wait_seconds:g} s"
        why = f"the tracker of {save} does not say {wanted} here within {bound}"
        raise StartRefused(why, NOT_AGREED)
