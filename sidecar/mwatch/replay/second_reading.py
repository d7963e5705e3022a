# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Weigh what the rules found in a recorded log against the classifier's reading of its text.

Detectors and the catalogue come first. A classifier then reads the last lines, and an arbiter,
trained on logs that neither was developed on, weighs both; `overruling` defines when the rules give
way. The result is shown to the user and never acted on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from mwatch import classifier
from mwatch.classifier.arbiter import Arbiter, RulesFound, Weighed
from mwatch.classifier.classifier import Classifier
from mwatch.decide.decide import advise
from mwatch.detect.shared.attempts import crashed_alike
from mwatch.engine.engine import Engine
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.fault import RestartHelps
from mwatch.model.finding import LOG_END, Evidence, Finding, Severity, Verdict
from mwatch.model.job import Job
from mwatch.parse.formats.exceptions import TIDIES_UP
from mwatch.replay.log_end import last_lines
from mwatch.replay.overruling import (
    BEYOND_DOUBT,
    WELL,
    are_few,
    is_excerpt,
    last_trouble,
    overrules,
)
from mwatch.report.conclusion import RunConclusion

_WEIGHTS = Path(classifier.__file__).with_name("weights.bin")
_STOPS = 0.2
"""Lead that `stop` needs over the action of the rules to be advised."""
_ACTS = 0.65
"""Lead that an action needs over no action, for causes where no action may be right."""
_TRACEBACK = "Traceback (most recent call last):"
_TIDIES_UP = re.compile(rf"\bin (?:{'|'.join(sorted(TIDIES_UP))})$")
_QUOTED = 160
_LIKENESS = "/likeness"
_NOTHING_TO_DO = "the excerpt shows nothing to act on"
_ONLY_WORDS = "only the wording of the log suggests it"
_NONE_IS_RIGHT = frozenset(
    {
        Cause.SLOW, Cause.LOSS_SPIKE, Cause.UNSCHEDULABLE, Cause.PREEMPTED, Cause.DRAINED,
        Cause.SUSPENDED, Cause.DELETED_BY_USER, Cause.FINISHED_EARLY, Cause.UNKNOWN,
    }
)  # fmt: skip
"""Causes that may need no action, or action by someone outside the run."""
_ACTIONS = {
    cause: (Action.NONE,) if cause in WELL else (Action.RESTART, Action.STOP)
    for cause in Cause
    if cause not in _NONE_IS_RIGHT
}
_MAY_PASS = frozenset({Cause.KILLED, Cause.PREEMPTED, Cause.DRAINED, Cause.LOST_POD})
"""Causes from outside the run: the text of its log does not show whether they will recur."""
_HARDLY = "a restart is unlikely to fix it"
_CAME_AGAIN = "logs like this one are of failures that come again after a restart"
_USELESS = "a restart does not help against it"
_ALIKE = "several processes crashed alike, so no GPU or node is to blame"
_MOST_SURE = 0.9
"""Upper limit of the confidence. On logs not used in training, more than this share of the verdicts
weighed as certain were right."""


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
    """Return the conclusion after the classifier has read the last lines, unchanged if it adds
    nothing.

    `tails`: the ends of all files, which have `line_counts` lines; `has_worked`: a step count rose
    in a format that no recogniser reads.
    """
    rules = found_by_rules(concluded)
    lines = [
        Evidence(file, number, text.strip())
        for file, tail in tails.items()
        for number, text in _that_count(last_lines(tail, line_counts.get(file, 0)))
    ]
    texts = [each.text for each in lines]
    reading = None
    if not are_few(texts) or rules.cause is Cause.UNKNOWN:
        reading = packaged().read(texts)
    if reading is None or rules.cause not in reading.causes:
        return _stopped(concluded, engine, None, has_worked=has_worked)
    weighed = _arbiter().weigh(rules, reading, _ACTIONS)
    if not overrules(weighed, rules, concluded.decision, engine.job, texts):
        return _stopped(
            concluded, engine, weighed, has_worked=has_worked, is_excerpt=is_excerpt(texts)
        )
    evidence = lines[reading.line_for(weighed.cause, rules.cause)]
    others = tuple(each for each in concluded.findings if each.detector != LOG_END)
    if weighed.cause in WELL:
        trouble, goes_on = last_trouble(texts)
        shown = _quoted(evidence.text)
        if weighed.cause is Cause.HEALTHY and trouble is not None and goes_on:
            shown = f"steps follow its last suspicious line ({_quoted(texts[trouble])})"
        return _well(weighed, shown, concluded, others)
    finding = _finding(weighed, evidence, concluded)
    advised = advise(
        engine.job,
        finding,
        others,
        engine.settings,
        has_worked=has_worked,
        preferred=_preferred(weighed),
    )
    verdict = Verdict(
        finding.cause,
        finding.summary,
        since_time=finding.since_time,
        confidence=finding.confidence,
    )
    decided = advised or _no_action(finding.cause, concluded, _ONLY_WORDS, finding)
    return RunConclusion(verdict, decided, None, (finding, *others))


