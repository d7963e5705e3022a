# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Decide once per attempt what to do about the findings. Pure: deciding again changes nothing.

A decision is carried out at `act_at` if it is still the same then. A stall that may recover is
left alone until it has cost as much as a restart of this job. For a crash that only the log shows,
mwatch waits until the next progress would be due, since the traceback may have been caught. A
failure that cannot recover waits only for the backoff.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from mwatch.decide import history, proposals, resume, verdict, witness
from mwatch.decide.policy import (
    DEATH_DETECTORS,
    GIVE_UP_EXIT_CODE,
    LOOP_DETECTORS,
    RULES,
    CauseRule,
    Proof,
    Resume,
    acts,
    breaks_gang,
    rule_of,
)
from mwatch.model.cause import Cause
from mwatch.model.decision import Act, Action, Decision, DecisionRecord, Witness
from mwatch.model.fault import AvoidNode, Blame, RestartHelps, Role
from mwatch.model.finding import LOG_END, CulpritState, Finding, Severity
from mwatch.model.job import Job
from mwatch.model.phase import DeadlineSlot
from mwatch.model.settings import Settings

_MOST_AGAIN = 10  # with a higher exponent the wait would exceed any limit
_WAIT = "and the run may recover by itself: `mwatch restart`, or end it, if you know better"
_UNPROVEN = "not acted on: the log does not prove it, nor show that the run has ended"
_FOR_A_PERSON = frozenset(
    {
        Cause.IMAGE, Cause.VOLUME, Cause.STARTED_FROM_RANDOM, Cause.RESUME_DIVERGED,
        Cause.LOSS_STUCK, Cause.FINISHED_EARLY, Cause.CHECKPOINT_OVERDUE,
    }
)  # fmt: skip
"""Reported, not acted on: a restart changes nothing. A job that waits for nodes stays queued."""
_QUOTED = "not acted on: its lines came all at once, so they may be quoted from another run"
_NO_FIX = "a restart does not fix it"
_BUS_ERROR = "process-bus-error"
_NEVER_WORKED = "this run has never made a step, so its set-up is more likely at fault than chance"
_GUESS = f"not acted on: too little is known of this job to say what silence is usual, {_WAIT}"


class _Case(NamedTuple):
    job: Job
    finding: Finding
    findings: Sequence[Finding]
    record: DecisionRecord
    settings: Settings
    rule: CauseRule
    witnesses: tuple[Witness, ...] = ()
    proof: str = ""

    @property
    def summary(self) -> str:
        return self.finding.summary.rstrip(". ")


def _act_at(case: _Case, *, backoff_seconds: float, lost_iterations: int) -> float:
    """Return when to act, by the state of the job alone: evaluating again does not postpone it."""
    job, finding, settings = case.job, case.finding, case.settings
    since = job.attempt.last_progress if finding.since_time is None else finding.since_time
    # If the attempt is over, count from its end: the first sign of the fault may be hours older.
    earliest = max(since, job.attempt.ended_at or since) + backoff_seconds
    wait = _wait_seconds(case, lost_iterations)
    if wait:
        since = max(job.attempt.waits_since, witness.worked_until(job))
        earliest = max(earliest, since + wait)
    return max(earliest, witness.last_lines_due_at(job, finding, settings) or earliest)


def _wait_seconds(case: _Case, lost: int) -> float:
    """Return how long after the last progress to act; 0 means immediately."""
    job, finding, settings = case.job, case.finding, case.settings
    if witness.is_over(job) or case.rule.proof is Proof.OWN or witness.is_sick(finding):
        return 0.0
    if witness.reports_an_exit(finding) and not witness.is_only_printed(job, finding):
        return witness.usual_seconds(job, settings)
    if not _may_heal(finding):
        return 0.0
    # In any phase: a hang in a late step may recur in the first step after a restart.
    in_vain = sum(act.cause is finding.cause for act in history.fruitless(case.record, job))
    again = settings.act.stalled_again_factor ** min(in_vain, _MOST_AGAIN)
    cost = _restart_seconds(job, lost, settings) * again
    return min(max(cost, finding.may_take_seconds), settings.act.max_stall_seconds)


