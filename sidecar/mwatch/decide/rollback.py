# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Going back to before the numbers went bad: how far, and when no more.

The first bad iteration is the first one that the first bad line covers, so what made the
numbers bad is at or after it, as far as the log can tell. A checkpoint of iteration N was
written before iteration N + 1 was done.
"""

from __future__ import annotations

import math

from mwatch.decide import progress, resume
from mwatch.model.decision import Act, Record
from mwatch.model.finding import Finding
from mwatch.model.job import Job
from mwatch.model.settings import Settings

_MAX_NUMBERS = 8


def first_bad(job: Job, finding: Finding) -> int:
    """Where the finding does not tell, all that this attempt did is suspect."""
    attempt = job.attempt
    if finding.since_iteration is not None:
        return finding.since_iteration
    if attempt.first_iteration is not None:
        return attempt.first_iteration
    return (attempt.resumed_from or 0) + 1


def target(job: Job, finding: Finding, settings: Settings) -> resume.Choice:
    bad = first_bad(job, finding)
    before = bad - max(1, settings.checkpoints.margin_iterations) + 1
    limit = f"before the first bad iteration {bad}"
    loaded = job.attempt.resumed_from
    if loaded and was_good_before(job, bad):
        before = min(before, loaded)
        limit = f"before {loaded}, for an earlier attempt passed iteration {bad} in good health"
    choice = resume.choose(job, before=before, limit=limit)
    if choice.nothing_complete and resume.has_none_before(job, before):
        reason = f"none was written before the first bad iteration {bad}: from the beginning"
        return resume.Choice(None, reason)
    return choice


def was_good_before(job: Job, bad: int) -> bool:
    """The same samples did no harm the first time: what was loaded is not what was saved."""
    old = job.earlier_steps.get(bad)
    if old is None or not old.losses or old.at >= job.attempt.started_at:
        return False
    is_finite = all(map(math.isfinite, old.losses.values()))
    return is_finite and math.isfinite(old.grad_norm or 0.0) and not _was_rolled_back(job, bad)


def _was_rolled_back(job: Job, bad: int) -> bool:
    """Numbers that were bad, or may have been, before an earlier rollback prove nothing."""
    return any(
        rollback.first_bad is not None and bad >= rollback.first_bad
        for rollback in job.timeline.rollbacks
    )


def refusal(job: Job, record: Record, finding: Finding, settings: Settings) -> str | None:
    """Why going back once more is of no use; None: it may be."""
    done = [act for act in progress.restarts(record) if act.first_bad is not None]
    bad = first_bad(job, finding)
    ever = [act for act in record.acts if act.first_bad is not None]  # a stop mends no data
    again = _same_samples(job, ever, bad, settings)
    if again is not None:
        return (
            f"the same samples failed twice: the numbers went bad at iteration {bad}, and at "
            f"{again.first_bad} before the rollback to {again.resume_from or 'the beginning'}"
        )
    if len(done) >= settings.checkpoints.max_rollbacks:
        return f"{len(done)} rollbacks were made already: the numbers keep going bad"
    return None


def _same_samples(job: Job, done: list[Act], bad: int, settings: Settings) -> Act | None:
    """A resumed run reads the same data: to fail at or before the old place is to fail again."""
    slack = settings.act.same_samples_iterations + (job.layout.log_interval or 1)
    for act in reversed(done):
        if act.first_bad is not None and (act.resume_from or 0) < bad <= act.first_bad + slack:
            return act
    return None


def proposal(job: Job, finding: Finding, settings: Settings) -> str:
    """What a person may try; nobody skips data without being told to."""
    bad = first_bad(job, finding)
    covers = next(
        (step.covers for step in job.attempt.steps if step.first_covered <= bad <= step.iteration),
        job.layout.log_interval or 1,
    )
    numbers = [str(bad + place) for place in range(min(covers, _MAX_NUMBERS))]
    if covers > _MAX_NUMBERS:
        numbers = [*numbers[:2], "...", str(bad + covers - 1)]
    flag = f"--iterations-to-skip {' '.join(numbers)}"
    start = target(job, finding, settings).iteration
    place = "the beginning" if start is None else f"checkpoint {start}"
    return f"resume from {place} with {flag}, or look at the data of these iterations"
