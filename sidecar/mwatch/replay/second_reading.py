# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Weigh what the rules found in a recorded log against what the log reads like.

Detectors and the catalogue come first. A classifier then reads the last lines, and an arbiter
weighs both, as it learnt from logs that neither had been made for. What a detector proved in a
whole log stands, in an excerpt it gives way only beyond doubt; an exception that says what is wrong
with the program stands, and so does a decision for a known checkpoint. What comes of it is for a
person to read: it is never acted on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from mwatch import classifier
from mwatch.classifier.arbiter import Arbiter, RulesFound, Weighed
from mwatch.classifier.classifier import TROUBLE, Classifier, is_progress
from mwatch.decide.decide import advise
from mwatch.detect.shared.attempts import crashed_alike
from mwatch.engine.engine import Engine
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.fault import RestartHelps
from mwatch.model.finding import LOG_END, Evidence, Finding, Severity, Verdict
from mwatch.model.job import Job
from mwatch.parse.formats.exceptions import TIDIES_UP
from mwatch.replay.end_reasons import ONLY_WORDS, last_lines
from mwatch.report.conclusion import RunConclusion

_WEIGHTS = Path(classifier.__file__).with_name("weights.bin")
_CLEARLY = 0.3
"""The share by which another cause must lead: below, it is as often wrong as what the rules say."""
_BEYOND_DOUBT = 0.8
"""The same over what a detector proved in an excerpt, over an error of the program that the
catalogue knows, and for numbers that no detector finds bad."""
_NEVER = 2.0
_STOPS = 0.2
"""The same for advice to stop."""
_SAYS_END = re.compile(
    r"\b(?:completed|succeeded|done|ended|finished(?! (?:sav|writ|upload)))\b|\bexit", re.I
)
_DOUBTFUL = frozenset({"none", f"{LOG_END}?", f"{LOG_END}?+"})
"""Sources of what may be no fault at all."""
_TRACEBACK = "Traceback (most recent call last):"
_TIDIES_UP = re.compile(rf"\bin (?:{'|'.join(sorted(TIDIES_UP))})$")
_QUOTED = 160
_LIKENESS = "/likeness"
_WELL = frozenset({Cause.HEALTHY, Cause.FINISHED})
_BY_NUMBERS = frozenset(
    {
        Cause.LOSS_SPIKE, Cause.LOSS_STUCK, Cause.LOSS_SCALE_COLLAPSE, Cause.NAN,
        Cause.RESUME_DIVERGED,
    }
)  # fmt: skip
_WHILE_IT_RUNS = _WELL | _BY_NUMBERS | {
    Cause.STARTED_FROM_RANDOM, Cause.HANG, Cause.SLOW, Cause.CHECKPOINT_OVERDUE
}  # fmt: skip
"""Any other fault would have ended a run that printed steps after the last line of trouble."""
_NONE_IS_RIGHT = frozenset(
    {
        Cause.SLOW, Cause.LOSS_SPIKE, Cause.UNSCHEDULABLE, Cause.PREEMPTED, Cause.DRAINED,
        Cause.SUSPENDED, Cause.DELETED_BY_USER, Cause.FINISHED_EARLY, Cause.UNKNOWN,
    }
)  # fmt: skip
"""Causes on which nobody, or somebody else, may have to act."""
_ACTIONS = {
    cause: (Action.NONE,) if cause in _WELL else (Action.RESTART, Action.STOP)
    for cause in Cause
    if cause not in _NONE_IS_RIGHT
}
_EXCERPT = 100
"""Lines: of what people paste, longer texts are rare, so that little was learnt from them."""
_FEWEST_LINES = 8
"""Fewer say too little beside the rules: it has learnt from excerpts of ten lines and more."""
_MAY_PASS = frozenset({Cause.KILLED, Cause.PREEMPTED, Cause.DRAINED, Cause.LOST_POD})
"""Whoever did it is outside the run: its words do not say whether it comes again."""
_HARDLY = "a restart is unlikely to fix it"
_CAME_AGAIN = "logs like this one are of failures that come again after a restart"
_USELESS = "a restart does not help against it"
_ALIKE = "several processes crashed alike, so no GPU or node is to blame"
_MOST_SURE = 0.9
"""Confidence: of a hundred that were weighed as certain and not learnt from, more were right."""


@cache
def packaged() -> Classifier:
    return Classifier(_WEIGHTS.read_bytes())


