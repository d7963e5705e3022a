# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What an attempt starts from: by order, or by the rule that holds without one.

A first attempt runs as its user wrote it, unless it would resume by itself from a checkpoint that
is not whole or not good. Later attempts resume from the newest good checkpoint of the timeline.
Where checkpoints were written and none is whole, nothing is started: a run that begins again
would write over what a person may still save.
"""

from __future__ import annotations

from typing import NamedTuple

from mwatch_trainer.checkpoint import State
from mwatch_trainer.save_folder import Candidate, View, find, newest, pointed
from mwatch_trainer.timeline import ABANDONED, GOOD, Timeline

AS_IS = "as is"
RESUME = "resume"
BEGIN = "begin"


class Choice(NamedTuple):
    kind: str
    reason: str
    checkpoint: Candidate | None = None
    """With AS_IS: what the program will find by itself."""
    refused: str | None = None


def by_rule(is_first: bool, resumes_itself: bool, view: View, timeline: Timeline) -> Choice:
    if is_first and not resumes_itself:
        return Choice(AS_IS, "the first attempt runs as it was given")
    if is_first:
        seen = pointed(view)
        if seen is not None and seen.state is not State.INCOMPLETE and seen.standing == GOOD:
            return Choice(AS_IS, "the program's own pointer leads to a good checkpoint", seen)
    chosen = newest(view)
    if chosen is not None:
        return Choice(RESUME, _praise(chosen, view), chosen)
    return _nothing_good(view, timeline)


def by_order(resume_from: int, view: View, reason: str) -> Choice:
    """The checkpoint may not be seen here yet: then the choice holds no candidate."""
    return Choice(RESUME, reason or f"iteration {resume_from} was ordered", find(view, resume_from))


def _praise(chosen: Candidate, view: View) -> str:
    sure = "complete" if chosen.is_sure else "unverified, and nothing verified exists"
    passed = [each for each in view.candidates if each.iteration > chosen.iteration]
    text = f"the newest good checkpoint of the timeline ({sure})"
    if passed:
        worst = passed[0]
        why = worst.standing if worst.standing != GOOD else worst.state.value
        text += f"; {worst.iteration} is {why}"
    return text


def _nothing_good(view: View, timeline: Timeline) -> Choice:
    alive = [each for each in view.candidates if each.standing != ABANDONED]
    if not alive:
        if not view.candidates:
            return Choice(AS_IS, "no checkpoint was written yet")
        if any(each.to_iteration == 0 for each in timeline.rollbacks):
            return Choice(BEGIN, "the run was rolled back to its beginning")
    seen = view.candidates[0]
    why = seen.standing if seen.standing != GOOD else seen.state.value
    what = f"{len(view.candidates)} checkpoints were written and none can be used"
    return Choice(AS_IS, "", None, f"{what} (the newest, {seen.name}, is {why})")
