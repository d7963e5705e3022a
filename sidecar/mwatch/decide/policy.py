# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""What to do about each cause, as a table. The other modules of `decide` may override it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.model.finding import Finding, Severity

GIVE_UP_EXIT_CODE = 93  # the wrapper exits with it if no restart is wanted

DEATH_DETECTORS = frozenset({"crashed", "finished_early"})
LOOP_DETECTORS = frozenset({"crash_loop", "no_progress"})
"""Detectors that judge past attempts: they turn a restart into a stop."""
_LEVELS = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)


class Proof(StrEnum):
    """The evidence that is required before a finding is acted on."""

    NONE = "none"  # the finding is never acted on
    OWN = "own"  # the finding is the proof: bad numbers do not recover
    DEATH = "death"  # the process is gone. Refuted by training that goes on.
    SILENCE = "silence"  # progress is silent, and an independent witness or a death confirms it


class Resume(StrEnum):
    NONE = "none"
    NEWEST = "newest"
    BEFORE_BAD = "before_bad"  # a rollback: older than the first bad iteration
    BEFORE_FAILED = "before_failed"  # older than the checkpoint that could not be loaded


@dataclass(frozen=True, slots=True)
class CauseRule:
    action: Action
    proof: Proof
    resume: Resume = Resume.NONE
    counts_as_no_progress: bool = True
    """A restart for this cause without progress counts against the job."""
    spends_budget: bool = True
    avoid_node: bool = False
    acts_from: Severity = Severity.CRITICAL
    explains_all: bool = False  # the cause is outside the job and explains all other findings
    fixes_lost: bool = False  # if it removed pods of a gang, the gang has to be restarted


_WATCHED = CauseRule(Action.NONE, Proof.NONE, spends_budget=False)
_OUTSIDE = CauseRule(Action.NONE, Proof.NONE, spends_budget=False, explains_all=True)
_TAKEN = CauseRule(
    Action.NONE, Proof.DEATH, Resume.NEWEST, counts_as_no_progress=False, spends_budget=False,
    explains_all=True, fixes_lost=True,
)  # fmt: skip
_STALL = CauseRule(Action.RESTART, Proof.SILENCE, Resume.NEWEST)
_DEATH = CauseRule(Action.RESTART, Proof.DEATH, Resume.NEWEST)
_END = CauseRule(Action.RESTART, Proof.DEATH, Resume.NEWEST, acts_from=Severity.WARNING)
_ROLLBACK = CauseRule(Action.RESTART, Proof.OWN, Resume.BEFORE_BAD)
_STOP = CauseRule(Action.STOP, Proof.DEATH, spends_budget=False)

RULES: dict[Cause, CauseRule] = {
    **dict.fromkeys((Cause.HANG, Cause.FABRIC, Cause.LOST_POD, Cause.STORAGE), _STALL),
    **dict.fromkeys((Cause.KILLED, Cause.FINISHED_EARLY), _END),
    **dict.fromkeys((Cause.NAN, Cause.LOSS_SCALE_COLLAPSE, Cause.LOSS_SPIKE), _ROLLBACK),
    **dict.fromkeys((Cause.OOM, Cause.USER_ERROR, Cause.DATA), _STOP),
    **dict.fromkeys((Cause.PREEMPTED, Cause.DRAINED, Cause.DELETED_BY_USER), _TAKEN),
    Cause.CRASH: _DEATH,
    Cause.HARDWARE: replace(_STALL, avoid_node=True),
    Cause.RERUN: replace(_END, counts_as_no_progress=False),
    # Each restart tries an older checkpoint, so this ends when no checkpoint is left.
    Cause.CHECKPOINT: replace(_STALL, resume=Resume.BEFORE_FAILED, counts_as_no_progress=False),
    Cause.STARTED_FROM_RANDOM: replace(_STOP, proof=Proof.OWN),
    **dict.fromkeys(
        (Cause.UNSCHEDULABLE, Cause.IMAGE, Cause.VOLUME, Cause.SUSPENDED), _OUTSIDE
    ),
    **dict.fromkeys(
        (
            Cause.HEALTHY, Cause.FINISHED, Cause.RESUME_DIVERGED, Cause.SLOW, Cause.LOSS_STUCK,
            Cause.CHECKPOINT_OVERDUE, Cause.BLIND, Cause.UNKNOWN,
        ),
        _WATCHED,
    ),
}  # fmt: skip


_BY_ITS_END = {
    cause: replace(rule, proof=Proof.DEATH)
    for cause, rule in RULES.items()
    if rule.proof is Proof.OWN
}


def rule_of(finding: Finding) -> CauseRule:
    """Return the rule for the cause of a finding.

    Bad numbers in the iteration lines are proof by themselves. An exception about them may have
    been caught, so it is proven only by the end of its process.
    """
    rules = _BY_ITS_END if finding.detector in DEATH_DETECTORS else RULES
    return rules.get(finding.cause) or RULES[finding.cause]


def level(severity: Severity) -> int:
    return _LEVELS.index(severity)


def acts(cause: Cause, severity: Severity) -> bool:
    rule = RULES[cause]
    return rule.action is not Action.NONE and level(severity) >= level(rule.acts_from)


def breaks_gang(finding: Finding) -> bool:
    """Whether the cluster reports that it removed pods of a gang: the others cannot continue."""
    is_reported = finding.detector == finding.cause.value
    return RULES[finding.cause].fixes_lost and is_reported and finding.cannot_heal