@cache
def _arbiter() -> Arbiter:
    return Arbiter(packaged().arbiter)


def reconsidered(
    concluded: RunConclusion,
    engine: Engine,
    tails: Mapping[str, bytes],
    line_counts: Mapping[str, int],
    *,
    has_worked: bool,
) -> RunConclusion:
    """The conclusion after a second reading of the last lines; the same one if that adds nothing.
    `tails`: the ends of all files, which have `line_counts` lines; `has_worked`: a count rose in
    lines of a form that no recogniser reads."""
    rules = found_by_rules(concluded)
    lines = [
        Evidence(file, number, text.strip())
        for file, tail in tails.items()
        for number, text in _that_count(last_lines(tail, line_counts.get(file, 0)))
    ]
    reading = None
    if len(lines) >= _FEWEST_LINES:
        reading = packaged().read([each.text for each in lines])
    if reading is None or rules.cause not in reading.causes:
        return _stopped(concluded, engine, None, has_worked=has_worked)
    weighed = _arbiter().weigh(rules, reading, _ACTIONS)
    is_clear = weighed.share - weighed.of_rules >= _least_lead(
        concluded.decision, weighed.cause, engine.job, lines
    )
    if not is_clear or weighed.cause in _impossible(rules, lines):
        is_excerpt = len(lines) <= _EXCERPT and not _are_few(lines)
        return _stopped(concluded, engine, weighed, has_worked=has_worked, is_excerpt=is_excerpt)
    evidence = lines[reading.line_for(weighed.cause, rules.cause)]
    others = tuple(each for each in concluded.findings if each.detector != LOG_END)
    if weighed.cause in _WELL:
        return _well(weighed, evidence, concluded, others)
    finding = _finding(weighed, evidence, concluded)
    advised = advise(
        engine.job,
        finding,
        others,
        engine.settings,
        has_worked=has_worked,
        preferred=weighed.action,
    )
    verdict = Verdict(
        finding.cause,
        finding.summary,
        since_time=finding.since_time,
        confidence=finding.confidence,
    )
    decided = advised or _no_action(finding.cause, concluded, ONLY_WORDS, finding)
    return RunConclusion(verdict, decided, None, (finding, *others))


def found_by_rules(concluded: RunConclusion) -> RulesFound:
    if concluded.verdict.cause is Cause.BLIND:  # the words of a log may say more than its steps
        return RulesFound(Cause.UNKNOWN, Action.NONE, "none", 0.0, frozenset())
    return RulesFound(
        concluded.verdict.cause,
        concluded.decision.action,
        _source(concluded.decision.finding),
        concluded.verdict.confidence or 0.0,
        frozenset((each.detector, each.cause) for each in concluded.findings),
    )


