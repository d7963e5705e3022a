# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The cases are well-formed, the command judges them like its code, and the classifier knows them.

`test_all_cases` judges them all, in `make test-long`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from mwatch.replay.second_reading import packaged
from public.agreement import agreement
from public.judge import KINDS, Case, judge, judge_here, read_cases
from public.lessons import HELD_OUT, digest, learnt_from

CASES = read_cases()


def test_the_cases_are_well_formed() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    for case in CASES:
        assert case.kind in KINDS, case.name
        assert case.causes and set(case.causes) <= {*Cause}, case.name
        assert case.actions and set(case.actions) <= {*Action}, case.name
        assert case.source.startswith("https://"), case.name
        assert case.truth and case.text.strip(), case.name


@pytest.mark.parametrize("case", CASES[::100], ids=lambda case: case.name)
def test_the_command_says_the_same_of_a_file_and_of_a_pipe(case: Case) -> None:
    """Apart from the age of the log in the summary: a pipe has none."""
    here = judge_here(case).verdicts[0][1:4]
    assert [each[1:4] for each in judge(case).verdicts] == [here, here]


def test_the_classifier_has_learnt_from_these_cases() -> None:
    """Whoever changes a case trains it again: `make classifier`."""
    assert packaged().digest == digest(learnt_from())


def test_the_classifier_reads_logs_that_it_has_not_learnt_from() -> None:
    others = [case for case in CASES if case.set_name in HELD_OUT]
    readings = [(case, packaged().read(case.text.splitlines())) for case in others]
    right = [
        case
        for case, reading in readings
        if reading is not None and reading.ranked(list(Cause))[0] in case.causes
    ]
    assert len(right) >= 0.85 * len(others), {case.name for case in others} - {
        case.name for case in right
    }


def test_write_ups_of_one_thread_agree_if_each_accepts_what_the_other_puts_first() -> None:
    one = replace(CASES[0], causes=("oom",), actions=("stop",))
    wider = replace(one, name="other-1", causes=("killed", "oom"))
    apart = replace(one, name="third-1", actions=("restart",))
    assert agreement([one]) == []
    assert agreement([one, replace(one, name=f"{one.set_name}-again")]) == [], "of one set"
    assert agreement([one, wider]) == [0.5]
    assert agreement([one, apart]) == [0.0]
