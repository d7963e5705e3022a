# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Findings and history in, one decision out. Pure: deciding again changes nothing.

An attempt gets one action. What is decided here is carried out at `act_at`, if the same is still
decided then; `enact` writes it down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mwatch.decide import (
    budget,
    fingerprint,
    late_words,
    patience,
    primary,
    proposals,
    quiet,
    rerun,
    resume,
    rollback,
    silence,
    witness,
)
from mwatch.decide.enact import enact
from mwatch.decide.policy import (
    GIVE_UP_EXIT_CODE,
    LOOP_DETECTORS,
    RULES,
    Proof,
    Resume,
    Rule,
    acts,
    breaks_gang,
)
from mwatch.model.decision import Action, Decision, Record, Witness
from mwatch.model.fault import AvoidNode
from mwatch.model.finding import Cause, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.settings import Settings

__all__ = ["decide", "enact"]


class _Case(NamedTuple):
    job: Job
    finding: Finding
    findings: Sequence[Finding]
    record: Record
    settings: Settings
    rule: Rule
    witnesses: tuple[Witness, ...] = ()
    proof: str = ""


def decide(job: Job, findings: Sequence[Finding], record: Record, settings: Settings) -> Decision:
    """The first finding, by rank, that calls for an action; else the first one, watched."""
    candidates = primary.ranked(job, findings)
    done = record.of_attempt(job.attempt.number)
    if done is not None:
        about = next((each for each in candidates if each.cause is done.cause), None)
        reason = f"already decided for attempt {done.attempt}: {done.action}"
        return _nothing(job, done.cause, reason, about)
    if not candidates:
        return _nothing(job, *quiet.judge(job))
    decisions = []
    for finding in candidates:
        case = _Case(job, finding, findings, record, settings, RULES[finding.cause])
        decision = _about(case)
        if decision.action is not Action.NONE or case.rule.explains_all:
            return decision
        decisions.append(decision)
    return decisions[0]


def _nothing(
    job: Job,
    cause: Cause,
    reason: str,
    finding: Finding | None = None,
    witnesses: tuple[Witness, ...] = (),
) -> Decision:
    return Decision(
        Action.NONE,
        cause,
        job.attempt.number,
        reason,
        finding=finding,
        witnesses=witnesses,
        spends_budget=False,
    )


def _about(case: _Case) -> Decision:
    job, finding, rule = case.job, case.finding, case.rule
    if not breaks_gang(finding) and not acts(finding.cause, finding.severity):
        return _nothing(job, finding.cause, _why_watched(case), finding)
    if rule.proof is not Proof.OWN and _came_after_the_end(case):
        reason = f"{quiet.judge(job).reason}; what came after it does not matter"
        return _nothing(job, Cause.FINISHED, reason, finding)
    if (may_be := late_words.may_be_done(job, finding)) is not None:
        reason = f"not acted on: {may_be}, and its last lines may be late"
        return _nothing(job, finding.cause, reason, finding)
    judged = witness.judge(job, finding, case.findings, case.settings)
    if not judged.is_proven:
        return _nothing(job, finding.cause, judged.reason, finding, judged.witnesses)
    case = case._replace(witnesses=judged.witnesses, proof=judged.reason)
    if _gave_up(job):
        return _stop(case, f"the wrapper gave up (exit code {GIVE_UP_EXIT_CODE})")
    if finding.cause is Cause.STARTED_FROM_RANDOM:
        return _from_random(case)
    if rule.action is Action.STOP:
        return _stop(case, "a restart does not mend it")
    return _restart(case)


def _why_watched(case: _Case) -> str:
    if case.rule.action is Action.NONE:
        return f"{case.finding.cause}: shown, never acted on"
    return f"{case.finding.cause}: a {case.finding.severity} is shown, not acted on"


def _came_after_the_end(case: _Case) -> bool:
    """A hang at the end still holds the GPUs; a death after it holds nothing."""
    is_death = case.rule.proof is Proof.DEATH or silence.is_over(case.job)
    if not is_death or not quiet.is_finished(case.job):
        return False
    return case.job.attempt.is_done or case.finding.cause is not Cause.FINISHED_EARLY


def _gave_up(job: Job) -> bool:
    codes = [gone.exit.exit_code for gone in job.attempt.gone.values()]
    codes += [seen.error.exit_code for seen in job.attempt.errors]
    return GIVE_UP_EXIT_CODE in codes