def _that_count(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Without the tracebacks of what tidies up after a process."""
    block: list[tuple[int, str]] = []
    for each in lines:
        is_within = bool(block) and each[1][:1].isspace()
        if block and not is_within:  # the exception itself, or another line
            if not any(_TIDIES_UP.search(text) for _, text in block):
                yield from block
                yield each
            block = []
        elif is_within or each[1].startswith(_TRACEBACK):
            block.append(each)
        else:
            yield each
    yield from block


def _source(lead: Finding | None) -> str:
    if lead is None:
        return "none"
    return f"{lead.detector}{'?' * lead.is_guess}{'+' * bool(lead.fault)}"


def _least_lead(decided: Decision, cause: Cause, job: Job, lines: Sequence[Evidence]) -> float:
    """The share by which `cause` must lead over what the rules found."""
    lead = decided.finding
    if decided.resume_from is not None:
        return _NEVER
    if lead is None:  # of steps that it can read a detector would have found it
        are_read = cause in _BY_NUMBERS and job.attempt.iteration is not None
        return _BEYOND_DOUBT if are_read else _CLEARLY
    names_itself = lead.cause is Cause.USER_ERROR and not lead.is_guess
    if names_itself and lead.fault is None:
        return _NEVER
    if _are_few(lines):
        return _NEVER
    if lead.detector != LOG_END:
        return _BEYOND_DOUBT if len(lines) <= _EXCERPT else _NEVER
    return _BEYOND_DOUBT if names_itself else _CLEARLY


def _are_few(lines: Sequence[Evidence]) -> bool:
    """Hardly any says more than that steps were made."""
    return sum(not is_progress(each.text) for each in lines) < _FEWEST_LINES


def _impossible(rules: RulesFound, lines: Sequence[Evidence]) -> frozenset[Cause]:
    """What is not the cause, whatever the log reads like. A run is well only if steps follow what
    looks like trouble: one that breaks off without a word may stand still. What steps follow did
    not end it. No run has finished whose last lines do not say so. What the rules found is not
    unknown, and explains an end better than the course of the numbers before."""
    no = frozenset({Cause.UNKNOWN})
    if rules.cause is Cause.FINISHED:  # it reports its end, so it does not stand still
        no |= {Cause.HANG}
    if rules.source not in _DOUBTFUL:
        no |= _BY_NUMBERS | _WELL
    is_step = [is_progress(each.text) for each in lines]
    trouble = [number for number, each in enumerate(lines) if TROUBLE.search(each.text)]
    goes_on = any(is_step[trouble[-1] + 1 :]) if trouble else False
    if not trouble or (rules.source != "none" and not goes_on):
        no |= {Cause.HEALTHY}
    elif rules.source == "none" and goes_on:
        no |= frozenset(Cause) - _WHILE_IT_RUNS
    last = max((number for number, each in enumerate(is_step) if each), default=-1)
    reports_end = any(_SAYS_END.search(each.text) for each in lines[last + 1 :])
    return no if reports_end else no | {Cause.FINISHED}


def _stopped(
    concluded: RunConclusion,
    engine: Engine,
    weighed: Weighed | None,
    *,
    has_worked: bool,
    is_excerpt: bool = False,
) -> RunConclusion:
    """Advise to stop, where the cause stands but what failed comes again."""
    decided, lead = concluded.decision, concluded.decision.finding
    if lead is None or decided.action is Action.STOP or decided.cause in _MAY_PASS | _WELL:
        return concluded
    if engine.job.attempt.is_finished:
        return concluded
    why = _CAME_AGAIN if weighed is not None and weighed.stops >= _STOPS else None
    is_certain = is_excerpt and weighed is not None and weighed.stops >= _BEYOND_DOUBT
    if decided.action is Action.RESTART:
        # What worked once, in this attempt or an earlier one, may work again.
        has_begun = has_worked or engine.job.best_iteration is not None
        entry = engine.job.catalogue.get(lead.fault or "")
        if entry is not None and entry.restart_helps is RestartHelps.YES:
            return concluded
        if decided.resume_from is not None or (has_begun and not is_certain):
            return concluded
        why = _reported_to_recur(engine.job, lead) or why
    advised = advise(engine.job, lead, (), engine.settings, preferred=Action.STOP) if why else None
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


def _well(
    weighed: Weighed,
    evidence: Evidence,
    concluded: RunConclusion,
    others: tuple[Finding, ...],
) -> RunConclusion:
    text = f"as far as it goes, it reads like the log of a healthy run: {evidence.text[:_QUOTED]}"
    if concluded.verdict.cause is Cause.UNKNOWN:
        text = f"{concluded.verdict.summary}; {text}"
    verdict = Verdict(weighed.cause, text, confidence=_confidence(weighed))
    return RunConclusion(verdict, _no_action(weighed.cause, concluded, text, None), None, others)


def _no_action(
    cause: Cause, concluded: RunConclusion, reason: str, finding: Finding | None
) -> Decision:
    attempt = concluded.decision.attempt
    return Decision(Action.NONE, cause, attempt, reason, finding=finding, spends_budget=False)


def _finding(weighed: Weighed, evidence: Evidence, concluded: RunConclusion) -> Finding:
    lead = concluded.decision.finding
    summary = f"The log resembles others with this cause: {evidence.text[:_QUOTED]}"
    if lead is not None:
        summary += f" (the rules alone: {concluded.verdict.cause}, {lead.summary.rstrip('. ')})"
    return Finding(
        detector=LOG_END,
        cause=weighed.cause,
        severity=Severity.CRITICAL,
        summary=summary,
        since_time=lead.since_time if lead else None,
        confidence=_confidence(weighed),
        evidence=(evidence, *(lead.evidence if lead else ())),
        is_guess=True,
        fingerprint=f"{weighed.cause}{_LIKENESS}",
    )


def _confidence(weighed: Weighed) -> float:
    return round(min(weighed.share, _MOST_SURE), 2)
