# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The cases are well-formed, and nearly all are judged rightly: `make judge` shows the rest."""

from __future__ import annotations

import pytest

from mwatch.model.cause import Cause
from mwatch.model.decision import Action
from public.judge import KINDS, Case, Judged, judge, judge_here, read_cases, summary

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


@pytest.fixture(scope="module")
def results() -> list[Judged]:
    return [judge_here(case) for case in CASES]


@pytest.mark.timeout(900)  # thousands of logs
def test_nearly_all_are_judged_rightly(results: list[Judged]) -> None:
    right = sum(each.is_right for each in results)
    assert right >= 0.95 * len(results), summary(results)


@pytest.mark.timeout(900)
def test_no_harmless_log_is_acted_on(results: list[Judged]) -> None:
    harmless = [each for each in results if each.case.actions == ("none",)]
    acted_on = [each for each in harmless if each.verdicts[0][2] != "none"]
    assert not acted_on, summary(acted_on)


@pytest.mark.parametrize("case", CASES[::100], ids=lambda case: case.name)
def test_the_command_says_the_same_of_a_file_and_of_a_pipe(case: Case) -> None:
    """Apart from the age of the log in the summary: a pipe has none."""
    here = judge_here(case).verdicts[0][1:4]
    assert [each[1:4] for each in judge(case).verdicts] == [here, here]
