# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""A wrapper that is not node 0: does what was agreed, and writes nothing beside the checkpoints.

It waits until its own machine sees what was chosen: a network file system may show it minutes
after node 0 has seen it.
"""

from __future__ import annotations

from mwatch_trainer import choice, save_folder, start, tracker
from mwatch_trainer import timeline as timelines
from mwatch_trainer.exit_table import FENCED, NOT_AGREED
from mwatch_trainer.lead import wait_for
from mwatch_trainer.order import Order
from mwatch_trainer.plan import Plan
from mwatch_trainer.preparation import Preparation, Refused
from mwatch_trainer.save_folder import Candidate


def follow(work: Preparation, told: Order, save: str) -> Plan:
    work.number = told.number
    if work.top > told.number:
        why = f"attempt {work.top} has begun, and {told.by} speaks of {told.number}"
        raise Refused(why, FENCED)
    kind, seen, has_newer = _chosen(work, told, save)
    by_step = work.run.by_step if told.by_step is None else told.by_step
    begun = start.of_choice(work.run, kind, seen, has_newer, by_step)
    work.changes += begun.changes
    _wait_for_tracker(work, begun.tracker, save)
    return work.answer(
        argv=begun.argv,
        resume_from=seen.iteration if seen is not None and begun.is_chosen else None,
        resume_reason=f"{told.by}: {told.reason}" if told.reason else told.by,
        not_before=told.not_before,
        changes=tuple(work.changes),
    )


def _chosen(work: Preparation, told: Order, save: str) -> tuple[str, Candidate | None, bool]:
    timeline = timelines.with_rollbacks(work.timeline, told.rollbacks)
    if told.from_beginning:
        return choice.BEGIN, None, True
    if told.resume_from is None:
        return choice.AS_IS, None, False
    if told.name is not None:
        _wait_for_name(work, told, save, told.name)
    view = wait_for(work, told, told.resume_from, save, timeline)
    seen = save_folder.find(view, told.resume_from)
    has_newer = any(each.iteration > told.resume_from for each in view.candidates)
    return choice.RESUME, seen, has_newer


def _wait_for_name(work: Preparation, told: Order, save: str, name: str) -> None:
    why = ["it was not looked at"]

    def is_seen() -> bool:
        why[0] = save_folder.why_unseen(save, name, told.may_be_unverified) or ""
        return not why[0]

    if not work.wait(is_seen):
        bound = f"{work.options.wait_seconds:g} s"
        text = f"{name}, chosen by {told.by}, is not seen whole here within {bound}: {why[0]}"
        raise Refused(text, NOT_AGREED)


def _wait_for_tracker(work: Preparation, wanted: str | None, save: str) -> None:
    """Megatron takes the largest number that any of its nodes reads in the tracker."""
    if wanted is None:
        return
    told = None if wanted == start.NO_TRACKER else wanted
    if not work.wait(lambda: tracker.said_by(save) == told):
        bound = f"{work.options.wait_seconds:g} s"
        why = f"the tracker of {save} does not say {wanted} here within {bound}"
        raise Refused(why, NOT_AGREED)