def _may_heal(finding: Finding) -> bool:
    """Whether the job may recover by itself; a rank that has not joined may be loading its data."""
    is_late = finding.culprit is not None and finding.culprit.state is CulpritState.NEVER_JOINED
    return is_late or not finding.cannot_heal


def _is_open_stall(case: _Case) -> bool:
    """Whether there is only silence: no process has died, and the run may recover by itself."""
    job, finding = case.job, case.finding
    if witness.gone_times(job) or witness.is_over(job) or witness.is_sick(finding):
        return False
    if witness.is_stopped(job, case.settings):
        return False
    is_end = witness.reports_an_exit(finding) or finding.detector in DEATH_DETECTORS
    has_ended = is_end and not witness.is_only_printed(job, finding)
    return case.rule.proof is not Proof.OWN and not has_ended and _may_heal(finding)


def _restart_seconds(job: Job, lost: int, settings: Settings) -> float:
    """Return the measured cost of a restart, corrected for the steps that this one would lose."""
    learnt = job.calibration
    again = lost * (learnt.step_median() or 0.0) - (learnt.recomputed.median() or 0.0)
    cost = learnt.restart_cost(settings) + max(0.0, again) + _hidden_load_seconds(job)
    return cost * settings.act.stall_factor


def _hidden_load_seconds(job: Job) -> float:
    """Estimate the load time from a save, for a job that has not loaded a checkpoint yet."""
    durations = job.calibration.durations
    if durations[DeadlineSlot.LOADING]:
        return 0.0
    first = durations[DeadlineSlot.FIRST_SAVE].median()
    return first or durations[DeadlineSlot.SAVING].median() or 0.0


def in_a_row(job: Job, record: DecisionRecord) -> int:
    """Count the preceding reruns in a row that Megatron asked for (exit 16) at this iteration."""
    count = 0
    now = history.reached(job, record)
    for act in reversed(history.restarts(record)):
        has_moved = now is not None and act.iteration is not None and now > act.iteration
        if act.cause is not Cause.RERUN or has_moved:
            break
        count += 1
    return count


def record_action(record: DecisionRecord, decision: Decision, job: Job, at: float) -> Act:
    """Append the action to `record`, at most once per attempt; later calls return the first one."""
    before = record.of_attempt(decision.attempt)
    if before is not None:
        return before
    finding = decision.finding
    goes_back = (
        decision.action is Action.RESTART
        and finding is not None
        and RULES[decision.cause].resume is Resume.BEFORE_BAD
    )
    act = Act(
        at=at,
        attempt=decision.attempt,
        action=decision.action,
        cause=decision.cause,
        fingerprint=decision.cause.value if finding is None else history.fingerprint(finding),
        resume_from=decision.resume_from,
        iteration=history.reached(job, record),
        spends_budget=decision.spends_budget,
        first_bad=resume.first_bad(job, finding) if finding and goes_back else None,
        quarantine_from=decision.quarantine_from,
    )
    record.acts.append(act)
    return act


def decide(
    job: Job, findings: Sequence[Finding], record: DecisionRecord, settings: Settings
) -> Decision:
    """Act on the highest-ranked finding that calls for it; if none does, watch the first one."""
    candidates = verdict.ranked(job, findings)
    done = record.of_attempt(job.attempt.number)
    if done is not None:
        about = next((each for each in candidates if each.cause is done.cause), None)
        reason = f"already decided for attempt {done.attempt}: {done.action}"
        return _nothing(job, done.cause, reason, about)
    if not candidates:
        return _nothing(job, *verdict.judge_quiet(job))
    decisions = []
    for finding in candidates:
        case = _Case(job, finding, findings, record, settings, rule_of(finding))
        decision = _about(case)
        if decision.action is not Action.NONE or case.rule.explains_all:
            return decision
        decisions.append(decision)
    return decisions[0]


