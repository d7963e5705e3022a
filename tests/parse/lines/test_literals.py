# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Every text that a trigger matches contains one of its literals."""

from __future__ import annotations

import re

import pytest

from mwatch.parse.grammar import ALL
from mwatch.parse.lines.literals import with_rarer_end

TRIGGERS = sorted({trigger for recogniser in ALL for trigger in recogniser.triggers})


def test_a_common_end_is_cut_off() -> None:
    assert with_rarer_end(r"loss at iteration ") == re.escape("loss at itera")


@pytest.mark.parametrize(
    "trigger", [r"exit code \d", r"step: *\d+ +loss:", r"(?:batch|token)=\d+/\d", "a or b|c or d"]
)
def test_a_trigger_that_is_no_fixed_text_stays_as_it_is(trigger: str) -> None:
    assert with_rarer_end(trigger) == trigger


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_cut_trigger_is_the_beginning_of_the_whole_one(trigger: str) -> None:
    cut = with_rarer_end(trigger)
    if cut == trigger:
        return
    whole, begin = (re.sub(r"\\(.)", r"\1", text) for text in (trigger, cut))
    assert whole.startswith(begin)
    assert len(whole) - len(begin) < 6