def _summary(case: _Case) -> str:
    return case.finding.summary.rstrip(". ")


def _stop(case: _Case, reason: str, proposal: str | None = None) -> Decision:
    at = patience.act_at(
        case.job,
        case.finding,
        case.settings,
        backoff_seconds=case.settings.act.backoff_first_seconds,
        lost_iterations=0,
    )
    return Decision(
        Action.STOP,
        case.finding.cause,
        case.job.attempt.number,
        f"{_summary(case)}: {reason}",
        act_at=at,
        finding=case.finding,
        witnesses=case.witnesses,
        spends_budget=False,
        proposal=proposal or proposals.after_stop(case.job, case.finding, case.settings),
    )


def _from_random(case: _Case) -> Decision:
    better = resume.older_than_attempt(case.job)
    if better.iteration is None:
        return _nothing(case.job, case.finding.cause, better.reason, case.finding)
    return _stop(
        case,
        f"it trains random weights while {better.reason}",
        f"mend the load path and resume from checkpoint {better.iteration}",
    )


def _restart(case: _Case) -> Decision:
    job, settings = case.job, case.settings
    if case.rule.resume is Resume.BEFORE_BAD:
        again = rollback.refusal(job, case.record, case.finding, settings)
        if again is not None:
            return _stop(case, again, rollback.proposal(job, case.finding, settings))
    choice = _choice(case)
    refused = _refusal(case, choice)
    if refused is not None:
        return _stop(case, refused)
    at = patience.act_at(
        job,
        case.finding,
        settings,
        backoff_seconds=budget.backoff_seconds(case.record, job.now, settings.act),
        lost_iterations=max(0, (job.attempt.iteration or 0) - (choice.iteration or 0)),
    )
    is_step_back = case.rule.resume in (Resume.BEFORE_BAD, Resume.BEFORE_FAILED)
    return Decision(
        Action.RESTART,
        case.finding.cause,
        job.attempt.number,
        f"{_summary(case)}: {case.proof}",
        resume_from=choice.iteration,
        resume_reason=choice.reason,
        act_at=at,
        finding=case.finding,
        witnesses=case.witnesses,
        quarantine_from=(choice.iteration or 0) + 1 if is_step_back else None,
        avoid_node=_avoids_node(case),
        spends_budget=case.rule.spends_budget,
    )


def _choice(case: _Case) -> resume.Choice:
    bad = rollback.first_bad(case.job, case.finding)
    is_rerun = case.finding.cause is Cause.RERUN
    if case.rule.resume is Resume.BEFORE_BAD or (
        is_rerun and case.job.attempt.resumed_from and rollback.was_good_before(case.job, bad)
    ):
        return rollback.target(case.job, case.finding, case.settings)
    if case.rule.resume is Resume.BEFORE_FAILED:
        return resume.before_failed(case.job)
    return resume.choose(case.job, before=None)


def _refusal(case: _Case, choice: resume.Choice) -> str | None:
    """The first reason why a restart is not to be."""
    job, record, limits = case.job, case.record, case.settings.act
    reasons = [choice.reason if choice.nothing_complete else None]
    if case.finding.cause is Cause.RERUN:
        reasons.append(rerun.refusal(job, record, limits))
    if case.rule.counts_as_no_progress:
        reasons.append(_loop(case.findings))
        reasons.append(fingerprint.refusal(record, job, case.finding, limits))
        reasons.append(budget.no_progress(record, job, limits))
    if case.rule.spends_budget:
        reasons.append(budget.refusal(record, job, limits))
    return next((reason for reason in reasons if reason is not None), None)


def _loop(findings: Sequence[Finding]) -> str | None:
    """What the detectors of loops say of attempts that mwatch did not start."""
    for finding in findings:
        if finding.detector in LOOP_DETECTORS and finding.severity is Severity.CRITICAL:
            return finding.summary
    return None


def _avoids_node(case: _Case) -> bool:
    """A sick node is left alone whatever else went wrong on it."""
    job = case.job
    sick = any(
        RULES[each.cause].avoid_node and each.severity is Severity.CRITICAL
        for each in case.findings
    )
    entry = job.catalogue.get(case.finding.fault or "")
    is_told = entry is not None and entry.avoid_node is AvoidNode.YES
    is_asked = case.finding.cause is Cause.RERUN and rerun.in_a_row(job, case.record) > 0
    return sick or is_told or is_asked
