# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Read the last lines of a recorded log a second time, by what a classifier learnt of public logs.

Detectors and the catalogue come first. The classifier is asked what they leave open: a log that
breaks off without an explanation, and an end that only the last lines show. There it may name
another cause, if it prefers that clearly. It may also advise a person to stop where a restart was
decided on, if the log reads like those of failures that come again. What a detector has proved
stands, and what the classifier says is never acted on. Its thresholds were measured on logs that it
had not learnt from: 1,200 for the causes, 9,390 for the advice to stop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from mwatch import classifier
from mwatch.classifier.classifier import TROUBLE, Classifier, Scores, is_progress
from mwatch.decide.decide import advise
from mwatch.detect.shared.attempts import crashed_alike
from mwatch.engine.engine import Engine
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import LOG_END, Evidence, Finding, Severity, Verdict
from mwatch.model.job import Job
from mwatch.replay.end_reasons import ONLY_WORDS, last_lines
from mwatch.report.conclusion import RunConclusion

_WEIGHTS = Path(classifier.__file__).with_name("weights.bin")


class _Least(NamedTuple):
    """What makes an opinion clear: the lead of a cause over another one, and its own score."""

    lead: float
    score: float


_UNKNOWN = _Least(0.3, 0.0)
"""Over the second cause, where nothing else is known."""
_WELL_IF = _Least(0.2, -0.5)
"""The same for a run that is well in spite of what looks like trouble."""
_KNOWN = _Least(1.5, 0.25)
"""Over the cause that the last lines showed to the rules."""
_SAYS_END = re.compile(
    r"\b(?:completed|succeeded|done|ended|finished(?! (?:sav|writ|upload)))\b|\bexit", re.I
)
_QUOTED = 160
_LIKENESS = "/likeness"
_WELL = frozenset({Cause.HEALTHY, Cause.FINISHED})
_NONE_IS_RIGHT = frozenset(
    {
        Cause.SLOW, Cause.LOSS_SPIKE, Cause.UNSCHEDULABLE, Cause.PREEMPTED, Cause.DRAINED,
        Cause.SUSPENDED, Cause.DELETED_BY_USER, Cause.FINISHED_EARLY,
    }
)  # fmt: skip
"""Causes on which nobody, or somebody else, may have to act."""
_BY_NUMBERS = frozenset(
    {
        Cause.LOSS_SPIKE, Cause.LOSS_STUCK, Cause.LOSS_SCALE_COLLAPSE, Cause.NAN,
        Cause.RESUME_DIVERGED,
    }
)  # fmt: skip
"""What numbers show is for detectors to judge: the classifier reads none."""
_STANDS = _BY_NUMBERS | {Cause.SLOW, Cause.DELETED_BY_USER}
_BY_COMPARISON = frozenset({"collective-mismatch", "ranks-hold-other-models"})
"""Faults that show in how the lines of ranks differ, not in their words."""
_FEWEST_LINES = 8
"""Fewer say too little beside the rules: it has learnt from excerpts of ten lines and more."""
_STOPS = 1.0
"""The lead of `stop` over `restart`: of a hundred logs of which only one of them was right, and
that were not learnt from, `stop` was right in 93."""
_MAY_PASS = frozenset({Cause.KILLED, Cause.PREEMPTED, Cause.DRAINED, Cause.LOST_POD})
"""Whoever did it is outside the run: its words do not say whether it comes again."""
_HARDLY = "a restart is unlikely to fix it"
_CAME_AGAIN = "logs like this one are of failures that come again after a restart"
_USELESS = "a restart does not help against it"
_ALIKE = "several processes crashed alike, so no GPU or node is to blame"
_WHILE_IT_RUNS = frozenset({Cause.STARTED_FROM_RANDOM, Cause.HANG, Cause.SLOW})
"""Any other fault would have ended a run that printed steps after the last line of trouble."""
_LEAST, _MOST = 0.5, 0.8
"""Confidence, for no lead and for one of `_CERTAIN`: of a hundred such causes that were not learnt
from, so many at least were right."""
_CERTAIN = 2.0


class Opinion(NamedTuple):
    cause: Cause
    action: Action
    confidence: float
    evidence: Evidence


@cache
def packaged() -> Classifier:
    return Classifier(_WEIGHTS.read_bytes())