def advise(
    job: Job,
    finding: Finding,
    findings: Sequence[Finding],
    settings: Settings,
    *,
    has_worked: bool = False,
    preferred: Action | None = None,
) -> Decision | None:
    """Return what a person should do about a finding of a recorded log that mwatch does not act on.

    None means nothing. `has_worked`: a counter increased in lines that no recogniser reads.
    `preferred`: the action, if it is known better than the cause implies.
    """
    if preferred is Action.NONE:
        return None
    rule = rule_of(finding)
    case = _Case(job, finding, findings, DecisionRecord(), settings, rule, (), _UNPROVEN)
    is_spike = finding.cause is Cause.LOSS_SPIKE
    entry = job.catalogue.get(finding.fault or "")
    never_fits = finding.cause is Cause.UNSCHEDULABLE and entry and entry.fails_again
    gets_worse = finding.cause is Cause.SLOW and finding.comes_again
    is_for_a_person = finding.cause in _FOR_A_PERSON or never_fits or gets_worse
    if preferred is Action.RESTART:
        advised = _restart(case)
    elif preferred is Action.STOP or is_for_a_person or is_spike:
        advised = _stop(case, _NO_FIX)
    elif finding.cause is Cause.DRAINED:
        advised = _restart(case)
    elif rule.action is Action.NONE:
        return None
    elif not has_worked and _stood_from_the_start(case):
        advised = _stop(case, _NEVER_WORKED)
    else:
        advised = _stopped(case) or _restart(case)
    return replace(advised, is_advice=True, act_at=None)


def _nothing(
    job: Job,
    cause: Cause,
    reason: str,
    finding: Finding | None = None,
    witnesses: tuple[Witness, ...] = (),
) -> Decision:
    number = job.attempt.number
    return Decision(
        Action.NONE,
        cause,
        number,
        reason,
        finding=finding,
        witnesses=witnesses,
        spends_budget=False,
    )


def _about(case: _Case) -> Decision:
    job, finding, rule = case.job, case.finding, case.rule
    if not breaks_gang(finding) and not acts(finding.cause, finding.severity):
        is_never = rule.action is Action.NONE
        why = (
            "shown, never acted on" if is_never else f"a {finding.severity} is shown, not acted on"
        )
        return _nothing(job, finding.cause, f"{finding.cause}: {why}", finding)
    if finding.is_guess and finding.detector == LOG_END:
        return _nothing(job, finding.cause, _UNPROVEN, finding)
    if rule.proof is not Proof.OWN and _came_after_the_end(case):
        reason = f"{verdict.judge_quiet(job).reason}; what came after it does not matter"
        return _nothing(job, Cause.FINISHED, reason, finding)
    if (may_be := witness.may_be_done(job, finding)) is not None:
        reason = f"not acted on: {may_be}, and its last lines may be late"
        return _nothing(job, finding.cause, reason, finding)
    if rule.proof is Proof.OWN and witness.may_be_quoted(job):
        return _nothing(job, finding.cause, _QUOTED, finding)
    judged = witness.judge(job, finding, case.findings, case.settings)
    if not judged.is_proven:
        return _nothing(job, finding.cause, judged.reason, finding, judged.witnesses)
    case = case._replace(witnesses=judged.witnesses, proof=judged.reason)
    if finding.is_guess and _is_open_stall(case):
        return _nothing(job, finding.cause, _GUESS, finding, judged.witnesses)
    if _gave_up(job):
        return _stop(case, f"the wrapper gave up (exit code {GIVE_UP_EXIT_CODE})")
    if finding.cause is Cause.STARTED_FROM_RANDOM:
        return _from_random(case)
    return _stopped(case) or _too_dear(case) or _restart(case)


def _stopped(case: _Case) -> Decision | None:
    """Return a stop if a restart would fail again or help only by chance; None if it may help."""
    is_stop = case.rule.action is Action.STOP and not _is_passing(case)
    if is_stop or case.finding.comes_again or _is_futile(case):
        return _stop(case, _NO_FIX)
    return _stop(case, _NEVER_WORKED) if _is_set_up_fault(case) else None


def _is_passing(case: _Case) -> bool:
    """Whether the data source failed temporarily: the run has read from it before."""
    entry = case.job.catalogue.get(case.finding.fault or "")
    is_outside = entry is not None and entry.restart_helps is RestartHelps.MAYBE
    is_data = case.finding.cause is Cause.DATA
    return is_data and is_outside and not resume.has_never_worked(case.job)


