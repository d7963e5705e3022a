# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When what a log reads like may overrule what the rules found in it.

The reading must lead by a share that depends on how well the rules know: what a detector proved in
a whole log stands, in an excerpt it gives way only beyond doubt; an exception that says what is
wrong with the program stands, and so does a decision for a known checkpoint. And some causes the
lines themselves rule out, whatever the log reads like.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mwatch.classifier.arbiter import RulesFound, Weighed
from mwatch.classifier.classifier import TROUBLE, is_progress
from mwatch.classifier.numbers import shapes
from mwatch.model.cause import Cause
from mwatch.model.decision import Decision
from mwatch.model.finding import LOG_END
from mwatch.model.job import Job

CLEARLY = 0.3
"""The share by which another cause must lead: below, it is as often wrong as what the rules say."""
_FIRMLY = 0.5
"""The same over a fault that the catalogue names."""
BEYOND_DOUBT = 0.8
"""The same over what a detector proved in an excerpt, over an error of the program that the
catalogue knows, for numbers that no detector finds bad, and in a few lines."""
_NEVER = 2.0
_EXCERPT = 100
"""Lines: of what people paste, longer texts are rare, so that little was learnt from them."""
_FEW_LINES = 8
"""It has learnt mostly from excerpts of ten lines and more."""
_NUMBER = re.compile(r"\d+")
_SAYS_END = re.compile(
    r"\b(?:completed|succeeded|done|ended|finished(?! (?:sav|writ|upload)))\b|\bexit", re.I
)
_EXIT_ZERO = re.compile(
    r"\bexit(?:ed|s)?(?:[ _](?:with|code|status|value)){0,3} {0,2}[:=]? {0,2}0(?![\w.])", re.I
)
_LAST_WORDS = 3  # lines that may report the end
_GUESSES = frozenset({"none", f"{LOG_END}?", f"{LOG_END}?+"})
"""Sources of what may be no fault at all."""
_ODD_NUMBERS = frozenset(
    {"n:loss:zero", "n:loss:begins at zero", "n:loss:peak 1.5", "n:loss:peak 3.0"}
)
"""Losses that look like trouble, and may be none."""
WELL = frozenset({Cause.HEALTHY, Cause.FINISHED})
_BY_NUMBERS = frozenset(
    {
        Cause.LOSS_SPIKE, Cause.LOSS_STUCK, Cause.LOSS_SCALE_COLLAPSE, Cause.NAN,
        Cause.RESUME_DIVERGED,
    }
)  # fmt: skip
_WHILE_IT_RUNS = WELL | _BY_NUMBERS | {
    Cause.STARTED_FROM_RANDOM, Cause.HANG, Cause.SLOW, Cause.CHECKPOINT_OVERDUE,
    Cause.FINISHED_EARLY,
}  # fmt: skip
"""Any other fault would have ended a run that printed steps after the last line of trouble."""


def overrules(
    weighed: Weighed, rules: RulesFound, decided: Decision, job: Job, lines: Sequence[str]
) -> bool:
    """`decided`: what follows from what the rules found."""
    lead = weighed.share - weighed.of_rules
    if lead < _least_lead(weighed.cause, decided, job, lines):
        return False
    return weighed.cause not in _ruled_out(rules, lines)


def are_few(lines: Sequence[str]) -> bool:
    """Lines that differ only in numbers say the same."""
    return len({_NUMBER.sub("", text) for text in lines}) < _FEW_LINES


def is_excerpt(lines: Sequence[str]) -> bool:
    """A text like most of those that it has learnt from."""
    return len(lines) <= _EXCERPT and not _are_mostly_steps(lines)


def last_trouble(lines: Sequence[str]) -> tuple[int | None, bool]:
    """The index of the last line that looks like trouble, and whether steps follow it."""
    last = max((at for at, text in enumerate(lines) if TROUBLE.search(text)), default=None)
    return last, last is not None and any(map(is_progress, lines[last + 1 :]))


def _least_lead(cause: Cause, decided: Decision, job: Job, lines: Sequence[str]) -> float:
    lead = decided.finding
    if decided.resume_from is not None:
        return _NEVER
    if lead is None:  # of steps that it can read a detector would have found it
        are_read = cause in _BY_NUMBERS and job.attempt.iteration is not None
        return BEYOND_DOUBT if are_read or are_few(lines) else CLEARLY
    names_itself = lead.cause is Cause.USER_ERROR and not lead.is_guess
    if names_itself and lead.fault is None:
        return _NEVER
    if _are_mostly_steps(lines):
        return _NEVER
    if lead.detector != LOG_END:
        return BEYOND_DOUBT if len(lines) <= _EXCERPT else _NEVER
    is_denied = cause in WELL and not lead.is_guess
    if names_itself or is_denied:
        return BEYOND_DOUBT
    return _FIRMLY if lead.fault is not None and not lead.is_guess else CLEARLY


def _are_mostly_steps(lines: Sequence[str]) -> bool:
    others = sum(not is_progress(text) for text in lines)
    return others < min(_FEW_LINES, len(lines))


def _ruled_out(rules: RulesFound, lines: Sequence[str]) -> frozenset[Cause]:
    """A run is healthy only if something looks like trouble (a log that breaks off without a word
    may stand still), and where a rule found a fault, only if steps follow. What steps follow did
    not end the run. No run has finished whose last lines do not say so, and one that says so does
    not hang. What the rules found is not unknown, and explains an end better than the course of the
    numbers before."""
    no = {Cause.UNKNOWN}
    if rules.cause is Cause.FINISHED or any(map(_EXIT_ZERO.search, lines[-_LAST_WORDS:])):
        no.add(Cause.HANG)
    if rules.source not in _GUESSES:
        no |= frozenset() if rules.cause in _BY_NUMBERS else _BY_NUMBERS
        no |= frozenset() if rules.source.startswith(LOG_END) else WELL
    trouble, goes_on = last_trouble(lines)
    if trouble is None and not _ODD_NUMBERS.isdisjoint(shapes(lines)):
        trouble, goes_on = 0, any(map(is_progress, lines))
    if trouble is None or (rules.source != "none" and not goes_on):
        no.add(Cause.HEALTHY)
    elif rules.source == "none" and goes_on:
        no |= frozenset(Cause) - _WHILE_IT_RUNS
    last = max((at for at, text in enumerate(lines) if is_progress(text)), default=-1)
    if not any(map(_SAYS_END.search, lines[last + 1 :])):
        no.add(Cause.FINISHED)
    return frozenset(no)