class _LastLines:
    """Those of all files, which the classifier reads at most once."""

    def __init__(self, tails: Mapping[str, bytes], line_counts: Mapping[str, int]) -> None:
        self._tails = tails
        self._line_counts = line_counts

    @cached_property
    def lines(self) -> Sequence[Evidence]:
        return [
            Evidence(file, number, text.strip())
            for file, tail in self._tails.items()
            for number, text in last_lines(tail, self._line_counts.get(file, 0))
        ]

    @cached_property
    def scores(self) -> Scores | None:
        return packaged().read([each.text for each in self.lines])

    @property
    def say_little(self) -> bool:
        """Too few of them are more than progress to take anything back."""
        return sum(not is_progress(each.text) for each in self.lines) < _FEWEST_LINES


def _second_opinion(
    cause: Cause, lead: Finding | None, last: _LastLines, *, has_steps: bool
) -> Opinion | None:
    """None: what was found stands. `cause`: the verdict so far, by `lead`; `has_steps`: detectors
    have judged their numbers."""
    if cause is not Cause.UNKNOWN and (lead is None or lead.detector != LOG_END):
        return None
    lines = last.lines
    if len(lines) < _FEWEST_LINES or cause in _STANDS:
        return None
    if cause is not Cause.UNKNOWN and last.say_little:
        return None
    if lead is not None and lead.fault in _BY_COMPARISON:
        return None
    reading = last.scores
    if reading is None:
        return None
    first, second = reading.ranked(_possible(cause, lines, has_steps=has_steps))[:2]
    over = second if cause is Cause.UNKNOWN or cause not in reading.causes else cause
    ahead, score = reading.causes[first] - reading.causes[over], reading.causes[first]
    least = _KNOWN if cause is not Cause.UNKNOWN else _WELL_IF if first in _WELL else _UNKNOWN
    if first in (cause, Cause.UNKNOWN) or ahead < least.lead or score < least.score:
        return None
    line = reading.line_for(first, over)
    is_over = not _goes_on(lines, line) or first in _WELL | _WHILE_IT_RUNS
    if cause is Cause.UNKNOWN and not is_over:
        return None
    confidence = _LEAST + (_MOST - _LEAST) * min(ahead / _CERTAIN, 1.0)
    return Opinion(first, _action(first, reading), round(confidence, 2), lines[line])


def _possible(cause: Cause, lines: Sequence[Evidence], *, has_steps: bool) -> frozenset[Cause]:
    """What may be the cause of a log whose verdict is `cause` so far."""
    if cause is not Cause.UNKNOWN:
        return frozenset(Cause) - _WELL
    return _possible_at_all(lines, has_steps=has_steps) - _unsaid(lines)


def _unsaid(lines: Sequence[Evidence]) -> frozenset[Cause]:
    """A run whose last lines do not say that it has finished is not taken to have done so."""
    steps = (number for number, each in enumerate(lines) if is_progress(each.text))
    last = max(steps, default=-1)
    reports_end = any(_SAYS_END.search(each.text) for each in lines[last + 1 :])
    return frozenset() if reports_end else frozenset({Cause.FINISHED})


def _possible_at_all(lines: Sequence[Evidence], *, has_steps: bool) -> frozenset[Cause]:
    by_numbers = _BY_NUMBERS if has_steps else frozenset()
    trouble = [number for number, each in enumerate(lines) if TROUBLE.search(each.text)]
    if not trouble:  # it may be that of a run that stands still
        return frozenset(Cause) - {Cause.HEALTHY} - by_numbers
    if _goes_on(lines, trouble[-1]):
        return _WELL | _WHILE_IT_RUNS | (_BY_NUMBERS - by_numbers)
    return frozenset(Cause) - by_numbers


def _goes_on(lines: Sequence[Evidence], line: int) -> bool:
    return any(is_progress(each.text) for each in lines[line + 1 :])


def _action(cause: Cause, reading: Scores) -> Action:
    if cause in _WELL:
        return Action.NONE
    scores = dict(reading.actions)
    if cause not in _NONE_IS_RIGHT:
        del scores[Action.NONE]
    return max(scores, key=scores.__getitem__)