def _is_futile(case: _Case) -> bool:
    """Whether a restart fails again according to the catalogue, and no other checkpoint would help.

    If one checkpoint does not fit the user's model, no other of the run does. If one is damaged,
    an older one may be good.
    """
    entry = case.job.catalogue.get(case.finding.fault or "")
    if entry is None or entry.role is not Role.ROOT:
        return False
    is_same = case.rule.resume is Resume.BEFORE_FAILED and entry.blame is Blame.USER
    is_newest = case.rule.resume is Resume.NEWEST
    return (is_same or is_newest) and entry.fails_again


def _is_set_up_fault(case: _Case) -> bool:
    """Whether a run that has never worked has a fault that a restart would fix only by chance.

    Such faults are those of the network, the node, shared memory or the kernels of the user's code.
    """
    job, finding = case.job, case.finding
    if not resume.has_never_worked(job):
        return False
    entry = job.catalogue.get(finding.fault or "")
    if entry is None:
        return "SIGBUS" in finding.fingerprint
    # An XID is about one GPU: avoid its node. It says nothing about the set-up of the job.
    is_of_code = entry.blame is Blame.USER and finding.cause is Cause.CRASH
    is_ours = entry.xid is None and (entry.blame is Blame.NODE or is_of_code)
    is_set_up = finding.cause is Cause.FABRIC or is_ours or entry.id == _BUS_ERROR
    return is_set_up and entry.restart_helps is RestartHelps.MAYBE


def _stood_from_the_start(case: _Case) -> bool:
    """Whether the run hung before its first step.

    If the log is an excerpt, steps may have come before a collective time-out it shows.
    """
    job, finding = case.job, case.finding
    is_whole = any(stream.printed_at_start for stream in job.streams.values())
    is_excerpt = finding.fault in witness.TIMEOUT_FAULTS and not is_whole
    is_hang = finding.cause is Cause.HANG and not is_excerpt
    return is_hang and resume.has_never_worked(job)


def _came_after_the_end(case: _Case) -> bool:
    """Whether a process died after training was finished and saved, which needs no action.

    A hang at the end does need one, because it still holds the GPUs. So does a recorded log that
    ends with the failure of the last save: the result is lost.
    """
    if case.finding.detector == LOG_END:
        return False
    is_death = case.rule.proof is Proof.DEATH or witness.is_over(case.job)
    if not is_death or not verdict.is_finished(case.job):
        return False
    return case.job.attempt.is_done or case.finding.cause is not Cause.FINISHED_EARLY


def _gave_up(job: Job) -> bool:
    codes = [gone.exit.exit_code for gone in job.attempt.gone.values()]
    errors = (seen for seen in job.attempt.errors if not job.has_wrapper(seen.stream))
    codes += [seen.error.exit_code for seen in errors]
    return GIVE_UP_EXIT_CODE in codes


def _stop(case: _Case, reason: str, proposal: str | None = None) -> Decision:
    first = case.settings.act.backoff_first_seconds
    return Decision(
        Action.STOP,
        case.finding.cause,
        case.job.attempt.number,
        f"{case.summary}: {reason}",
        act_at=_act_at(case, backoff_seconds=first, lost_iterations=0),
        finding=case.finding,
        witnesses=case.witnesses,
        spends_budget=False,
        proposal=proposal or proposals.after_stop(case.job, case.finding, case.settings),
    )


def _from_random(case: _Case) -> Decision:
    better = resume.older_than_attempt(case.job)
    if better.iteration is None:
        return _nothing(case.job, case.finding.cause, better.reason, case.finding)
    proposal = f"fix the load path and resume from checkpoint {better.iteration}"
    return _stop(case, f"it trains random weights while {better.reason}", proposal)


def _restart(case: _Case) -> Decision:
    job, settings = case.job, case.settings
    if case.rule.resume is Resume.BEFORE_BAD:
        again = resume.rollback_refusal(job, case.record, case.finding, settings)
        if again is not None:
            return _stop(case, again, resume.proposal(job, case.finding, settings))
    choice = _choice(case)
    refused = _refusal(case, choice)
    if refused is not None:
        return _stop(case, refused)
    backoff = history.backoff_seconds(case.record, job.now, settings.act)
    lost = max(0, (job.attempt.iteration or 0) - (choice.iteration or 0))
    is_step_back = case.rule.resume in (Resume.BEFORE_BAD, Resume.BEFORE_FAILED)
    due = _act_at(case, backoff_seconds=backoff, lost_iterations=lost)
    return Decision(
        Action.RESTART,
        case.finding.cause,
        job.attempt.number,
        f"{case.summary}: {case.proof}",
        resume_from=choice.iteration,
        resume_reason=choice.reason,
        act_at=max(due, _save_awaited_until(case, choice)),
        finding=case.finding,
        witnesses=case.witnesses,
        quarantine_from=(choice.iteration or 0) + 1 if is_step_back else None,
        avoid_node=_avoids_node(case),
        spends_budget=case.rule.spends_budget,
    )


