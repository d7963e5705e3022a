# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint to resume from, and why.

A checkpoint is never chosen if it is incomplete, could not be loaded, or belongs to an abandoned
line of training. The state of the checkpoint folder decides; if it cannot be read, the log does (a
queued asynchronous save is not a save). After bad numbers the run goes back to a checkpoint before
the first bad iteration; the checkpoint of iteration N was written before iteration N + 1. Whether
the numbers in a checkpoint are good is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from mwatch.decide import history
from mwatch.model.cause import Cause
from mwatch.model.decision import CHOSEN_BY_TRAINER, Act, DecisionRecord
from mwatch.model.finding import Finding
from mwatch.model.job import Attempt, Job, KnownCheckpoint
from mwatch.model.observation import Source
from mwatch.model.settings import Settings

_MAX_NAMED = 4
_BAD_TRACKER = frozenset({"checkpoint-tracker-invalid", "checkpoint-no-iteration"})
_MAX_NUMBERS = 8
_FEW_ITERATIONS, _SMALL_SHARE = 50, 0.05  # up to here a new run has not shown that it works

_OF_STEPS = (Cause.NAN, Cause.LOSS_SCALE_COLLAPSE)


class ResumeChoice(NamedTuple):
    iteration: int | None  # None: there is no checkpoint to resume from
    reason: str
    nothing_complete: bool = False  # checkpoints were written, but none of them can be used
    nothing_known: bool = False  # the run began before the log, so unknown checkpoints may exist


def choose(job: Job, *, before: int | None, limit: str = "") -> ResumeChoice:
    """Return the newest usable checkpoint below `before`; `limit` describes that bound."""
    known = _known(job)
    fitting = [each for each in known if before is None or each.iteration < before]
    usable = [each for each in fitting if refusal(job, each) is None]
    sure = [each for each in usable if each.stored != "unverified"]
    chosen = max(sure or usable, key=lambda each: each.iteration, default=None)
    if chosen is not None:
        return ResumeChoice(chosen.iteration, _reason_for(job, chosen, known, before, limit))
    if not any(_was_written(job, each) for each in known):
        return _none_known(job)
    passed = _passed_over(job, known, before)
    place = f" {limit}" if limit else ""
    return ResumeChoice(None, f"no checkpoint{place} can be used: {passed}", nothing_complete=True)


def before_failed(job: Job) -> ResumeChoice:
    """Return the newest usable checkpoint older than the one that could not be loaded.

    If it is unknown which one failed, it was the newest: the trainer loads no other.
    """
    attempt = job.attempt
    has_newer = max(job.checkpoints, default=0) > (attempt.resumed_from or 0)
    if attempt.load == "loaded" and (attempt.steps or has_newer):
        return choose(job, before=None)  # the failed one is newer, and already marked as bad
    failed = attempt.resumed_from if attempt.load_iteration is None else attempt.load_iteration
    if _was_misled(job, failed):
        return choose(job, before=None)
    if failed is None:
        failed = choose(job, before=None).iteration
    limit = "" if failed is None else f"before {failed}"
    choice = choose(job, before=failed, limit=limit)
    if choice.iteration is None and not choice.nothing_complete:
        reason = "a checkpoint could not be loaded, and no older one is known"
        return ResumeChoice(None, reason, nothing_complete=True)  # it may hold weeks of work
    return choice


def _was_misled(job: Job, failed: int | None) -> bool:
    """Whether the tracker file is invalid or names a checkpoint that never existed.

    The other checkpoints are fine then.
    """
    if failed is None:
        return any(seen.fault.id in _BAD_TRACKER for seen in job.attempt.faults)
    if not failed:
        return False  # iteration 0: a converted model, so nothing was trained before it
    known = job.checkpoints.get(failed)
    return known is not None and not known.is_saved and known.stored in (None, "missing")


def older_than_attempt(job: Job) -> ResumeChoice:
    """Return the newest usable checkpoint from before the current attempt."""
    attempt = job.attempt
    older = (known for known in job.checkpoints.values() if _is_older(known, attempt))
    usable = (known for known in older if known.stored != "unverified" and not refusal(job, known))
    newest = max((known.iteration for known in usable), default=None)
    if newest is None:
        return ResumeChoice(None, "no usable checkpoint is older than this attempt")
    reason = f"checkpoint {newest}: it was there before attempt {attempt.number}"
    return ResumeChoice(newest, reason)


