# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every public case, judged as a saved file: nearly all verdicts are right, and no harmless log is
acted on. `make judge` shows the rest."""

from __future__ import annotations

import pytest

from public.judge import Judged, judge_here, read_cases, summary
from public.lessons import HELD_OUT

pytestmark = pytest.mark.timeout(900)  # thousands of logs


@pytest.fixture(scope="module")
def results() -> list[Judged]:
    return [judge_here(case) for case in read_cases()]


def test_nearly_all_are_judged_rightly(results: list[Judged]) -> None:
    right = sum(each.is_right for each in results)
    assert right >= 0.95 * len(results), summary(results)


def test_no_harmless_log_is_acted_on(results: list[Judged]) -> None:
    harmless = [each for each in results if each.case.actions == ("none",)]
    acted_on = [each for each in harmless if each.verdicts[0][2] != "none"]
    assert not acted_on, summary(acted_on)


def test_verdicts_on_logs_that_were_not_learnt_from_are_right(results: list[Judged]) -> None:
    others = [each for each in results if each.case.set_name in HELD_OUT]
    right = sum(each.is_right for each in others)
    assert right >= 0.9 * len(others), summary(others)