def _preferred(weighed: Weighed) -> Action:
    """Return the weighed action; where no action may be right, any other must lead clearly."""
    may_be_right = weighed.cause in _NONE_IS_RIGHT
    return Action.NONE if may_be_right and weighed.over_nothing < _ACTS else weighed.action


def found_by_rules(concluded: RunConclusion) -> RulesFound:
    if concluded.verdict.cause is Cause.BLIND:  # the text of a log may show more than its steps
        return RulesFound(Cause.UNKNOWN, Action.NONE, "none", 0.0, frozenset())
    return RulesFound(
        concluded.verdict.cause,
        concluded.decision.action,
        _source(concluded.decision.finding),
        concluded.verdict.confidence or 0.0,
        frozenset((each.detector, each.cause) for each in concluded.findings),
    )


def _that_count(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the lines, without tracebacks raised in clean-up code at process exit."""
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


def _stopped(
    concluded: RunConclusion,
    engine: Engine,
    weighed: Weighed | None,
    *,
    has_worked: bool,
    is_excerpt: bool = False,
) -> RunConclusion:
    """Advise `stop` where the cause stands but the failure is expected to recur."""
    decided, lead = concluded.decision, concluded.decision.finding
    if lead is None or decided.action is Action.STOP or decided.cause in _MAY_PASS | WELL:
        return concluded
    if engine.job.attempt.is_finished:
        return concluded
    why = _CAME_AGAIN if weighed is not None and weighed.stops >= _STOPS else None
    is_certain = is_excerpt and weighed is not None and weighed.stops >= BEYOND_DOUBT
    if decided.action is Action.RESTART:
        # A run that made progress once, in this attempt or an earlier one, may do so again.
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
    """Return why the failure will recur, as shown by several processes or the fault catalogue;
    None: unknown."""
    if crashed_alike(job, lead):
        return _ALIKE
    entry = job.catalogue.get(lead.fault or "")
    return _USELESS if entry is not None and entry.fails_again else None


def _well(
    weighed: Weighed, evidence: str, concluded: RunConclusion, others: tuple[Finding, ...]
) -> RunConclusion:
    run = "run that ended as planned" if weighed.cause is Cause.FINISHED else "healthy run"
    text = f"the excerpt reads like the log of a {run}: {evidence}"
    if concluded.verdict.cause is Cause.UNKNOWN:
        text += f"; {concluded.verdict.summary}"
    verdict = Verdict(weighed.cause, text, confidence=_confidence(weighed))
    return RunConclusion(
        verdict, _no_action(weighed.cause, concluded, _NOTHING_TO_DO, None), None, others
    )


def _no_action(
    cause: Cause, concluded: RunConclusion, reason: str, finding: Finding | None
) -> Decision:
    attempt = concluded.decision.attempt
    return Decision(Action.NONE, cause, attempt, reason, finding=finding, spends_budget=False)


def _finding(weighed: Weighed, evidence: Evidence, concluded: RunConclusion) -> Finding:
    lead = concluded.decision.finding
    summary = f"The log resembles others with this cause: {_quoted(evidence.text)}"
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


def _quoted(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."


def _confidence(weighed: Weighed) -> float:
    return round(min(weighed.share, _MOST_SURE), 2)
