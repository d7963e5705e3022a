# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""When the second reading of a saved log replaces what the rules found."""

from __future__ import annotations

import pytest

from mwatch.classifier.arbiter import RulesFound, Weighed
from mwatch.model.cause import Cause
from mwatch.model.decision import Action, Decision
from mwatch.model.finding import LOG_END, Finding, Severity
from mwatch.replay.overruling import are_few, is_excerpt, last_trouble, overrules
from support.builders.job import job

WORDS = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india"]
WARNING = "WARNING: something odd"
STEP = "step {}/90 loss 2.{}"
STEPS = [STEP.format(n, n) for n in range(3)]
NOTHING = RulesFound(Cause.UNKNOWN, Action.NONE, "none", 0.0, frozenset())


def judged(
    cause: Cause,
    lines: list[str],
    lead: float = 0.95,
    *,
    rules: RulesFound = NOTHING,
    finding: Finding | None = None,
    resume_from: int | None = None,
) -> bool:
    weighed = Weighed(cause, Action.STOP, lead, 0.0, 0.0, 0.0)
    decided = Decision(
        rules.action, rules.cause, 1, "reason", resume_from=resume_from, finding=finding
    )
    return overrules(weighed, rules, decided, job(), lines)


def found(cause: Cause, detector: str = LOG_END, *, is_guess: bool = False) -> Finding:
    return Finding(detector, cause, Severity.CRITICAL, "It died.", is_guess=is_guess)


def rules_of(finding: Finding) -> RulesFound:
    source = f"{finding.detector}{'?' * finding.is_guess}"
    return RulesFound(finding.cause, Action.RESTART, source, 0.6, frozenset())


def test_a_reading_must_lead_clearly_and_beyond_doubt_in_a_few_lines() -> None:
    assert judged(Cause.OOM, WORDS, 0.4)
    assert not judged(Cause.OOM, WORDS, 0.2)
    assert not judged(Cause.OOM, WORDS[:3], 0.4)
    assert judged(Cause.OOM, WORDS[:3], 0.9)


def test_lines_that_differ_in_numbers_only_are_few() -> None:
    assert are_few([f"retry {n} of 99" for n in range(50)])
    assert not are_few(WORDS)


def test_a_run_is_healthy_only_if_something_looks_like_trouble_and_is_none() -> None:
    assert judged(Cause.HEALTHY, [*WORDS, WARNING, *STEPS])
    assert judged(Cause.HEALTHY, [*WORDS, *STEPS, WARNING])
    crash = found(Cause.CRASH, is_guess=True)
    rules = rules_of(crash)
    assert judged(Cause.HEALTHY, [*WORDS, WARNING, *STEPS], rules=rules, finding=crash)
    assert not judged(Cause.HEALTHY, [*WORDS, *STEPS, WARNING], rules=rules, finding=crash)
    assert not judged(Cause.HEALTHY, [*WORDS, *STEPS]), "it may stand still by now"
    zero = [f"step {n}/90 loss: 0.0" for n in range(4)]
    assert judged(Cause.HEALTHY, [*WORDS, *zero]), "a loss of 0 looks like trouble"


def test_what_steps_follow_did_not_end_the_run() -> None:
    assert judged(Cause.OOM, [*WORDS, WARNING])
    assert not judged(Cause.OOM, [*WORDS, WARNING, *STEPS])
    assert judged(Cause.SLOW, [*WORDS, WARNING, *STEPS])


def test_a_run_has_finished_only_if_its_last_lines_say_so() -> None:
    assert judged(Cause.FINISHED, [*WORDS, *STEPS, "all epochs done"])
    assert not judged(Cause.FINISHED, [*WORDS, "all epochs done", *STEPS])


def test_a_run_that_left_with_exit_code_0_does_not_hang() -> None:
    assert judged(Cause.HANG, WORDS)
    assert not judged(Cause.HANG, [*WORDS, "EXIT_CODE=0"])
    assert judged(Cause.HANG, [*WORDS, "exit code 01a"])


@pytest.mark.parametrize(
    ("finding", "lead", "gives_way"),
    [
        (found(Cause.CRASH), 0.4, True),
        (found(Cause.CRASH, "crashed"), 0.4, False),
        (found(Cause.CRASH, "crashed"), 0.9, True),
        (found(Cause.USER_ERROR), 0.99, False),
        (found(Cause.USER_ERROR, is_guess=True), 0.4, True),
    ],
)
def test_how_well_a_rule_knows_decides_how_easily_it_gives_way(
    finding: Finding, lead: float, gives_way: bool
) -> None:
    rules = rules_of(finding)
    assert judged(Cause.OOM, WORDS, lead, rules=rules, finding=finding) is gives_way


def test_in_a_whole_log_a_detector_is_never_overruled() -> None:
    finding = found(Cause.CRASH, "crashed")
    whole = [f"{a} {b}" for a in WORDS for b in [*WORDS, *WORDS]]
    assert not is_excerpt(whole) and is_excerpt(WORDS)
    assert not judged(Cause.OOM, whole, 0.99, rules=rules_of(finding), finding=finding)


def test_a_decision_for_a_known_checkpoint_stands() -> None:
    finding = found(Cause.CRASH)
    rules = rules_of(finding)
    assert not judged(Cause.OOM, WORDS, 0.99, rules=rules, finding=finding, resume_from=40)


def test_a_jump_of_the_loss_may_be_a_bad_resume_but_an_end_is_not_a_matter_of_numbers() -> None:
    spike, crash = found(Cause.LOSS_SPIKE, "loss_spike"), found(Cause.CRASH)
    lines = [*WORDS, *STEPS]
    assert judged(Cause.RESUME_DIVERGED, lines, rules=rules_of(spike), finding=spike)
    assert not judged(Cause.RESUME_DIVERGED, lines, rules=rules_of(crash), finding=crash)


def test_the_last_line_that_looks_like_trouble_is_found() -> None:
    assert last_trouble([WARNING, "fine", WARNING, *STEPS]) == (2, True)
    assert last_trouble([*STEPS, WARNING]) == (3, False)
    assert last_trouble(STEPS) == (None, False)