def has_none_before(job: Job, iteration: int) -> bool:
    """Whether no checkpoint was ever written below `iteration`.

    Starting from the beginning then loses no checkpoint. Whether older ones were deleted is
    inferred from the distance between those that are left.
    """
    attempts = [*job.past, job.attempt]
    if any(attempt.resumed_from for attempt in attempts):
        return False
    written = sorted(each.iteration for each in _known(job) if _was_written(job, each))
    if not written:
        return True
    gaps = [later - earlier for earlier, later in pairwise(written)]
    interval = job.layout.save_interval or min(gaps, default=written[0])
    return written[0] >= iteration and interval >= iteration


def refusal(job: Job, known: KnownCheckpoint) -> str | None:
    """Return why a checkpoint must not be used; None if it may be."""
    if known.load_failed:
        return "not loadable"
    if known.is_abandoned or job.timeline.is_abandoned(known.iteration, known.made_at):
        return "of an abandoned line"
    if known.stored is None:
        return None if known.is_saved else "not finished"
    if known.stored in ("complete", "unverified"):
        return None
    return "gone" if known.stored == "missing" else "incomplete"


def _known(job: Job) -> list[KnownCheckpoint]:
    """Return all known checkpoints, oldest first.

    If the folder cannot be read, include those that an attempt resumed from or tried to load.
    Iteration 0 is left out: Megatron may save it (after exit 16) and refuses to load it.
    """
    found = {number: known for number, known in job.checkpoints.items() if number}
    for attempt in [] if job.sees(Source.CHECKPOINTS) else [*job.past, job.attempt]:
        if attempt.load in ("failed", "random"):
            continue
        for number in filter(None, (attempt.resumed_from, attempt.load_iteration)):
            known = found.get(number, KnownCheckpoint(number))
            found[number] = replace(known, is_saved=True)
    return [found[number] for number in sorted(found)]


def _none_known(job: Job) -> ResumeChoice:
    """Return the choice where no checkpoint is known.

    Some may exist nevertheless: an attempt may die before it prints what it loads.
    """
    attempts = [*job.past, job.attempt]
    began_anew = any(
        attempt.load == "random" or attempt.first_iteration in (0, 1) for attempt in attempts
    )
    if began_anew or job.sees(Source.CHECKPOINTS):
        return ResumeChoice(None, "no checkpoint was ever written: from the beginning")
    return ResumeChoice(None, CHOSEN_BY_TRAINER, nothing_known=True)


def _is_older(known: KnownCheckpoint, attempt: Attempt) -> bool:
    if known.attempt is not None:
        return known.attempt < attempt.number
    return known.made_at is not None and known.made_at < attempt.began_at


def _was_written(job: Job, known: KnownCheckpoint) -> bool:
    """Whether the checkpoint was written; a save during which the attempt died does not count."""
    save = job.attempt.save
    is_open = save is not None and save.iteration == known.iteration
    if known.stored in (None, "incomplete") and not known.is_saved:
        return known.load_failed or (known.stored is not None and not is_open)
    return True


def _reason_for(
    job: Job, chosen: KnownCheckpoint, known: list[KnownCheckpoint], before: int | None, limit: str
) -> str:
    place = f" {limit}" if limit else ""
    if chosen.stored == "unverified":
        what = f"nothing verified exists{place}, and this one is the newest that may be complete"
    elif chosen.stored == "complete":
        what = f"the newest complete one{place}"
    else:
        what = f"the newest one{place} that was saved, according to the log"
    newer = [each for each in known if each.iteration > chosen.iteration]
    passed = _passed_over(job, newer, before)
    return f"checkpoint {chosen.iteration}: {what}" + (f"; {passed}" if passed else "")


def _passed_over(job: Job, known: Iterable[KnownCheckpoint], before: int | None) -> str:
    """Describe why the others were not chosen, newest first: `600 is newer than that, 500 is
    incomplete`."""
    why: dict[str, list[int]] = {}
    for each in sorted(known, key=lambda each: -each.iteration):
        reason = refusal(job, each)
        if reason is None:
            is_newer = before is not None and each.iteration >= before
            reason = "newer than that" if is_newer else "unverified"
        why.setdefault(reason, []).append(each.iteration)
    return ", ".join(f"{_named(numbers)} {reason}" for reason, numbers in why.items())


def _named(numbers: list[int]) -> str:
    shown = [str(number) for number in numbers[:_MAX_NAMED]]
    if len(numbers) > _MAX_NAMED:
        return f"{', '.join(shown)} and {len(numbers) - _MAX_NAMED} more are"
    verb = "is" if len(shown) == 1 else "are"
    return f"{' and '.join(shown)} {verb}"