def reconsidered(
    concluded: RunConclusion,
    engine: Engine,
    tails: Mapping[str, bytes],
    line_counts: Mapping[str, int],
    *,
    has_steps: bool,
    has_worked: bool,
) -> RunConclusion:
    """The conclusion after a second reading of the last lines; the same one if that adds nothing.
    `tails`: the ends of all files, which have `line_counts` lines; `has_steps`: recognisers read
    some steps; `has_worked`: a count rose in other lines."""
    lead, cause = concluded.decision.finding, concluded.verdict.cause
    last = _LastLines(tails, line_counts)
    opinion = _second_opinion(cause, lead, last, has_steps=has_steps)
    if opinion is None:
        # What worked once, in this attempt or an earlier one, may work again.
        has_begun = has_steps or has_worked or engine.job.best_iteration is not None
        return concluded if has_begun else _stopped(concluded, engine, last)
    others = tuple(each for each in concluded.findings if each.detector != LOG_END)
    if opinion.cause in _WELL:
        return _well(opinion, concluded, others)
    finding = _finding(opinion, lead)
    advised = advise(
        engine.job,
        finding,
        others,
        engine.settings,
        has_worked=has_worked,
        preferred=opinion.action,
    )
    decided = advised or _no_action(opinion, concluded, ONLY_WORDS, finding)
    verdict = Verdict(
        opinion.cause,
        finding.summary,
        since_time=finding.since_time,
        confidence=opinion.confidence,
    )
    return RunConclusion(verdict, decided, None, (finding, *others))


def _stopped(concluded: RunConclusion, engine: Engine, last: _LastLines) -> RunConclusion:
    """Advise to stop, not to restart, where the log reads clearly like those of failures that came
    again."""
    decided, lead = concluded.decision, concluded.decision.finding
    is_known = decided.resume_from is not None or decided.cause in _MAY_PASS
    if decided.action is not Action.RESTART or lead is None or is_known:
        return concluded
    why = _reported_to_recur(engine.job, lead) or _comes_again(last)
    if why is None:
        return concluded
    advised = advise(engine.job, lead, (), engine.settings, preferred=Action.STOP)
    if advised is None:
        return concluded
    reason = f"{lead.summary.rstrip('. ')}: {_HARDLY}"
    proposal = f"{why}: {advised.proposal}"
    advised = replace(advised, reason=reason, proposal=proposal)
    return concluded._replace(decision=advised, acted_at=None)


def _reported_to_recur(job: Job, lead: Finding) -> str | None:
    """Why it comes again, as far as the cluster or several processes show that; None: unknown."""
    if crashed_alike(job, lead):
        return _ALIKE
    entry = job.catalogue.get(lead.fault or "")
    return _USELESS if entry is not None and entry.fails_again else None


def _comes_again(last: _LastLines) -> str | None:
    """Why such a failure comes again; None: its words do not show it."""
    reading = None if last.say_little else last.scores
    if reading is None:
        return None
    ahead = reading.actions[Action.STOP] - reading.actions[Action.RESTART]
    return _CAME_AGAIN if ahead >= _STOPS else None


def _well(opinion: Opinion, concluded: RunConclusion, others: tuple[Finding, ...]) -> RunConclusion:
    line = opinion.evidence.text[:_QUOTED]
    text = f"as far as it goes, it reads like the log of a healthy run: {line}"
    if concluded.verdict.cause is Cause.UNKNOWN:
        text = f"{concluded.verdict.summary}; {text}"
    verdict = Verdict(opinion.cause, text, confidence=opinion.confidence)
    return RunConclusion(verdict, _no_action(opinion, concluded, text, None), None, others)


def _no_action(
    opinion: Opinion, concluded: RunConclusion, reason: str, finding: Finding | None
) -> Decision:
    attempt = concluded.decision.attempt
    return Decision(
        Action.NONE, opinion.cause, attempt, reason, finding=finding, spends_budget=False
    )


def _finding(opinion: Opinion, lead: Finding | None) -> Finding:
    """`lead`: what was found before."""
    return Finding(
        detector=LOG_END,
        cause=opinion.cause,
        severity=Severity.CRITICAL,
        summary=f"The log resembles others with this cause: {opinion.evidence.text[:_QUOTED]}",
        since_time=lead.since_time if lead else None,
        confidence=opinion.confidence,
        evidence=(opinion.evidence, *(lead.evidence if lead else ())),
        is_guess=True,
        fingerprint=f"{opinion.cause}{_LIKENESS}",
    )
