# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""The cases are well-formed, and nearly all are judged rightly: `make judge` shows the rest."""

from __future__ import annotations

from mwatch.model.decision import Action
from mwatch.model.finding import Cause
from public.judge import KINDS, judge, read_cases, summary

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


def test_nearly_all_are_judged_rightly() -> None:
    results = [judge(case) for case in CASES]
    right = sum(each.is_right for each in results)
    assert right >= 0.95 * len(results), summary(results)
