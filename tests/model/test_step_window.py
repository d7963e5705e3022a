# SPDX-FileCopyrightText: The mwatch authors
# SPDX-License-Identifier: Apache-2.0
"""Steps that are added as columns are the same as those added one by one, however they are read."""

from __future__ import annotations

from itertools import islice

from mwatch.model.step import StepWindow
from support.builders.job import placed_lines


def test_steps_are_made_when_they_are_read_and_then_kept() -> None:
    lines = placed_lines(8, {"lm loss": [2.0] * 8}, {})
    steps = StepWindow([lines.step(0)], maxlen=5)
    steps.extend_later(lines, 1, 8)
    assert len(steps) == 5
    assert [each.iteration for each in islice(reversed(steps), 2)] == [8, 7]
    assert steps[-1] is steps[4]
    assert [each.iteration for each in steps] == [4, 5, 6, 7, 8]
    assert list(steps) == [lines.step(index) for index in range(3, 8)]
    assert steps[0].losses == {"lm loss": 2.0}


def test_the_pace_of_a_step_is_the_same_before_and_after_it_is_read() -> None:
    lines = placed_lines(8, {"lm loss": [2.0] * 8}, {"elapsed_ms": [100.0 * i for i in range(8)]})
    steps = StepWindow([lines.step(0)], maxlen=7)
    steps.extend_later(lines, 1, 3)
    steps.extend_later(lines, 3, 8)
    paces = [steps.pace(index) for index in range(-7, 0)]
    assert [each.seconds for each in paces] == [each.seconds for each in steps]
    assert paces == [steps.pace(index) for index in range(7)]
    assert paces[0].seconds == 0.1 and paces[0].covers == lines.lines.covers[1]
