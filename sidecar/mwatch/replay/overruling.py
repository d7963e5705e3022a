# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Decide when the classifier's reading of a log may overrule what the rules found.

The reading must lead by a share that depends on how reliable the rules are. What a detector proved
in a whole log stands; in an excerpt it gives way only to a very large lead. An exception that names
the error in the program stands, and so does a decision for a known checkpoint. Independently of the
lead, the lines themselves rule out some causes.
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
"""Lead another cause needs; with a smaller lead it is wrong as often as the rules are."""
_FIRMLY = 0.5
"""Lead needed over a fault that the catalogue names."""
BEYOND_DOUBT = 0.8
"""Lead needed over what a detector proved in an excerpt, over a program error that the catalogue
knows, for numbers that no detector finds bad, and in logs of a few lines."""
_NEVER = 2.0  # more than any lead
_EXCERPT = 100
"""Maximum lines of an excerpt. Users rarely paste more, so the model learnt little from longer
texts."""
_FEW_LINES = 8
"""Fewer distinct lines are too few: the model learnt mostly from excerpts of ten or more."""
_NUMBER = re.compile(r"\d+")
_SAYS_END = re.compile(
    r"\b(?:completed|succeeded|done|ended|finished(?! (?:sav|writ|upload)))\b|\bexit", re.I
)
_EXIT_ZERO = re.compile(
    r"\bexit(?:ed|s)?(?:[ _](?:with|code|status|value)){0,3} {0,2}[:=]? {0,2}0(?![\w.])", re.I
)
_LAST_WORDS = 3  # lines that may report the end
_GUESSES = frozenset({"none", f"{LOG_END}?", f"{LOG_END}?+"})
"""Sources of findings that may not be faults."""
_ODD_NUMBERS = frozenset(
    {"n:loss:zero", "n:loss:begins at zero", "n:loss:peak 1.5", "n:loss:peak 3.0"}
)
"""Features of losses that look like trouble but may be harmless."""
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
    """Whether the weighed cause overrules the rules. `decided`: the decision made by the rules."""
    lead = weighed.share - weighed.of_rules
    if lead < _least_lead(weighed.cause, decided, job, lines):
        return False
    return weighed.cause not in _ruled_out(rules, lines)


def are_few(lines: Sequence[str]) -> bool:
    """Whether there are few distinct lines; lines that differ only in numbers count once."""
    return len({_NUMBER.sub("", text) for text in lines}) < _FEW_LINES


def is_excerpt(lines: Sequence[str]) -> bool:
    """Whether the text resembles most of those that the model was trained on."""
    return len(lines) <= _EXCERPT and not _are_mostly_steps(lines)


def last_trouble(lines: Sequence[str]) -> tuple[int | None, bool]:
    """Return the index of the last line that looks like trouble, and whether steps follow it."""
    last = max((at for at, text in enumerate(lines) if TROUBLE.search(text)), default=None)
    return last, last is not None and any(map(is_progress, lines[last + 1 :]))


def _least_lead(cause: Cause, decided: Decision, job: Job, lines: Sequence[str]) -> float:
    lead = decided.finding
    if decided.resume_from is not None:
        return _NEVER
    if lead is None:  # in steps that mwatch can read, a detector would have found bad numbers
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
    """Return the causes that the lines themselves rule out.

    - Healthy, unless something looks like trouble (a log that just stops may be of a hung run) and,
      where a rule found something, steps follow it.
    - Faults that end a run, if no rule found anything and steps follow the trouble.
    - Finished, unless the last lines report an end.
    - Hang, if the last lines report exit code 0 or the rules found the run finished.
    - Unknown; and where the rules found a fault, causes seen only in the course of the numbers,
      since the fault explains the end better. A detector's fault also rules out healthy and
      finished.
    """
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