def _too_dear(case: _Case) -> Decision | None:
    """Refuse to restart for a stall that may recover if that loses all work; None: allowed."""
    done = case.job.attempt.iteration
    if not done or case.settings.act.restart_stalled_from_beginning or not _is_open_stall(case):
        return None
    choice = _choice(case)
    if choice.iteration is not None:
        return None
    reason = f"not acted on: {choice.reason}, so a restart loses all {done} iterations, {_WAIT}"
    return _nothing(case.job, case.finding.cause, reason, case.finding, case.witnesses)


def _save_awaited_until(case: _Case, choice: resume.ResumeChoice) -> float:
    """Return until when to wait for an asynchronous save newer than the chosen checkpoint.

    The wait is at most the time that repeating the steps between the two would take; 0: no such
    save is under way.
    """
    job, save = case.job, case.job.attempt.save
    if case.rule.resume is not Resume.BEFORE_BAD or save is None or save.queued_at is None:
        return 0.0
    before = resume.goes_back_before(job, case.finding, case.settings)
    spared = (save.iteration or 0) - (choice.iteration or 0)
    if spared <= 0 or (save.iteration or 0) >= before:
        return 0.0
    return save.queued_at + spared * (job.calibration.step_median() or 0.0)


def _choice(case: _Case) -> resume.ResumeChoice:
    bad = resume.first_bad(case.job, case.finding)
    is_rerun = case.finding.cause is Cause.RERUN
    if case.rule.resume is Resume.BEFORE_BAD or (
        is_rerun and case.job.attempt.resumed_from and resume.was_good_before(case.job, bad)
    ):
        return resume.target(case.job, case.finding, case.settings)
    if case.rule.resume is Resume.BEFORE_FAILED:
        return resume.before_failed(case.job)
    return resume.choose(case.job, before=None)


def _refusal(case: _Case, choice: resume.ResumeChoice) -> str | None:
    job, record, limits = case.job, case.record, case.settings.act
    reasons = [choice.reason if choice.nothing_complete else None]
    if case.rule.resume is Resume.BEFORE_BAD and choice.nothing_known:
        reasons.append("the newest checkpoint may hold the bad numbers, and no older one is known")
    if case.finding.cause is Cause.RERUN:
        asked = in_a_row(job, record) + 1
        text = f"Megatron asked {asked} times in a row to be resumed at the same place (exit 16)"
        # If bad numbers recur on another GPU, the data or the weights cause them.
        most = 1 if verdict.stumbled_over(job) is Cause.NAN else limits.max_reruns
        reasons.append(text if asked > most else None)
    if case.rule.counts_as_no_progress:
        loops = (each for each in case.findings if each.detector in LOOP_DETECTORS)
        reasons += [each.summary for each in loops if each.severity is Severity.CRITICAL]
        reasons.append(history.repeated_failure_refusal(record, job, case.finding, limits))
        reasons.append(history.no_progress_refusal(record, job, limits))
    if case.rule.spends_budget:
        reasons.append(history.budget_refusal(record, job, limits))
    return next((reason for reason in reasons if reason is not None), None)


def _avoids_node(case: _Case) -> bool:
    """Whether to avoid the node: it is broken, even if the finding acted on is another."""
    job = case.job
    critical = (each for each in case.findings if each.severity is Severity.CRITICAL)
    sick = any(RULES[each.cause].avoid_node for each in critical)
    entry = job.catalogue.get(case.finding.fault or "")
    is_reported = entry is not None and entry.avoid_node is AvoidNode.YES
    is_asked = case.finding.cause is Cause.RERUN and in_a_row(job, case.record) > 0
    return sick or is_reported or is_asked