def first_bad(job: Job, finding: Finding) -> int:
    """Return the first bad iteration; if it is unknown, the first iteration of this attempt."""
    attempt = job.attempt
    if finding.since_iteration is not None:
        return finding.since_iteration
    if attempt.first_iteration is not None:
        return attempt.first_iteration
    return (attempt.resumed_from or 0) + 1


def goes_back_before(job: Job, finding: Finding, settings: Settings) -> int:
    """Return the iteration from which on a checkpoint may hold the bad numbers."""
    return first_bad(job, finding) - max(1, settings.checkpoints.margin_iterations) + 1


def target(job: Job, finding: Finding, settings: Settings) -> ResumeChoice:
    bad = first_bad(job, finding)
    before = goes_back_before(job, finding, settings)
    limit = f"before the first bad iteration {bad}"
    loaded = job.attempt.resumed_from
    if loaded and was_good_before(job, bad):
        before = min(before, loaded)
        limit = f"before {loaded}, for an earlier attempt passed iteration {bad} in good health"
    choice = choose(job, before=before, limit=limit)
    if choice.nothing_complete and has_none_before(job, before):
        reason = f"none was written before the first bad iteration {bad}: from the beginning"
        return ResumeChoice(None, reason)
    return choice


def was_good_before(job: Job, bad: int) -> bool:
    """Whether an earlier attempt passed iteration `bad` with finite numbers.

    The same samples were fine then, so the loaded state differs from what was saved.
    """
    old = job.earlier_steps.get(bad)
    if old is None or not old.losses or old.at >= job.attempt.started_at:
        return False
    is_finite = all(map(math.isfinite, old.losses.values()))
    rollbacks = (each.first_bad for each in job.timeline.rollbacks)
    if any(first is not None and bad >= first for first in rollbacks):
        return False  # numbers from before an earlier rollback prove nothing
    return is_finite and math.isfinite(old.grad_norm or 0.0)


def rollback_refusal(
    job: Job, record: DecisionRecord, finding: Finding, settings: Settings
) -> str | None:
    """Return why another rollback does not help; None if it may."""
    done = [act for act in history.restarts(record) if act.first_bad is not None]
    bad = first_bad(job, finding)
    # A guard that ended the attempt saw only one bad number; the hardware may have caused it.
    is_shown = finding.cause in _OF_STEPS and finding.detector != "crashed"
    if is_shown and _has_hardly_begun(job, bad):
        return (
            f"the numbers of a new run went bad at iteration {bad}, before its first checkpoint:"
            " the same weights and samples give the same again"
        )
    # Include rollbacks from before the last stop: a stop does not fix the data.
    ever = [act for act in record.acts if act.first_bad is not None]
    again = _same_samples(job, ever, bad, settings)
    if again is not None:
        back = f"{again.first_bad} before the rollback to {again.resume_from or 'the beginning'}"
        return (
            f"the same samples failed twice: the numbers went bad at iteration {bad}, and at {back}"
        )
    if len(done) >= settings.checkpoints.max_rollbacks:
        return f"{len(done)} rollbacks were made already: the numbers keep going bad"
    return None


def _has_hardly_begun(job: Job, bad: int) -> bool:
    """Whether a new run went bad so early that its code or settings are the likely cause.

    They have never been seen to work, which makes a transient fault less likely.
    """
    if not _is_first_attempt(job) or job.checkpoints or (job.attempt.first_iteration or 1) > bad:
        return False
    total = job.layout.total_iterations
    return bad <= 1 or (bad <= _FEW_ITERATIONS and (total is None or bad <= _SMALL_SHARE * total))


def _is_first_attempt(job: Job) -> bool:
    return not job.past and job.attempt.number <= 1 and not job.attempt.resumed_from


def has_never_worked(job: Job) -> bool:
    """Whether the run never made a step and never wrote or loaded a checkpoint."""
    is_new = _is_first_attempt(job) and not job.checkpoints and job.attempt.load != "loaded"
    return is_new and job.best_iteration is None and job.attempt.first_iteration is None


def _same_samples(job: Job, done: list[Act], bad: int, settings: Settings) -> Act | None:
    """Return the rollback after which the run failed again on the same samples, or None.

    A resumed run reads the same data, so a failure at or before the earlier iteration counts.
    """
    slack = settings.act.same_samples_iterations + (job.layout.log_interval or 1)
    for act in reversed(done):
        if act.first_bad is not None and (act.resume_from or 0) < bad <= act.first_bad + slack:
            return act
    return None


def proposal(job: Job, finding: Finding, settings: Settings) -> str:
    """Return what a person may try: mwatch never skips data automatically."""
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
